//! The assignment of a file's columns to their roles.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use crate::config::{DatasetConfig, PromptColumns};
use crate::error::DatasetError;

/// A path to a column: the root column, then fields of structs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ColumnPath {
    pub(crate) name: Arc<str>,
    pub(crate) parts: Vec<String>,
}

/// The type of a column, as far as the choice of columns depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    List,
    Text,
    Struct,
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct ColumnRoles {
    pub(crate) prompt: ColumnPath,
    pub(crate) data_source: Option<ColumnPath>,
    pub(crate) ground_truth: Option<ColumnPath>,
    pub(crate) extra_info: Option<ColumnPath>,
    pub(crate) domain: Option<ColumnPath>,
    /// The root columns that are returned in addition to `extra_info`.
    pub(crate) extra: Vec<String>,
    /// `true` if all columns that no role uses are returned, including columns of JSONL files that only rows after the first 64 have.
    pub(crate) all_extra: bool,
    pub(crate) default_data_source: Arc<str>,
}

/// The layout of a file: its root columns, and the types that paths lead to.
pub(crate) trait FileLayout {
    fn roots(&self) -> Vec<String>;
    fn kind<S: AsRef<str>>(&self, parts: &[S]) -> Option<ColumnKind>;
}

/// The name that stands for all columns that no role uses.
const ALL: &str = "*";

const PROMPT: [&str; 4] = ["messages", "prompt", "question", "problem"];
/// The usual names of a column that has the question as text, without the answer.
pub(crate) const QUESTION: [&str; 3] = ["prompt", "question", "problem"];
/// The usual name of a column of whole chats, which may end with the answer. Messages in `prompt` are used as they are, as in verl.
pub(crate) const CHAT: &str = "messages";
const DATA_SOURCE: [&str; 2] = ["data_source", "source"];
const GROUND_TRUTH: [&str; 5] =
    ["reward_model.ground_truth", "reward_spec.ground_truth", "ground_truth", "answer", "label"];
const EXTRA_INFO: [&str; 1] = ["extra_info"];
const DOMAIN: [&str; 3] = ["domain", "ability", "tag"];

impl ColumnRoles {
    /// Finds the column for every role.
    ///
    /// # Errors
    ///
    /// If a column named in the configuration is absent, or no column can be the prompt.
    pub(crate) fn resolve(
        file: &Path,
        layout: &impl FileLayout,
        config: &DatasetConfig,
    ) -> Result<Self, DatasetError> {
        let PromptColumns { prompt, data_source, ground_truth, extra_info, domain } =
            &config.columns;
        let named =
            |name: &String| find(layout, name).ok_or_else(|| absent(file, layout, name, true));
        let part = |given: &Option<String>, names: &[&str]| match given {
            Some(name) => named(name).map(Some),
            None => Ok(usual(layout, names)),
        };
        let mut plan = Self {
            prompt: match prompt {
                Some(name) => named(name)?,
                None => {
                    usual_prompt(layout).ok_or_else(|| absent(file, layout, "prompt", false))?
                }
            },
            data_source: part(data_source, &DATA_SOURCE)?,
            ground_truth: part(ground_truth, &GROUND_TRUTH)?,
            extra_info: part(extra_info, &EXTRA_INFO)?,
            domain: match domain {
                Some(name) => Some(named(name)?),
                None => usual_domain(layout),
            },
            extra: Vec::new(),
            all_extra: config.extra_columns.iter().any(|name| name == ALL),
            default_data_source: config.default_data_source.as_str().into(),
        };
        plan.extra = plan.extra_columns(file, layout, &config.extra_columns)?;
        Ok(plan)
    }

    /// Returns the roles for a file without columns, none of whose rows can be read.
    pub(crate) fn without_columns(config: &DatasetConfig) -> Self {
        let name = config.columns.prompt.as_deref().unwrap_or(PROMPT[1]);
        let prompt = ColumnPath { name: name.into(), parts: vec![name.to_owned()] };
        Self::of_prompt(prompt, config.default_data_source.as_str().into())
    }

    /// Returns roles of which only the prompt has a column.
    fn of_prompt(prompt: ColumnPath, default_data_source: Arc<str>) -> Self {
        Self {
            prompt,
            data_source: None,
            ground_truth: None,
            extra_info: None,
            domain: None,
            extra: Vec::new(),
            all_extra: false,
            default_data_source,
        }
    }

    /// Returns the configuration that names a column with the question as text as the prompt. Returns `None` if the configuration names the
    /// prompt, if the prompt is not the column `messages`, or if there is no column with the question.
    pub(crate) fn with_question(
        &self,
        layout: &impl FileLayout,
        config: &DatasetConfig,
    ) -> Option<DatasetConfig> {
        if config.columns.prompt.is_some() || self.prompt.parts != [CHAT] {
            return None;
        }
        let is_text = |path: &ColumnPath| layout.kind(&path.parts) == Some(ColumnKind::Text);
        let question = QUESTION.iter().find_map(|name| find(layout, name).filter(is_text))?;
        let mut named = config.clone();
        named.columns.prompt = Some(question.name.to_string());
        Some(named)
    }

    /// Returns the roles with the column of the prompt as the only column.
    pub(crate) fn prompt_only(&self) -> Self {
        Self::of_prompt(self.prompt.clone(), self.default_data_source.clone())
    }

    /// Returns the columns that have a role, each with the name of its role.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, &ColumnPath)> {
        let optional = [
            ("data_source", &self.data_source),
            ("ground_truth", &self.ground_truth),
            ("extra_info", &self.extra_info),
            ("domain", &self.domain),
        ];
        let optional =
            optional.into_iter().filter_map(|(part, column)| Some((part, column.as_ref()?)));
        std::iter::once(("prompt", &self.prompt)).chain(optional)
    }

    fn extra_columns(
        &self,
        file: &Path,
        layout: &impl FileLayout,
        names: &[String],
    ) -> Result<Vec<String>, DatasetError> {
        let roots = layout.roots();
        let mut extra: Vec<String> = Vec::new();
        for name in names {
            match name.as_str() {
                ALL => extra.extend(roots.iter().filter(|root| !self.uses(root)).cloned()),
                _ if roots.contains(name) => extra.push(name.clone()),
                _ => return Err(absent(file, layout, name, true)),
            }
        }
        let mut seen = std::collections::HashSet::new();
        extra.retain(|name| seen.insert(name.clone()));
        Ok(extra)
    }

    /// Returns the roles of the columns of one row of JSONL. The row itself determines the roles that have no column in the first rows of
    /// its file.
    pub(crate) fn of_row(&self, row: &impl FileLayout) -> Cow<'_, Self> {
        let later = |role: &Option<ColumnPath>, names: &[&str]| match role {
            Some(_) => None,
            None => usual(row, names),
        };
        let data_source = later(&self.data_source, &DATA_SOURCE);
        let ground_truth = later(&self.ground_truth, &GROUND_TRUTH);
        let extra_info = later(&self.extra_info, &EXTRA_INFO);
        let domain = if self.domain.is_none() { usual_domain(row) } else { None };
        if [&data_source, &ground_truth, &extra_info, &domain].iter().all(|role| role.is_none()) {
            return Cow::Borrowed(self);
        }
        let mut roles = self.clone();
        roles.data_source = roles.data_source.or(data_source);
        roles.ground_truth = roles.ground_truth.or(ground_truth);
        roles.extra_info = roles.extra_info.or(extra_info);
        roles.domain = roles.domain.or(domain);
        Cow::Owned(roles)
    }

    pub(crate) fn uses(&self, root: &str) -> bool {
        self.parts().any(|(_, path)| path.parts[0] == root)
    }
}

/// Returns the first of the usual names that the file or row has.
fn usual(layout: &impl FileLayout, names: &[&str]) -> Option<ColumnPath> {
    names.iter().find_map(|name| find(layout, name))
}

/// Returns the domain: the first usual name that is not a list or a struct. Datasets have lists of tags under these names.
fn usual_domain(layout: &impl FileLayout) -> Option<ColumnPath> {
    let is_domain = |path: &ColumnPath| {
        !matches!(layout.kind(&path.parts), Some(ColumnKind::List | ColumnKind::Struct))
    };
    DOMAIN.iter().find_map(|name| find(layout, name).filter(is_domain))
}

fn usual_prompt(layout: &impl FileLayout) -> Option<ColumnPath> {
    let chat =
        find(layout, "prompt").filter(|path| layout.kind(&path.parts) == Some(ColumnKind::List));
    chat.or_else(|| usual(layout, &PROMPT))
}

/// Finds a root column with exactly this name, including dots, or the column at the path that the dots describe.
fn find(layout: &impl FileLayout, name: &str) -> Option<ColumnPath> {
    let whole: &[&str] = &[name];
    let split: Vec<&str> = name.split('.').collect();
    let parts = [whole, &split].into_iter().find(|parts| layout.kind(parts).is_some())?;
    Some(ColumnPath { name: name.into(), parts: parts.iter().map(|&part| part.into()).collect() })
}

fn absent(file: &Path, layout: &impl FileLayout, column: &str, named: bool) -> DatasetError {
    DatasetError::AbsentColumn {
        file: file.to_owned(),
        column: column.to_owned(),
        named,
        found: layout.roots(),
    }
}

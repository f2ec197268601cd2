//! The assignment of a file's columns to their roles.

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
    pub(crate) default_data_source: Arc<str>,
}

/// The layout of a file: its root columns, and the types that paths lead to.
pub(crate) trait FileLayout {
    fn roots(&self) -> Vec<String>;
    fn kind(&self, parts: &[String]) -> Option<ColumnKind>;
}

const PROMPT: [&str; 4] = ["messages", "prompt", "question", "problem"];
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
        let part = |given: &Option<String>, usual: &[&str]| match given {
            Some(name) => find(layout, name).ok_or_else(|| absent(file, layout, name)).map(Some),
            None => Ok(usual.iter().find_map(|name| find(layout, name))),
        };
        let mut plan = Self {
            prompt: match prompt {
                Some(name) => find(layout, name).ok_or_else(|| absent(file, layout, name))?,
                None => usual_prompt(layout).ok_or_else(|| absent(file, layout, "prompt"))?,
            },
            data_source: part(data_source, &DATA_SOURCE)?,
            ground_truth: part(ground_truth, &GROUND_TRUTH)?,
            extra_info: part(extra_info, &EXTRA_INFO)?,
            domain: part(domain, &DOMAIN)?,
            extra: Vec::new(),
            default_data_source: config.default_data_source.as_str().into(),
        };
        plan.extra = plan.extra_columns(file, layout, &config.extra_columns)?;
        Ok(plan)
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
                "*" => extra.extend(roots.iter().filter(|root| !self.uses(root)).cloned()),
                _ if roots.contains(name) => extra.push(name.clone()),
                _ => return Err(absent(file, layout, name)),
            }
        }
        let mut seen = std::collections::HashSet::new();
        extra.retain(|name| seen.insert(name.clone()));
        Ok(extra)
    }

    fn uses(&self, root: &str) -> bool {
        self.parts().any(|(_, path)| path.parts[0] == root)
    }
}

fn usual_prompt(layout: &impl FileLayout) -> Option<ColumnPath> {
    let chat =
        find(layout, "prompt").filter(|path| layout.kind(&path.parts) == Some(ColumnKind::List));
    chat.or_else(|| PROMPT.iter().find_map(|name| find(layout, name)))
}

/// Finds a root column with exactly this name, including dots, or the column at the path that the dots describe.
fn find(layout: &impl FileLayout, name: &str) -> Option<ColumnPath> {
    let whole = vec![name.to_owned()];
    let split: Vec<String> = name.split('.').map(str::to_owned).collect();
    let parts = [whole, split].into_iter().find(|parts| layout.kind(parts).is_some())?;
    Some(ColumnPath { name: name.into(), parts })
}

fn absent(file: &Path, layout: &impl FileLayout, column: &str) -> DatasetError {
    DatasetError::AbsentColumn {
        file: file.to_owned(),
        column: column.to_owned(),
        found: layout.roots(),
    }
}

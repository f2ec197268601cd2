//! Axes of a sweep: a setting, its values, and the cross product of several axes.

use std::collections::BTreeSet;

use super::raw::RawJob;
use super::variant::{self, Variant};
use crate::recipe::{RecipeError, split_override};

/// A setting and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    key: String,
    /// The values in the order of the sweep: the label of each value in tables, and the settings that the value sets, `key=value` each.
    values: Vec<(String, Vec<String>)>,
}

/// The key that names the schedule. Its value is `sync` in every baseline.
const SCHEDULE_KEY: &str = "schedule.name";

impl Axis {
    /// Parses `key=a,b,c`. Commas within brackets, braces and double quotes do not separate values. `schedule.name=all` gives the axis of
    /// [`schedules`](Self::schedules).
    ///
    /// # Errors
    /// If the text has no `=`, the key or the text after `=` is empty, or a value occurs twice.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let wrong = || RecipeError::Override { text: text.to_owned() };
        let (key, values) = split_override(text).ok_or_else(wrong)?;
        if key.is_empty() || values.trim().is_empty() {
            return Err(wrong());
        }
        if (key, values.trim()) == (SCHEDULE_KEY, "all") {
            return Ok(Self::schedules());
        }
        let name = |value: &str| match key {
            SCHEDULE_KEY => value.to_owned(),
            key => format!("{}={value}", key.rsplit('.').next().unwrap_or(key)),
        };
        let values: Vec<&str> = split(values).into_iter().map(str::trim).collect();
        if let Some(twice) = first_duplicate(values.iter()) {
            return Err(RecipeError::Type {
                key: key.to_owned(),
                reason: format!("`--sweep {text}` has the value `{twice}` twice"),
            });
        }
        let values = values.into_iter().map(|value| (name(value), vec![format!("{key}={value}")]));
        Ok(Self { key: key.to_owned(), values: values.collect() })
    }

    /// Checks that each axis has a key of its own.
    ///
    /// # Errors
    /// If two axes have the same key.
    pub(super) fn check_keys(axes: &[Self]) -> Result<(), RecipeError> {
        first_duplicate(axes.iter().map(|axis| &axis.key)).map_or(Ok(()), |key| {
            let reason = format!(
                "swept twice: write all values into one option, such as `--sweep {key}=A,B`"
            );
            Err(RecipeError::Type { key: key.clone(), reason })
        })
    }

    /// Returns `true` if the key controls how a job is scheduled, rather than which job it is.
    #[must_use]
    pub fn is_of_schedule(&self) -> bool {
        !RawJob::is_kept_by_baseline(&format!("{}=", self.key))
    }

    /// Returns the axis with every entry of [`variant::all`]: a schedule with its settings.
    #[must_use]
    pub fn schedules() -> Self {
        let value = |variant: &Variant| (variant.label.to_owned(), variant.overrides().collect());
        Self { key: SCHEDULE_KEY.to_owned(), values: variant::all().map(value).collect() }
    }
}

/// Returns the first item that is equal to an earlier item.
fn first_duplicate<T: Ord + Copy>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    items.find(|item| !seen.insert(*item))
}

/// Splits at the commas outside of brackets, braces and quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start, mut parts) = (0_usize, false, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A point of the cross product of the axes of a sweep.
#[derive(Clone, Debug, Default)]
pub(super) struct GridPoint {
    /// The labels of the point's values, in the order of the axes. A baseline has the labels of the values that it keeps, and `sync`.
    pub(super) labels: Vec<String>,
    /// The labels of the values whose axes belong to the job rather than to the schedule.
    pub(super) job: Vec<String>,
    /// The point's settings, `key=value` each.
    pub(super) settings: Vec<String>,
    /// The labels and settings that the point shares with its baseline.
    shared_with_baseline: (Vec<String>, Vec<String>),
}

impl GridPoint {
    fn with(mut self, axis: &Axis, label: &str, settings: &[String]) -> Self {
        let kept = settings.iter().filter(|setting| RawJob::is_kept_by_baseline(setting));
        if axis.key == SCHEDULE_KEY {
            let name = |setting: &String| setting.rsplit('.').next().unwrap_or(setting).to_owned();
            self.shared_with_baseline.0.extend(kept.clone().map(name));
        } else {
            self.shared_with_baseline.0.extend(kept.clone().map(|_| label.to_owned()));
        }
        self.shared_with_baseline.1.extend(kept.cloned());
        if !axis.is_of_schedule() {
            self.job.push(label.to_owned());
        }
        self.labels.push(label.to_owned());
        self.settings.extend_from_slice(settings);
        self
    }

    /// Returns the point's name in tables.
    pub(super) fn label(&self) -> String {
        self.labels.join(" ")
    }

    /// Returns the baseline of this point: the same job, scheduled by `sync`.
    pub(super) fn baseline(&self) -> Self {
        let (mut labels, mut settings) = self.shared_with_baseline.clone();
        labels.push("sync".to_owned());
        settings.push(format!("{SCHEDULE_KEY}=sync"));
        Self {
            labels,
            settings,
            job: self.job.clone(),
            shared_with_baseline: self.shared_with_baseline.clone(),
        }
    }

    /// Removes all labels and settings that `other` does not have.
    pub(super) fn retain_common(&mut self, other: &Self) {
        let common = |own: &mut Vec<String>, others: &[String]| {
            own.retain(|one| others.contains(one));
        };
        common(&mut self.labels, &other.labels);
        common(&mut self.job, &other.job);
        common(&mut self.settings, &other.settings);
        common(&mut self.shared_with_baseline.0, &other.shared_with_baseline.0);
        common(&mut self.shared_with_baseline.1, &other.shared_with_baseline.1);
    }
}

/// Returns the cross product of the axes; without axes, a single point without settings.
pub(super) fn product(axes: &[Axis]) -> Vec<GridPoint> {
    let crossed = |points: Vec<GridPoint>, axis: &Axis| {
        let along = |point: GridPoint| {
            let values = axis.values.iter();
            values.map(move |(label, settings)| point.clone().with(axis, label, settings))
        };
        points.into_iter().flat_map(along).collect()
    };
    axes.iter().fold(vec![GridPoint::default()], crossed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_identified_by_keys_other_than_those_of_the_schedule() {
        let axis = |text: &str| Axis::parse(text).expect("an axis");
        for of_schedule in [
            "schedule.name=all",
            "schedule.eta_prompts=1,2",
            "pipeline.staleness=0,1",
            "rollout.hand_out=together",
        ] {
            assert!(axis(of_schedule).is_of_schedule(), "{of_schedule}");
        }
        for of_job in
            ["cluster.gpus=8,16", "model.name=a,b", "rollout.n=4,8", "data.max_response_length=9"]
        {
            assert!(!axis(of_job).is_of_schedule(), "{of_job}");
        }
        let points = product(&[axis("cluster.gpus=8,16"), axis("schedule.name=sync,fused")]);
        let jobs: Vec<String> = points.iter().map(|point| point.job.join(" ")).collect();
        assert_eq!(jobs, ["gpus=8", "gpus=8", "gpus=16", "gpus=16"]);
    }

    #[test]
    fn a_key_or_a_value_that_is_swept_twice_is_refused() {
        let error = Axis::parse("schedule.name=fused, sync,fused").expect_err("refused");
        assert!(error.to_string().contains("has the value `fused` twice"), "{error}");
        let axes = ["cluster.gpus=16", "rollout.n=8", "cluster.gpus=32"];
        let axes = axes.map(|text| Axis::parse(text).expect("an axis"));
        let error = Axis::check_keys(&axes).expect_err("refused");
        let expected = "key `cluster.gpus`: swept twice: write all values into one option, such as `--sweep cluster.gpus=A,B`";
        assert_eq!(error.to_string(), expected);
        assert!(Axis::check_keys(&axes[..2]).is_ok());
    }

    #[test]
    fn commas_within_brackets_and_quotes_separate_nothing() {
        assert_eq!(split("1,{a = 2, b = [3, 4]},\"x,y\""), ["1", "{a = 2, b = [3, 4]}", "\"x,y\""]);
    }
}

//! DAPO's penalty for long responses, as verl's keys describe it.

use super::entries::OverlongPart;
use super::override_text::Override;

/// The reward that has this penalty.
pub(super) const PENALTY: &str = "soft_overlong";

/// The settings of the penalty among the overrides.
///
/// The penalty is 0 up to `Len` tokens before `MaxLength`, and decreases linearly to minus `Factor` there. verl adds it to the scores.
#[derive(Debug, Default)]
pub(super) struct Overlong(Vec<(OverlongPart, Override)>);

impl Overlong {
    /// Adds a setting. A later one replaces an earlier one, and `null` unsets it.
    pub(super) fn add(&mut self, part: OverlongPart, one: &Override) {
        self.0.retain(|(other, _)| *other != part);
        if !one.is_null() {
            self.0.push((part, one.clone()));
        }
    }

    fn get(&self, part: OverlongPart) -> Option<&Override> {
        self.0.iter().find(|(other, _)| *other == part).map(|(_, one)| one)
    }

    /// Returns the override that enables the penalty. verl's default is no penalty.
    pub(super) fn enabled(&self) -> Option<&Override> {
        self.get(OverlongPart::Enable).filter(|one| one.value.as_bool() != Some(false))
    }

    /// Returns the keys of verl, each with the key that it sets here.
    pub(super) fn keys(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(part, one)| (one.key.clone(), ours(*part)))
    }

    /// Returns the overrides that add the penalty to the scores of the reward `base`, or `None` if `Len` is missing.
    ///
    /// `longest` is the default of `MaxLength`.
    pub(super) fn overrides(&self, base: &str, longest: &str) -> Option<[String; 3]> {
        let value = |part| self.get(part).map(|one| one.value.to_string());
        let cache = value(OverlongPart::Len)?;
        let factor = value(OverlongPart::Factor).unwrap_or_else(|| "1.0".to_owned());
        let max_length = value(OverlongPart::MaxLength).unwrap_or_else(|| longest.to_owned());
        Some([
            format!("reward.routes={{\"*\" = {{ {base} = 1.0, {PENALTY} = {factor} }}}}"),
            format!("{}={max_length}", ours(OverlongPart::MaxLength)),
            format!("{}={cache}", ours(OverlongPart::Len)),
        ])
    }
}

/// Returns the key that a setting of the penalty sets.
pub(super) fn ours(part: OverlongPart) -> String {
    match part {
        OverlongPart::Enable | OverlongPart::Factor => "reward.routes".to_owned(),
        OverlongPart::Len => format!("reward.options.{PENALTY}.cache"),
        OverlongPart::MaxLength => format!("reward.options.{PENALTY}.max_length"),
    }
}

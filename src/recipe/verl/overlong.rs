//! DAPO's penalty for long responses, as verl's keys describe it.

use super::entries::OverlongPart;
use super::override_text::Override;

/// The name of the reward that computes the penalty.
pub(super) const PENALTY: &str = "soft_overlong";

/// The settings of the penalty among the overrides.
///
/// The penalty is 0 for responses of at most `MaxLength - Len` tokens, and decreases linearly to `-Factor` at `MaxLength`. verl adds it to
/// the scores.
#[derive(Debug, Default)]
pub(super) struct Overlong(Vec<(OverlongPart, Override)>);

impl Overlong {
    /// Adds a setting. It replaces an earlier setting of the same part, and `null` unsets the part.
    pub(super) fn add(&mut self, part: OverlongPart, setting: &Override) {
        self.0.retain(|(other, _)| *other != part);
        if !setting.is_null() {
            self.0.push((part, setting.clone()));
        }
    }

    fn get(&self, part: OverlongPart) -> Option<&Override> {
        self.0.iter().find(|(other, _)| *other == part).map(|(_, setting)| setting)
    }

    /// Returns the override that enables the penalty, or `None` if it is `false` or absent, because verl's default is no penalty.
    pub(super) fn enabled(&self) -> Option<&Override> {
        self.get(OverlongPart::Enable).filter(|setting| setting.value.as_bool() != Some(false))
    }

    /// Returns the keys of verl, each with the key that it sets here.
    pub(super) fn keys(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(part, setting)| (setting.key.clone(), target_key(*part)))
    }

    /// Returns the overrides that add the penalty to the scores of the reward `base`, or `None` if `Len` is missing.
    ///
    /// `longest` is the default of `MaxLength`.
    pub(super) fn overrides(&self, base: &str, longest: &str) -> Option<[String; 3]> {
        let value = |part| self.get(part).map(|setting| setting.value.to_string());
        let cache = value(OverlongPart::Len)?;
        let factor = value(OverlongPart::Factor).unwrap_or_else(|| "1.0".to_owned());
        let max_length = value(OverlongPart::MaxLength).unwrap_or_else(|| longest.to_owned());
        Some([
            format!("reward.routes={{\"*\" = {{ {base} = 1.0, {PENALTY} = {factor} }}}}"),
            format!("{}={max_length}", target_key(OverlongPart::MaxLength)),
            format!("{}={cache}", target_key(OverlongPart::Len)),
        ])
    }
}

/// Returns the key that a setting of the penalty sets.
pub(super) fn target_key(part: OverlongPart) -> String {
    match part {
        OverlongPart::Enable | OverlongPart::Factor => "reward.routes".to_owned(),
        OverlongPart::Len => format!("reward.options.{PENALTY}.cache"),
        OverlongPart::MaxLength => format!("reward.options.{PENALTY}.max_length"),
    }
}

//! The reward `math_reward`: the last box with the normalization of the Hendrycks MATH benchmark (Hendrycks et al., 2021, section B).

use rollpacker_stages::catalog::About;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::Deserialize;

use super::through_closing_brace;

/// 1 if the last `\boxed{...}` equals the ground truth after normalizing both, otherwise 0. A response without a box gets 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MathReward {}

impl MathReward {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(&[], "the last `\\boxed{...}`, compared as text", "verl");

    /// Returns the score of a response: 1 or 0.
    #[must_use]
    pub fn grade(&self, response: &str, truth: &str) -> f64 {
        f64::from(last_box(response).is_some_and(|answer| equivalent(&answer, truth)))
    }
}

impl Reward for MathReward {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(self.grade(&sample.response, sample.truth()?).into())
    }
}

/// Returns the contents of the last box; `None` if there is no box or it is not closed. If `\boxed` is followed by a blank anywhere,
/// returns the text after the last such command, up to a dollar sign. As in the original, an `\fbox` is found but its contents are never
/// extracted.
fn last_box(text: &str) -> Option<String> {
    if let Some(at) = text.rfind("\\boxed ") {
        let rest = &text[at + "\\boxed ".len()..];
        return rest.split('$').next().map(str::to_owned);
    }
    let begin = text.rfind("\\boxed").or_else(|| text.rfind("\\fbox"))?;
    let boxed = through_closing_brace(text, begin)?;
    boxed.strip_prefix("\\boxed{")?.strip_suffix('}').map(str::to_owned)
}

/// Returns `true` if two answers are equal after normalization. If one of them has no normal form, both are compared as written.
fn equivalent(left: &str, right: &str) -> bool {
    match (normalised(left), normalised(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// Returns the normal form of an answer, or `None` where the original raises an error.
fn normalised(text: &str) -> Option<String> {
    const REMOVED: [(&str, &str); 9] = [
        ("\n", ""),
        ("\\!", ""),
        ("\\\\", "\\"),
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
    ];
    let mut text = text.to_owned();
    for (old, new) in REMOVED {
        text = text.replace(old, new);
    }
    text = without_unit(&text.replace("\\$", ""))?;
    text = text.replace("\\\\%", "").replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.");
    if text.is_empty() {
        return Some(text);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    text = value_of_short_equation(text);
    text = with_braced_roots(&text)?.replace(' ', "");
    text = with_braced_fractions(&text)?;
    if text == "0.5" {
        text = "\\frac{1}{2}".to_owned();
    }
    Some(as_fraction(&text).unwrap_or(text))
}

/// Removes a unit that begins with `\text{ `. Returns `None` if there are several.
fn without_unit(text: &str) -> Option<String> {
    let mut parts = text.split("\\text{ ");
    let value = parts.next()?.to_owned();
    (parts.count() <= 1).then_some(value)
}

/// Returns the right-hand side of an equation whose left-hand side has at most two characters, such as `5` for `x=5`. Returns any other
/// text unchanged.
fn value_of_short_equation(text: String) -> String {
    let parts: Vec<&str> = text.split('=').collect();
    match parts.as_slice() {
        [name, value] if name.chars().count() <= 2 => (*value).to_owned(),
        _ => text,
    }
}

/// Puts braces around one-character arguments of roots: `\sqrt{3}` for `\sqrt3`. Returns `None` if nothing follows a `\sqrt`.
fn with_braced_roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut result = parts.next()?.to_owned();
    for part in parts {
        result.push_str("\\sqrt");
        match part.chars().next()? {
            '{' => result.push_str(part),
            first => {
                result.push_str(&format!("{{{first}}}{}", &part[first.len_utf8()..]));
            }
        }
    }
    Some(result)
}

/// Puts braces around one-character arguments of fractions: `\frac{1}{2}` for `\frac12`. If only one character follows a `\frac`, the text
/// is not changed at all. Returns `None` if nothing follows a `\frac`.
fn with_braced_fractions(text: &str) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut result = parts.next()?.to_owned();
    for part in parts {
        result.push_str("\\frac");
        let mut characters = part.chars();
        let above = characters.next()?;
        if above == '{' {
            result.push_str(part);
            continue;
        }
        let Some(below) = characters.next() else { return Some(text.to_owned()) };
        let rest = characters.as_str();
        match below {
            '{' => result.push_str(&format!("{{{above}}}{{{rest}")),
            below => result.push_str(&format!("{{{above}}}{{{below}}}{rest}")),
        }
    }
    Some(result)
}

/// Returns a fraction `a/b` of integers as a `\frac`, and `None` for any other text.
fn as_fraction(text: &str) -> Option<String> {
    let (above, below) = text.split_once('/')?;
    let whole = is_canonical_integer(above) && is_canonical_integer(below);
    whole.then(|| format!("\\frac{{{above}}}{{{below}}}"))
}

/// Returns `true` if a text is an integer as Python prints it: no plus sign, no leading zeros and no `-0`.
fn is_canonical_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let printed = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    printed && (text == "0" || !digits.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(response: &str, truth: &str, expected: f64) {
        assert_eq!(
            MathReward {}.grade(response, truth),
            expected,
            "{response:?} against {truth:?}"
        );
    }

    #[test]
    fn normalises_both_sides() {
        check("\\boxed{\\dfrac12}", "1/2", 1.0);
        check("\\boxed{xy = -3}", "-3", 0.0);
        check("\\boxed{y=-3}", "-3", 1.0);
        check("\\boxed{5\\text{ cm}}", "5", 1.0);
        check("\\boxed{5\\text{cm}}", "5", 0.0);
        check("$\\boxed 7$ indeed", "7", 1.0);
        check("\\boxed{90^\\circ}", "90", 1.0);
        check("\\boxed{\\left(1,2\\right)}", "(1, 2)", 1.0);
        check("\\boxed{0.5}", "\\frac{1}{2}", 1.0);
        check("\\boxed{01/2}", "\\frac{01}{2}", 0.0);
        check("\\boxed{1} then \\boxed{2}", "1", 0.0);
    }

    #[test]
    fn compares_as_written_what_it_cannot_normalise() {
        check("\\boxed{\\sqrt}", "\\sqrt", 1.0);
        check("\\boxed{\\frac}", " \\frac", 0.0);
        check("\\boxed{\\frac1}", "\\frac1", 1.0);
        check("\\fbox{7}", "7", 0.0);
        check("\\boxed{7", "7", 0.0);
    }
}

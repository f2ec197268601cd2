//! `math_reward`: the last box, as the Hendrycks MATH benchmark normalises it (Hendrycks et al., 2021, section B).

use serde::Deserialize;

use super::through_closing_brace;
use crate::reward::{Context, Reward, RewardError, Sample, Score};

/// One point if the last `\boxed{...}` is the ground truth after both are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MathReward {}

impl MathReward {
    /// The score of a response: 1 or 0.
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

/// What is in the last box. `\fbox` is found but never opened.
fn last_box(text: &str) -> Option<String> {
    if let Some(at) = text.rfind("\\boxed ") {
        let rest = &text[at + "\\boxed ".len()..];
        return rest.split('$').next().map(str::to_owned);
    }
    let begin = text.rfind("\\boxed").or_else(|| text.rfind("\\fbox"))?;
    let boxed = through_closing_brace(text, begin)?;
    boxed.strip_prefix("\\boxed{")?.strip_suffix('}').map(str::to_owned)
}

/// Whether two answers are the same when normalised; as they stand where one cannot be.
fn equivalent(left: &str, right: &str) -> bool {
    match (normalised(left), normalised(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// The normal form of an answer; `None` where the original stumbles.
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

/// Cuts off `\text{ ...`, which may be there once.
fn without_unit(text: &str) -> Option<String> {
    let mut parts = text.split("\\text{ ");
    let value = parts.next()?.to_owned();
    (parts.count() <= 1).then_some(value)
}

/// `x=5` is `5` if the name has at most two characters.
fn value_of_short_equation(text: String) -> String {
    let parts: Vec<&str> = text.split('=').collect();
    match parts.as_slice() {
        [name, value] if name.chars().count() <= 2 => (*value).to_owned(),
        _ => text,
    }
}

/// `\sqrt3` is `\sqrt{3}`; a root of nothing cannot be normalised.
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

/// `\frac12` is `\frac{1}{2}`; all is left alone if one has a single character after it.
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

/// `a/b` of whole numbers as a `\frac`.
fn as_fraction(text: &str) -> Option<String> {
    let (above, below) = text.split_once('/')?;
    let whole = is_canonical_integer(above) && is_canonical_integer(below);
    whole.then(|| format!("\\frac{{{above}}}{{{below}}}"))
}

/// Whether a text is how a whole number is printed.
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

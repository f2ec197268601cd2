//! Parsing of claims such as `Zoey is a knight`.

use std::sync::LazyLock;

use regex::Regex;

use super::Roles;
use crate::rule::regex;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claims {
    /// The role that the text claims for each person.
    Read(Roles),
    /// The text mentions roles outside of claims, or contradicts itself.
    Unreadable,
}

/// A claim, optionally after a number, a bullet or a conjunction, and nothing else.
static CLAIM: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^(?:\(?\d+\s*[.):]\s*|[-•]\s*)?(?:and\s+)?(\p{Lu}[\p{L}\p{M}'’.-]*(?:\s+\p{Lu}[\p{L}\p{M}'’.-]*)*)\s*(?:(?:is\s+an?|:|=)\s+)(\p{L}+)$",
    )
});

/// The separators between claims: line breaks, commas, semicolons, periods before a blank or at the end, and the word `and`.
static BETWEEN: LazyLock<Regex> = LazyLock::new(|| regex(r"[\n,;]|\.(?:\s|$)|\s+and\s+"));

impl Claims {
    /// Parses the claims of a text. The known roles are `roles`, knight and knave; if `roles` is empty, any word is accepted as a role.
    pub(super) fn read(text: &str, roles: impl Iterator<Item = impl AsRef<str>>) -> Self {
        let mut known: Vec<String> = roles.map(|role| role.as_ref().to_owned()).collect();
        let any = known.is_empty();
        known.extend(["knight", "knave"].map(str::to_owned));
        let text = text.replace(['*', '_', '`'], "");
        let text = numbered(&text);
        let mut claims = Roles::new();
        for part in BETWEEN.split(&text).map(str::trim).filter(|part| !part.is_empty()) {
            let claim =
                CLAIM.captures(part).map(|claim| (claim[1].to_owned(), claim[2].to_lowercase()));
            let readable = match claim.filter(|(_, role)| any || known.contains(role)) {
                Some((name, role)) => {
                    claims.insert(name, role.clone()).is_none_or(|before| before == role)
                }
                None => !mentions(part, &known),
            };
            if !readable {
                return Self::Unreadable;
            }
        }
        Self::Read(claims)
    }
}

/// Replaces `1. Zoey` by `1) Zoey`, so that the period does not end a claim.
fn numbered(text: &str) -> String {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"\b(\d+)\.\s+"));
    NUMBER.replace_all(text, "$1) ").into_owned()
}

fn mentions(part: &str, roles: &[String]) -> bool {
    let part = part.to_lowercase();
    part.split(|c: char| !c.is_alphabetic()).any(|word| {
        roles.iter().any(|role| word == role || word.strip_suffix('s') == Some(role.as_str()))
    })
}

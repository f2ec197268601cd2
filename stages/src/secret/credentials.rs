//! Secrets of URLs: the user information, and values of the query and the fragment.

use std::borrow::Cow;

use url::Url;

use super::{REDACTED, is_secret_parameter};

/// The text between the scheme of a URL and the rest of it.
const AFTER_SCHEME: &str = "://";

/// Returns a text without the credentials of its URLs. If the text has no spaces, the user information and all values of the queries are
/// replaced; a text with such parts is replaced as a whole if its first URL cannot be parsed. In another text, the user
/// information of URLs and the values of parameters whose names indicate secrets are replaced.
///
/// ```
/// use rollpacker_stages::secret::without_credentials;
///
/// let url = "https://user:password@host/v1?key=value";
/// assert_eq!(without_credentials(url), "https://[redacted]@host/v1?key=[redacted]");
/// assert_eq!(without_credentials("https://host/v1"), "https://host/v1");
/// ```
#[must_use]
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_whitespace) {
        return redact_urls(text, without_named_values);
    }
    let Some(scheme_end) = text.find(AFTER_SCHEME) else { return text.into() };
    if !text.contains(['@', '?', '#']) {
        return text.into();
    }
    if Url::parse(&text[without_scheme(&text[..scheme_end]).len()..]).is_err() {
        return REDACTED.into();
    }
    redact_urls(text, |query| {
        let Some(pairs) = query.strip_prefix('?') else { return without_named_values(query) };
        let pairs = pairs.split('&').filter(|pair| !pair.is_empty());
        let pairs: Vec<_> = pairs.map(|pair| format!("{}{REDACTED}", name_of(pair))).collect();
        format!("?{}", pairs.join("&"))
    })
}

/// Returns the name of a parameter with its `=`; empty if the parameter has only a value.
pub(super) fn name_of(pair: &str) -> &str {
    pair.find('=').map_or("", |end| &pair[..=end])
}

/// Returns the URLs in a text.
pub(super) fn urls(text: &str) -> impl Iterator<Item = Url> {
    text.match_indices(AFTER_SCHEME).filter_map(|(at, _)| {
        let begin = without_scheme(&text[..at]).len();
        let end = text[at..].find(is_url_end).map_or(text.len(), |length| at + length);
        Url::parse(&text[begin..end]).ok()
    })
}

/// Removes the scheme of a URL from the end of the text before its `://`.
fn without_scheme(before: &str) -> &str {
    before.trim_end_matches(|c: char| c.is_ascii_alphanumeric())
}

fn is_url_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '`' | '\'' | '<' | '>')
}

/// Replaces the user information in every URL of a text, also in a URL that follows or is part of another one. `redact_query` redacts the
/// query and fragment of a URL, with the mark before them.
pub(super) fn redact_urls(text: &str, redact_query: impl Fn(&str) -> String) -> Cow<'_, str> {
    let mut parts = text.split(AFTER_SCHEME).peekable();
    let mut kept = parts.next().unwrap_or_default().to_owned();
    if parts.peek().is_none() {
        return text.into();
    }
    while let Some(part) = parts.next() {
        let mut end = part.find(is_url_end).unwrap_or(part.len());
        if parts.peek().is_some() {
            // The part ends with the scheme of the next URL.
            end = end.min(without_scheme(part).trim_end_matches([',', ';']).len());
        }
        let (url, rest) = part.split_at(end);
        let (user, url) = url.split_at(user_information(url));
        let (host, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
        let user = if user.is_empty() { "" } else { REDACTED };
        for text in [AFTER_SCHEME, user, host, &redact_query(query), rest] {
            kept += text;
        }
    }
    kept.into()
}

/// Returns the length of the user information in a URL, which begins after the scheme; 0 if it has none. The user information ends at the
/// last `@` before the first `/`, `?` or `#`. If there is no such `@`, a password may contain one of these characters: if the host seems to
/// have a port that is not a number, the user information ends at the last `@` of the URL.
fn user_information(url: &str) -> usize {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let port = authority.rsplit_once(':').filter(|_| !authority.starts_with('['));
    let is_host = port.is_none_or(|(_, port)| port.chars().all(|digit| digit.is_ascii_digit()));
    let searched = if is_host { authority } else { url };
    authority.rfind('@').or_else(|| searched.rfind('@')).unwrap_or(0)
}

/// Redacts the values of a query and a fragment whose names indicate secrets.
pub(super) fn without_named_values(query: &str) -> String {
    let part = |part: &str| match part.split_once('=') {
        Some((name, value)) if is_secret_parameter(name) => {
            let end = value.trim_end_matches(is_separator).len();
            format!("{name}={REDACTED}{}", &value[end..])
        }
        _ => part.to_owned(),
    };
    query.split_inclusive(is_separator).map(part).collect()
}

fn is_separator(c: char) -> bool {
    matches!(c, '?' | '&' | '#' | ';')
}

#[cfg(test)]
mod tests {
    use super::super::redact;
    use super::*;

    #[test]
    fn user_information_is_left_out_of_every_url() {
        let text = "`http://u:p@a/x@y` and https://b/@me, at c://d@e:1?f, i://j?a=1&key=2 k";
        let expected = "`http://[redacted]@a/x@y` and https://b/@me, at c://[redacted]@e:1?f, i://j?a=1&key=[redacted] k";
        assert_eq!(redact(text), expected);
        for (text, expected) in [
            ("http://a,http://u:p@b", "http://a,http://[redacted]@b"),
            (
                "http://a?key=1,http://b?x=http://u:p@c",
                "http://a?key=[redacted],http://b?x=http://[redacted]@c",
            ),
            ("http://u:p/?#@w@h:1/x?key=1", "http://[redacted]@h:1/x?key=[redacted]"),
            ("http://h/#access_token=1&x=2", "http://h/#access_token=[redacted]&x=2"),
        ] {
            assert_eq!(redact(text), expected);
        }
        for text in ["a@b", "://", "http://h?", "x://y/?&"] {
            assert_eq!(redact(text), text);
        }
    }

    #[test]
    fn a_recorded_url_has_no_credentials() {
        for (url, expected) in [
            ("http://u:p@h:1/v1", "http://[redacted]@h:1/v1"),
            ("http://h/v1?abc", "http://h/v1?[redacted]"),
            ("http://h/v1?a=b&c=d#e", "http://h/v1?a=[redacted]&c=[redacted]"),
            ("http://h/@me", "http://h/@me"),
            ("http://u:p/w@h:x/", REDACTED),
            ("http://a?x=1,http://u:p@b", "http://a?x=[redacted],http://[redacted]@b"),
            ("see http://u:p@h?a=1", "see http://[redacted]@h?a=1"),
            ("data/train?.parquet", "data/train?.parquet"),
        ] {
            assert_eq!(without_credentials(url), expected);
        }
    }
}

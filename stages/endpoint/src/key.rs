//! API keys, which come from environment variables.

use std::env::VarError;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use rollpacker_stages::secret::Secrets;

use crate::AddressError;

/// Returns the authorization header with the API key from the environment variable `variable`, and adds the key and the value of the header
/// to `secrets`.
pub(crate) fn headers(variable: &str, secrets: &mut Secrets) -> Result<HeaderMap, AddressError> {
    let key = read_key(variable)?;
    secrets.add(&key);
    // A short key is not redacted on its own, but it is redacted after this prefix.
    let bearer = format!("Bearer {key}");
    secrets.add(&bearer);
    let value = HeaderValue::from_str(&bearer);
    let mut value =
        value.map_err(|_| key_error(variable, "has characters that a key cannot contain"))?;
    value.set_sensitive(true);
    Ok([(AUTHORIZATION, value)].into_iter().collect())
}

fn read_key(variable: &str) -> Result<String, AddressError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !variable.chars().all(is_part) || variable.starts_with(|c: char| c.is_ascii_digit()) {
        // The text is not repeated, since it may be the key itself.
        let reason = "`api_key_env`: expected the name of an environment variable that has the key, found a text that is not a valid name";
        return Err(AddressError::Key(reason.to_owned()));
    }
    let key = std::env::var(variable).map_err(|error| match error {
        VarError::NotPresent => key_error(variable, "with the key is not set"),
        VarError::NotUnicode(_) => key_error(variable, "with the key is not valid UTF-8"),
    })?;
    match key.trim() {
        "" => Err(key_error(variable, "with the key is empty")),
        key => Ok(key.to_owned()),
    }
}

fn key_error(variable: &str, reason: &str) -> AddressError {
    AddressError::Key(format!("the environment variable `{variable}` {reason}"))
}

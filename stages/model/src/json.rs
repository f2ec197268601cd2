//! Typed access to the values of a JSON file. Every error about a value states file, key, expected and found value.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ModelError;

/// The maximum size of a configuration, tokenizer or template file, in bytes. Tokenizers of published models have up to 40 MB.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// The JSON object that a file contains, or an object nested in it.
pub struct Object {
    path: PathBuf,
    prefix: String,
    map: Map<String, Value>,
}

impl Object {
    /// Reads the object of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a regular file, has more than 256 MiB, or is not a JSON object.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text = rollpacker_files::read(path, MAX_BYTES).map_err(ModelError::read(path))?;
        let map = serde_json::from_slice(&text)
            .map_err(|error| ModelError::Json { path: path.to_owned(), error })?;
        Ok(Self { path: path.to_owned(), prefix: String::new(), map })
    }

    /// Returns the value at `key`; `None` if the key is missing or its value is null.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns `true` if the value at `key` is null; `false` if the key is missing or has another value.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// Returns all values by key.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object"))?.clone();
        Ok(Some(Self { path: self.path.clone(), prefix: format!("{}{key}.", self.prefix), map }))
    }

    pub(crate) fn string(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.get(key)
            .map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string")))
            .transpose()
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.get(key)
            .map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false")))
            .transpose()
    }

    /// Returns the number at `key`, which must be finite and above 0; `None` if the key is absent or null.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let number = |value: &Value| value.as_f64().filter(|&x| x > 0.0 && x.is_finite());
        self.get(key)
            .map(|value| number(value).ok_or_else(|| self.wrong(key, "a number above 0")))
            .transpose()
    }

    pub(crate) fn required_number(&self, key: &str) -> Result<f64, ModelError> {
        self.number(key)?.ok_or_else(|| self.wrong(key, "a number above 0"))
    }

    /// Returns the whole number at `key`, which must be from 1 to `i32::MAX`; `None` if the key is absent or null.
    pub(crate) fn size(&self, key: &str) -> Result<Option<i64>, ModelError> {
        let size = |value: &Value| value.as_i64().filter(|&n| n > 0 && n <= i64::from(i32::MAX));
        self.get(key).map(|value| size(value).ok_or_else(|| self.wrong_size(key))).transpose()
    }

    pub(crate) fn required_size(&self, key: &str) -> Result<i64, ModelError> {
        self.size(key)?.ok_or_else(|| self.wrong_size(key))
    }

    fn wrong_size(&self, key: &str) -> ModelError {
        self.wrong(key, &format!("a whole number from 1 to {}", i32::MAX))
    }

    /// Returns the whole number at `key`, which must be from 1 to `max`; `None` if the key is absent or null. The bound rejects damaged
    /// files: memory use and integer arithmetic depend on these sizes.
    pub(crate) fn size_up_to(&self, key: &str, max: i64) -> Result<Option<i64>, ModelError> {
        let size = self.size(key)?;
        match size.filter(|&size| size > max) {
            Some(_) => Err(self.wrong(key, &format!("a whole number from 1 to {max}"))),
            None => Ok(size),
        }
    }

    pub(crate) fn required_size_up_to(&self, key: &str, max: i64) -> Result<i64, ModelError> {
        match self.size_up_to(key, max)? {
            Some(size) => Ok(size),
            None => self.required_size(key),
        }
    }

    /// Returns the number at `key`, which must be positive and within `range`; `None` if the key is absent or null.
    pub(crate) fn number_in(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ModelError> {
        let number = self.number(key)?;
        match number.filter(|number| !range.contains(number)) {
            Some(_) => {
                let (min, max) = range.into_inner();
                Err(self.wrong(key, &format!("a number from {min:?} to {max:?}")))
            }
            None => Ok(number),
        }
    }

    pub(crate) fn required_number_in(
        &self,
        key: &str,
        range: RangeInclusive<f64>,
    ) -> Result<f64, ModelError> {
        match self.number_in(key, range)? {
            Some(number) => Ok(number),
            None => self.required_number(key),
        }
    }

    /// Returns the token ids at `key`, a single id or a list, each in `0..vocab_size`; empty if the key is absent or null.
    pub(crate) fn token_ids(&self, key: &str, vocab_size: i64) -> Result<Vec<i32>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let Some(ids) = values.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>() else {
            return Err(self.wrong(key, "token ids"));
        };
        let known = |id: i64| i32::try_from(id).ok().filter(|_| (0..vocab_size).contains(&id));
        ids.into_iter().map(known).collect::<Option<_>>().ok_or_else(|| {
            self.wrong(key, &format!("token ids from 0 to {}, within vocab_size", vocab_size - 1))
        })
    }

    /// Returns the error for a key whose value is missing or not allowed. `expected` describes the allowed values.
    #[must_use]
    pub fn wrong(&self, key: &str, expected: &str) -> ModelError {
        ModelError::Key {
            path: self.path.clone(),
            key: format!("{}{key}", self.prefix),
            expected: expected.to_owned(),
            found: self.map.get(key).map_or_else(|| "nothing".to_owned(), Value::to_string),
        }
    }

    pub(crate) fn unsupported(&self, feature: impl Into<String>) -> ModelError {
        ModelError::Unsupported { path: self.path.clone(), feature: feature.into() }
    }
}

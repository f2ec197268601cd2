//! The error of an entry whose feature is off.

use rollpacker_stages::catalog::CatalogError;

/// Returns the error for the entry `name`, which needs a feature that the program was built without.
pub(crate) fn missing_feature<T>(name: &str, feature: &str) -> Result<T, CatalogError> {
    let reason =
        format!("{name} needs the feature `{feature}`, which this program was built without");
    Err(CatalogError::Start(reason))
}

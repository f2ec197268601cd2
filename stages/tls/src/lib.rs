//! TLS settings of the HTTP clients of this project.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt;

/// Returns the TLS settings of a client, for `use_preconfigured_tls` of reqwest. The crypto provider is ring. The client trusts the
/// certificates of the system, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
///
/// The provider applies to this client only. The default provider of the process is not changed.
///
/// ```
/// match rollpacker_tls::client() {
///     Ok(settings) => assert!(settings.alpn_protocols.is_empty()),
///     Err(error) => println!("this machine has no certificates: {error}"),
/// }
/// ```
///
/// # Errors
/// Returns an error if the machine has no certificates.
pub fn client() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_platform_verifier()?.with_no_client_auth())
}

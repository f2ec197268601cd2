//! TLS settings of the HTTP clients of this project.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt;

/// Returns the TLS settings of a client, for `use_preconfigured_tls` of reqwest: ring as the crypto provider, and the certificates of the
/// system, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
///
/// The provider is that of this client only. The default provider of the process belongs to the program.
///
/// ```
/// match rollpacker_tls::client() {
///     Ok(settings) => assert!(settings.alpn_protocols.is_empty()),
///     Err(error) => println!("this machine has no certificates: {error}"),
/// }
/// ```
///
/// # Errors
/// If the machine has no certificates.
pub fn client() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_platform_verifier()?.with_no_client_auth())
}

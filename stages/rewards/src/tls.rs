//! TLS of connections to servers.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt;

/// Returns the TLS settings of a client: ring as the crypto provider, and the certificates of the system, or those of `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`.
///
/// The provider is that of this client only. The default provider of the process belongs to the program that uses this crate.
///
/// # Errors
/// If the machine has no certificates.
pub fn tls() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_platform_verifier()?.with_no_client_auth())
}

//! The TLS library of connections to servers.

/// Selects ring as the TLS library of all HTTP clients of this process, unless another one is selected already.
///
/// Must be called before the first client is created: reqwest is built without a TLS library here, and panics if none is selected.
pub fn use_ring() {
    // Fails if a library is selected already, which is fine.
    drop(rustls::crypto::ring::default_provider().install_default());
}

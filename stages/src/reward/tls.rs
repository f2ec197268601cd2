//! What encrypts connections to servers.

/// Makes ring the TLS library of all HTTP clients of this process, unless another has been chosen.
///
/// To be called before the first client is made: reqwest comes without a TLS library here, and panics where none is chosen.
pub fn use_ring() {
    // It fails if there is one already, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
}

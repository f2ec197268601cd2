//! HTTP clients of a program that also depends on `rollpacker`, before and after `rollpacker` makes its own.

use rollpacker::stages::rewards::Endpoint;
use rustls::crypto::CryptoProvider;

fn main() {
    // Panics if a dependency builds reqwest without a crypto provider.
    let _before = reqwest::Client::new();
    Endpoint::new("http://127.0.0.1:9", None).expect("a client of a server without TLS");
    if let Err(error) = Endpoint::new("https://127.0.0.1:9", None) {
        println!("no client with TLS on this machine: {error}");
    }
    // Fails if a dependency has set the default crypto provider of the process.
    assert!(
        CryptoProvider::get_default().is_none(),
        "the process has a crypto provider that it did not select"
    );
    let _after = reqwest::Client::new();
    println!("the program has its own HTTP clients");
}

//! SHA-256 digests of files.

use std::fmt::Write as _;
use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(Sha256::digest(bytes).as_slice())
}

/// Returns the length and SHA-256 of the remaining input.
pub(crate) fn length_and_sha256(reader: &mut dyn Read) -> io::Result<(u64, String)> {
    let mut hashing = HashingWriter::new(io::sink());
    io::copy(reader, &mut hashing)?;
    Ok(hashing.finish())
}

/// A writer that forwards its input and computes length and SHA-256.
pub(crate) struct HashingWriter<W> {
    inner: W,
    length: u64,
    digest: Sha256,
}

impl<W: Write> HashingWriter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, length: 0, digest: Sha256::new() }
    }

    /// Returns the length and SHA-256 of the bytes written.
    pub(crate) fn finish(self) -> (u64, String) {
        (self.length, hexadecimal(self.digest.finalize().as_slice()))
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("invariant: writing to memory does not fail");
        text
    })
}

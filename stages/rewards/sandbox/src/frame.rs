//! Frames of the control socket: a length of 4 bytes in little-endian order, then JSON.

use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum size of a received frame in bytes.
const MAX_FRAME: usize = 1 << 20;

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, value)
        .expect("invariant: frames have string keys and are written to memory");
    let size = u32::try_from(bytes.len() - 4).expect("invariant: a job is less than 4 GiB");
    bytes[..4].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// Reads the next frame. Returns an error if the frame exceeds [`MAX_FRAME`], is truncated or is not the expected JSON.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut size = [0; 4];
    from.read_exact(&mut size)?;
    let size = u32::from_le_bytes(size) as usize;
    if size > MAX_FRAME {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {size} bytes exceeds the limit of {MAX_FRAME}"),
        ));
    }
    serde_json::from_slice(&read_bytes(from, size)?).map_err(io::Error::from)
}

pub(super) fn read_bytes(from: &mut impl Read, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

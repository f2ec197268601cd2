//! The TFRecord format: records with their length and checksums.

use std::io::{self, Write};

use crc::{CRC_32_ISCSI, Crc, Table};

/// CRC-32C, with a table of 1 KiB.
const CRC_32C: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);

/// Writes a record: its length in bytes and the checksum of the length, then the bytes and their checksum. Numbers are little-endian.
pub(super) fn write(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked(&length))?;
    out.write_all(bytes)?;
    out.write_all(&masked(bytes))
}

/// Returns the masked CRC-32C of `bytes`. TFRecord masks checksums, because the CRC of data that contains CRCs detects errors poorly.
fn masked(bytes: &[u8]) -> [u8; 4] {
    let crc = CRC_32C.checksum(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_standard() {
        // RFC 3720, appendix B.4: 32 bytes of zeros.
        assert_eq!(CRC_32C.checksum(&[0; 32]), 0x8a91_36aa);
        let mut record = Vec::new();
        write(&mut record, b"ab").expect("written");
        assert_eq!(record.len(), 8 + 4 + 2 + 4);
        assert_eq!((record[0], &record[12..14]), (2, &b"ab"[..]));
    }
}

//! A reader of TensorBoard's event files, with message definitions of its own.

use crc::{CRC_32_ISCSI, Crc, Table};
use prost::Message;

/// The content of an event file.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) version: String,
    /// Tag, step, seconds since 1970, and value, in the order of the file.
    pub(crate) scalars: Vec<(String, u64, f64, f32)>,
    /// Tags with a description.
    pub(crate) descriptions: Vec<(String, String)>,
}

#[derive(Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, tag = "3")]
    file_version: String,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<ScalarValue>,
}

#[derive(Message)]
struct ScalarValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

#[derive(Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
    #[prost(string, tag = "3")]
    description: String,
}

#[derive(Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
}

/// Reads a file, and asserts that its checksums are right.
pub(crate) fn read(mut bytes: &[u8]) -> Events {
    let mut events = Events::default();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let end = 12 + usize::try_from(length).expect("small");
        assert_checksum(&bytes[..8], &bytes[8..12]);
        assert_checksum(&bytes[12..end], &bytes[end..end + 4]);
        events.add(&bytes[12..end]);
        bytes = &bytes[end + 4..];
    }
    events
}

fn assert_checksum(bytes: &[u8], masked: &[u8]) {
    let crc = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI).checksum(bytes);
    let expected = crc.rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(masked, expected.to_le_bytes());
}

impl Events {
    fn add(&mut self, bytes: &[u8]) {
        let event = Event::decode(bytes).expect("an event");
        assert_eq!(event.encode_to_vec(), bytes, "it has no other fields: {event:?}");
        let Event { wall_time, step, file_version, summary } = event;
        if !file_version.is_empty() {
            self.version = file_version;
        }
        for ScalarValue { tag, simple_value, metadata } in summary.unwrap_or_default().values {
            if let Some(metadata) = metadata {
                assert_eq!(metadata.plugin.expect("a plugin").name, "scalars");
                self.descriptions.push((tag.clone(), metadata.description));
            }
            let value = simple_value.expect("a value, also if it is 0");
            self.scalars.push((tag, step.cast_unsigned(), wall_time, value));
        }
    }
}

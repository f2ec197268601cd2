//! A reader of TensorBoard's event files that shares no code with the writer.

/// The content of an event file.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) version: String,
    /// Tag, step, seconds since 1970, and value, in the order of the file.
    pub(crate) scalars: Vec<(String, u64, f64, f32)>,
    /// Tags with a description.
    pub(crate) descriptions: Vec<(String, String)>,
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
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let crc = !crc;
    let expected = crc.rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(masked, expected.to_le_bytes());
}

impl Events {
    fn add(&mut self, event: &[u8]) {
        let (mut time, mut step) = (0.0, 0);
        for (field, value) in fields(event) {
            match (field, value) {
                (1, Value::Fixed64(bits)) => time = f64::from_bits(bits),
                (2, Value::Varint(number)) => step = number,
                (3, Value::Bytes(text)) => self.version = as_text(text),
                (5, Value::Bytes(summary)) => self.add_summary(summary, step, time),
                other => panic!("unexpected field {other:?}"),
            }
        }
    }

    fn add_summary(&mut self, summary: &[u8], step: u64, time: f64) {
        for (field, value) in fields(summary) {
            let (1, Value::Bytes(value)) = (field, value) else { panic!("expected a value") };
            let (mut tag, mut scalar) = (String::new(), None);
            for (field, value) in fields(value) {
                match (field, value) {
                    (1, Value::Bytes(text)) => tag = as_text(text),
                    (2, Value::Fixed32(bits)) => scalar = Some(f32::from_bits(bits)),
                    (9, Value::Bytes(metadata)) => {
                        self.descriptions.push((tag.clone(), description(metadata)));
                    }
                    other => panic!("unexpected field {other:?}"),
                }
            }
            self.scalars.push((tag, step, time, scalar.expect("a value, also if it is 0")));
        }
    }
}

/// Returns the description in the metadata of a tag, which name the plugin of scalars, too.
fn description(metadata: &[u8]) -> String {
    let fields = fields(metadata);
    let [(1, Value::Bytes(plugin)), (3, Value::Bytes(text))] = &fields[..] else {
        panic!("unexpected metadata {fields:?}")
    };
    assert_eq!(plugin, b"\x0a\x07scalars");
    as_text(text)
}

fn as_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A value of a protocol buffer.
#[derive(Debug)]
enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Returns the fields of a message by their numbers, in order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut bytes)),
            1 => Value::Fixed64(u64::from_le_bytes(take(&mut bytes, 8).try_into().expect("8"))),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("small");
                Value::Bytes(take(&mut bytes, length))
            }
            5 => Value::Fixed32(u32::from_le_bytes(take(&mut bytes, 4).try_into().expect("4"))),
            other => panic!("no wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let [byte] = take(bytes, 1) else { panic!("one byte") };
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

//! Devices and servers.

use serde::{Deserialize, Serialize};

/// A device of a cluster and the server it is in, as its data sheet describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// What it is called.
    pub name: String,
    /// Dense bf16 peak, FLOP/s.
    pub flops: f64,
    /// Bandwidth of the device's memory, bytes/s.
    pub memory_bandwidth: f64,
    /// Memory of the device, bytes.
    pub memory: f64,
    /// Bandwidth between devices of a server in one direction, bytes/s a device.
    pub interconnect_bandwidth: f64,
    /// Devices of a server; tensor-parallel groups stay inside one.
    pub devices_per_server: u32,
}

/// Name, FLOP/s, bytes/s of memory, bytes, bytes/s between devices. Dense bf16 rates and one-directional NVLink rates of NVIDIA's data
/// sheets (SXM variants); H800 is an H100 with NVLink cut to 400 GB/s in both directions together.
const BUILT_IN: [(&str, f64, f64, f64, f64); 5] = [
    ("A100", 312e12, 2.039e12, 80e9, 300e9),
    ("H800", 989e12, 3.35e12, 80e9, 200e9),
    ("H100", 989e12, 3.35e12, 80e9, 450e9),
    ("H200", 989e12, 4.8e12, 141e9, 450e9),
    ("B200", 2250e12, 8.0e12, 180e9, 900e9),
];

impl Hardware {
    /// The hardware of that name, in servers of 8. `None` if it is not built in.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        let &(name, flops, memory_bandwidth, memory, interconnect_bandwidth) =
            BUILT_IN.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
        Some(Self {
            name: name.to_owned(),
            flops,
            memory_bandwidth,
            memory,
            interconnect_bandwidth,
            devices_per_server: 8,
        })
    }

    /// Names that [`built_in`](Self::built_in) knows.
    #[must_use]
    pub fn names() -> [&'static str; 5] {
        BUILT_IN.map(|(name, ..)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_known_by_name_in_any_case() {
        assert_eq!(Hardware::built_in("h800").unwrap().interconnect_bandwidth, 200e9);
        assert!(Hardware::names().iter().all(|name| Hardware::built_in(name).is_some()));
        assert_eq!(Hardware::built_in("H900"), None);
    }
}

//! Data sheets of devices and servers.

use serde::{Deserialize, Serialize};

/// A device of a cluster and its server, as described by its data sheet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// The name of the device, such as `H800`.
    pub name: String,
    /// Dense bf16 peak, in FLOP/s.
    pub flops: f64,
    /// Bandwidth of the device's memory, in bytes/s.
    pub memory_bandwidth: f64,
    /// Memory of the device, in bytes.
    pub memory: f64,
    /// Bandwidth between the devices of a server in one direction, in bytes/s per device.
    pub interconnect_bandwidth: f64,
    /// The number of devices of a server; tensor-parallel groups stay within a server.
    pub devices_per_server: u32,
}

/// Name, FLOP/s, memory bandwidth in bytes/s, memory in bytes, bandwidth between devices in bytes/s. Dense bf16 rates and one-directional
/// NVLink rates from NVIDIA's data sheets (SXM variants). The H800 is an H100 with NVLink reduced to 400 GB/s in both directions together.
const BUILT_IN: [(&str, f64, f64, f64, f64); 5] = [
    ("A100", 312e12, 2.039e12, 80e9, 300e9),
    ("H800", 989e12, 3.35e12, 80e9, 200e9),
    ("H100", 989e12, 3.35e12, 80e9, 450e9),
    ("H200", 989e12, 4.8e12, 141e9, 450e9),
    ("B200", 2250e12, 8.0e12, 180e9, 900e9),
];

impl Hardware {
    /// Returns the built-in hardware with this name, with 8 devices per server; `None` if there is none. Case is ignored.
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

    /// Returns the names that [`built_in`](Self::built_in) accepts.
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

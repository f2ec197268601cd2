//! The choice of a device, as recipes and options name it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A choice of device, written `auto`, `cpu`, `cuda` or `cuda:INDEX`, such as `cuda:1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// A CUDA device as with `cuda` if there is one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The first CUDA device, written `cuda`. In a run with several workers, the workers of a process use the CUDA devices in turn,
    /// beginning with the first.
    FirstCuda,
    /// A CUDA device by its index from 0, written `cuda:INDEX`.
    Cuda(usize),
}

/// The error for a text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, cpu, cuda or cuda:INDEX, found `{found}`")]
pub struct ParseDeviceError {
    /// The text that was parsed.
    pub found: String,
}

impl FromStr for DeviceChoice {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        let index = |text: &str| text.strip_prefix("cuda:").and_then(|index| index.parse().ok());
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::FirstCuda),
            _ => {
                let error = || ParseDeviceError { found: text.to_owned() };
                index(text).map(Self::Cuda).ok_or_else(error)
            }
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = ParseDeviceError;

    fn try_from(text: String) -> Result<Self, ParseDeviceError> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> Self {
        choice.to_string()
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::FirstCuda => f.write_str("cuda"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_choices_round_trip() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::FirstCuda),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap(), choice);
            assert_eq!(choice.to_string(), text);
            assert_eq!(serde_json::to_value(choice).unwrap(), text);
        }
        let error = "gpu".parse::<DeviceChoice>().unwrap_err().to_string();
        assert_eq!(error, "expected auto, cpu, cuda or cuda:INDEX, found `gpu`");
        assert!("cuda:x".parse::<DeviceChoice>().is_err());
    }
}

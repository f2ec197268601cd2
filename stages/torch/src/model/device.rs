//! The device of tensors, and the number of threads that compute on the CPU.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use tch::{Cuda, Device};

use super::TorchError;

/// A choice of device, as written in a recipe: `auto`, `cpu`, `cuda` or `cuda:1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device if there is one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The first CUDA device, written `cuda`.
    FirstCuda,
    /// A CUDA device by its index.
    Cuda(usize),
}

impl DeviceChoice {
    /// Returns the chosen device. Unless the choice is the CPU, this loads CUDA, so call it before the first tensor is created.
    ///
    /// # Errors
    /// Returns an error if a CUDA device was requested explicitly and does not exist.
    pub fn resolve(self) -> Result<Device, TorchError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if cuda_devices() > 0 => Ok(Device::Cuda(0)),
            Self::Auto => Ok(Device::Cpu),
            Self::FirstCuda => Self::Cuda(0).resolve(),
            Self::Cuda(index) if index < cuda_devices() => Ok(Device::Cuda(index)),
            Self::Cuda(_) => Err(TorchError::Device {
                choice: self.to_string(),
                reason: format!("{} CUDA device(s) usable on this machine", cuda_devices()),
            }),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = TorchError;

    fn from_str(text: &str) -> Result<Self, TorchError> {
        let index = |text: &str| text.strip_prefix("cuda:").and_then(|index| index.parse().ok());
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::FirstCuda),
            _ => index(text).map(Self::Cuda).ok_or_else(|| TorchError::Device {
                choice: text.to_owned(),
                reason: "expected auto, cpu, cuda or cuda:INDEX".to_owned(),
            }),
        }
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

/// Sets the number of threads that torch operations called from this thread may use; at least one.
///
/// OpenMP stores the number per calling thread. Threads that own an engine or a trainer should use one: on small models the threads of an
/// operation lose more time waiting for one another than they save.
pub fn set_threads_of_this_thread(threads: usize) {
    tch::set_num_threads(i32::try_from(threads.max(1)).unwrap_or(i32::MAX));
}

fn cuda_devices() -> usize {
    load_cuda();
    if Cuda::is_available() { usize::try_from(Cuda::device_count()).unwrap_or(0) } else { 0 }
}

/// Loads `libtorch_cuda.so` once, if it is next to libtorch or on the library path.
///
/// The library is not linked, so that one binary runs with and without it. Its absence is not an error.
fn load_cuda() {
    static LIBRARY: OnceLock<Option<libloading::Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: loading runs the initializers of the library, which register CUDA with the linked libtorch; torch's own Python package
        // does the same. Both libraries come from one build of PyTorch, because the loader finds the file next to libtorch. A library of
        // another build does not resolve its symbols and fails to load. The library is kept for the life of the process, so nothing that
        // it registered is unloaded.
        #[allow(unsafe_code, reason = "a shared library can only be loaded by an unsafe call")]
        let library = unsafe { libloading::Library::new("libtorch_cuda.so") };
        library.inspect_err(|error| tracing::debug!(%error, "CUDA is not loaded")).ok()
    });
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
        }
        let error = "gpu".parse::<DeviceChoice>().unwrap_err().to_string();
        assert_eq!(error, "device `gpu`: expected auto, cpu, cuda or cuda:INDEX");
    }

    #[test]
    fn a_missing_device_is_refused() {
        assert_eq!(DeviceChoice::Cpu.resolve().unwrap(), Device::Cpu);
        let error = DeviceChoice::Cuda(4096).resolve().unwrap_err().to_string();
        assert!(
            error.starts_with("device `cuda:4096`: ")
                && error.ends_with(" CUDA device(s) usable on this machine"),
            "{error}"
        );
        assert_eq!(DeviceChoice::Auto.resolve().unwrap().is_cuda(), cuda_devices() > 0);
    }
}

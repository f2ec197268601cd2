//! Where tensors live, and how many threads work on them.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use tch::{Cuda, Device};

use super::ModelError;

/// A choice of device, as a recipe spells it: `auto`, `cpu`, `cuda` or `cuda:1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device if there is one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device by its index.
    Cuda(usize),
}

impl DeviceChoice {
    /// The device. Looks for CUDA unless the choice is the CPU; call it before the first tensor is made.
    ///
    /// # Errors
    /// If a CUDA device was asked for by name and is not there.
    pub fn resolve(self) -> Result<Device, ModelError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if cuda_devices() > 0 => Ok(Device::Cuda(0)),
            Self::Auto => Ok(Device::Cpu),
            Self::Cuda(index) if index < cuda_devices() => Ok(Device::Cuda(index)),
            Self::Cuda(_) => Err(ModelError::Device {
                choice: self.to_string(),
                reason: format!("{} CUDA device(s) usable on this machine", cuda_devices()),
            }),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let index = |text: &str| text.strip_prefix("cuda:").and_then(|index| index.parse().ok());
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => index(text).map(Self::Cuda).ok_or_else(|| ModelError::Device {
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
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Lets torch operations that this thread calls use `threads` threads; at least one.
///
/// OpenMP keeps the number per calling thread. One is the number for a thread that owns an engine or a trainer: on small models the
/// threads of one operation cost more in waiting for one another than they save.
pub fn set_threads_of_this_thread(threads: usize) {
    tch::set_num_threads(i32::try_from(threads.max(1)).unwrap_or(i32::MAX));
}

fn cuda_devices() -> usize {
    load_cuda();
    if Cuda::is_available() { usize::try_from(Cuda::device_count()).unwrap_or(0) } else { 0 }
}

/// Loads `libtorch_cuda.so` if it lies beside libtorch or on the library path, once.
///
/// It is not linked, so that one binary runs with and without it; that it is absent is no error.
fn load_cuda() {
    static LIBRARY: OnceLock<Option<libloading::Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: loading runs the initialisers of the library, which register CUDA with the libtorch that is linked; torch's own
        // python package does the same. Both come from one build of PyTorch, since the loader finds the file beside libtorch, and a
        // library of another build does not resolve its symbols and is refused. It is kept for the life of the process, so nothing
        // that it registered is unloaded.
        #[allow(unsafe_code, reason = "a shared library can only be loaded by an unsafe call")]
        let library = unsafe { libloading::Library::new("libtorch_cuda.so") };
        library.inspect_err(|error| tracing::debug!(%error, "CUDA is not loaded")).ok()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_as_they_are_written() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap(), choice);
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().unwrap(), DeviceChoice::Cuda(0));
        let error = "gpu".parse::<DeviceChoice>().unwrap_err().to_string();
        assert_eq!(error, "device `gpu`: expected auto, cpu, cuda or cuda:INDEX");
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
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

//! The device of tensors, and the number of threads that compute on the CPU.

use std::sync::OnceLock;

use rollpacker_stages::device::DeviceChoice;
use tch::{Cuda, Device};

use super::TorchError;

/// Returns the chosen device. `Auto` is the first CUDA device if there is one, otherwise the CPU; `FirstCuda` is the first CUDA device.
///
/// Unless the choice is the CPU, this function loads CUDA. Call it before the first tensor is created.
///
/// # Errors
/// Returns an error if a CUDA device was requested explicitly, and the machine has no such device or CUDA cannot be used.
pub fn resolve_device(choice: DeviceChoice) -> Result<Device, TorchError> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto if cuda_devices() > 0 => Ok(Device::Cuda(0)),
        DeviceChoice::Auto => Ok(Device::Cpu),
        DeviceChoice::FirstCuda => resolve_device(DeviceChoice::Cuda(0)),
        DeviceChoice::Cuda(index) if index < cuda_devices() => Ok(Device::Cuda(index)),
        DeviceChoice::Cuda(_) => Err(TorchError::Device {
            choice,
            reason: format!("{} CUDA device(s) usable on this machine", cuda_devices()),
        }),
    }
}

/// Sets the number of threads that torch operations called from this thread may use. 0 counts as 1.
///
/// OpenMP stores the number per calling thread, so every thread that calls torch operations sets its own. On small models, 1 is fastest:
/// the threads of an operation lose more time waiting for one another than they save.
pub fn set_threads_of_this_thread(threads: usize) {
    // libtorch initializes the number of a thread once: at its first parallel operation, or when the number is read before. It then takes
    // the number that any thread set last. Reading the number here prevents a later operation from replacing the number that is set below.
    let _initialized = tch::get_num_threads();
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
    fn other_threads_do_not_change_the_threads_of_a_new_thread() {
        let count = std::thread::spawn(|| {
            set_threads_of_this_thread(1);
            std::thread::spawn(|| set_threads_of_this_thread(3)).join().unwrap();
            tch::get_num_threads()
        });
        assert_eq!(count.join().unwrap(), 1);
    }

    #[test]
    fn a_missing_device_is_refused() {
        assert_eq!(resolve_device(DeviceChoice::Cpu).unwrap(), Device::Cpu);
        let error = resolve_device(DeviceChoice::Cuda(4096)).unwrap_err().to_string();
        assert!(
            error.starts_with("device `cuda:4096`: ")
                && error.ends_with(" CUDA device(s) usable on this machine"),
            "{error}"
        );
        assert_eq!(resolve_device(DeviceChoice::Auto).unwrap().is_cuda(), cuda_devices() > 0);
    }
}

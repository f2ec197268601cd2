//! Copies values that a reader has read to tensors on the device.

use tch::{Device, Tensor};

use super::super::TorchError;
#[cfg(feature = "cuda")]
use super::pinned::{Pinned, StreamEvent};

#[derive(Debug)]
pub(super) enum Upload {
    /// Copies by torch, in the order of its stream: a copy waits for the work before it, and the thread waits for the copy.
    Torch,
    /// Copies through pinned memory, on a separate stream.
    #[cfg(feature = "cuda")]
    Pinned(Pinned),
}

/// A point in the work that was passed to torch. The weights that earlier work reads may be overwritten once the point has passed.
///
/// The default fence has already passed. It suffices on the CPU, where work is complete when torch returns, and without the feature `cuda`,
/// where torch copies in the order of its stream.
#[derive(Debug, Default)]
pub(super) struct Fence {
    #[cfg(feature = "cuda")]
    event: Option<StreamEvent>,
}

impl Upload {
    /// Returns the way to copy to `device`: `Pinned` for a CUDA device with the feature `cuda`, otherwise `Torch`. Returns an error if the
    /// CUDA driver cannot be loaded or pinned memory cannot be allocated.
    pub(super) fn to(device: Device) -> Result<Self, TorchError> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => Pinned::new(index).map(Self::Pinned),
            _ => Ok(Self::Torch),
        }
    }

    /// Returns a fence after all work that was passed to torch so far.
    pub(super) fn fence(&self) -> Result<Fence, TorchError> {
        match self {
            Self::Torch => Ok(Fence::default()),
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => Ok(Fence { event: Some(pinned.after_torch()?) }),
        }
    }

    /// Makes the following copies wait until `used` has passed.
    pub(super) fn begin(&mut self, used: &Fence) -> Result<(), TorchError> {
        match self {
            Self::Torch => {
                let _in_order = used;
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => used.event.as_ref().map_or(Ok(()), |event| pinned.wait(event)),
        }
    }

    /// Copies `values [n]`, on the CPU, into `into [n]`, contiguous float32 on the device.
    pub(super) fn copy(&mut self, values: &Tensor, into: &Tensor) -> Result<(), TorchError> {
        match self {
            Self::Torch => Ok(into.shallow_clone().f_copy_(values)?),
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => pinned.copy(values, into),
        }
    }

    /// Waits until the copies have completed.
    pub(super) fn finish(&mut self) -> Result<(), TorchError> {
        match self {
            Self::Torch => Ok(()),
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => pinned.finish(),
        }
    }
}

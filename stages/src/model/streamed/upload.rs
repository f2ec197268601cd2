//! How values that were read come into tensors on the device.

use tch::{Device, Tensor};

use super::super::ModelError;
#[cfg(feature = "cuda")]
use super::pinned::{Event, Pinned};

/// A way of values to the device.
#[derive(Debug)]
pub(super) enum Upload {
    /// By torch, in the order of its stream: a copy waits for what was asked for before it, and the thread waits for the copy.
    Torch,
    /// Through pinned memory, on a stream of its own beside torch's.
    #[cfg(feature = "cuda")]
    Pinned(Pinned),
}

/// Marks a point in the work that torch was given; weights that this work reads may be overwritten once it is past.
///
/// On the CPU work is done when torch returns. The default is past already.
#[derive(Debug, Default)]
pub(super) struct Fence {
    #[cfg(feature = "cuda")]
    event: Option<Event>,
}

impl Upload {
    /// The way to `device`.
    pub(super) fn to(device: Device) -> Result<Self, ModelError> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => Pinned::new(index).map(Self::Pinned),
            _ => Ok(Self::Torch),
        }
    }

    /// A fence after all that torch was given to do.
    pub(super) fn fence(&self) -> Result<Fence, ModelError> {
        match self {
            Self::Torch => Ok(Fence::default()),
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => Ok(Fence { event: Some(pinned.after_torch()?) }),
        }
    }

    /// Has the copies that follow wait until `used` is past.
    pub(super) fn begin(&mut self, used: &Fence) -> Result<(), ModelError> {
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
    pub(super) fn copy(&mut self, values: &Tensor, into: &Tensor) -> Result<(), ModelError> {
        match self {
            Self::Torch => Ok(into.shallow_clone().f_copy_(values)?),
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => pinned.copy(values, into),
        }
    }

    /// Waits until the copies have arrived.
    pub(super) fn finish(&mut self) -> Result<(), ModelError> {
        match self {
            Self::Torch => Ok(()),
            #[cfg(feature = "cuda")]
            Self::Pinned(pinned) => pinned.finish(),
        }
    }
}

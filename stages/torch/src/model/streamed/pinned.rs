//! Copies to a CUDA device through pinned memory, concurrent with torch's work.
//!
//! A piece is written to one of two halves of pinned memory. A separate stream copies it from there into the memory of a torch tensor,
//! while the next piece is read into the other half. For each buffer, the copies are ordered with torch's work as follows:
//!
//! - *Compute before copy.* An event is recorded on torch's stream after the last layer that used the buffer was launched
//!   ([`Pinned::after_torch`]). The copy stream waits for it before it overwrites the buffer ([`Pinned::wait`]). The host does not wait.
//! - *Copy before reuse of the pinned half.* An event is recorded after the copy. The reading thread waits for it before it writes to that
//!   half again.
//! - *Copy before compute.* The reading thread waits for the copy stream before it hands over the buffer ([`Pinned::finish`]). Kernels that
//!   are launched later, on any stream, therefore see the weights, and no tensor is freed while it is being copied into.
//!
//! tch exposes neither a handle of torch's stream nor a call to change it, so torch works on its default stream. This is the legacy default
//! stream of the device's primary context, and also the default stream of cudarc's context.
//!
//! This module compiles without CUDA and loads the driver on first use. `tests/cuda.rs` runs it on a device.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result, sys,
};
use rollpacker_stages::device::DeviceChoice;
use tch::{Device, Kind, Tensor};

use super::super::TorchError;
use super::super::checkpoint::PIECE_VALUES;

/// A stream for copies, and the pinned memory that they copy from.
#[derive(Debug)]
pub(super) struct Pinned {
    device: usize,
    context: Arc<CudaContext>,
    copies: Arc<CudaStream>,
    halves: [PinnedHalf; 2],
    /// Index of the half that is written next.
    next_half: usize,
}

#[derive(Debug)]
struct PinnedHalf {
    memory: PinnedHostSlice<f32>,
    /// The event that is recorded after each copy out of `memory`.
    copied: CudaEvent,
}

/// A point in the work of torch's stream.
#[derive(Debug)]
pub(super) struct StreamEvent(CudaEvent);

impl Pinned {
    /// Creates the copy stream and the pinned memory of CUDA device `device`.
    pub(super) fn new(device: usize) -> Result<Self, TorchError> {
        // SAFETY: loading the driver runs its initializers, as the calls below would. torch has a tensor on the device, so it did this
        // before.
        #[allow(unsafe_code, reason = "a shared library can only be loaded by an unsafe call")]
        let present = unsafe { sys::is_culib_present() };
        if !present {
            return Err(cuda_error(device, "the CUDA driver's library cannot be loaded"));
        }
        Self::on(device).map_err(|error| cuda_error(device, error))
    }

    fn on(device: usize) -> Result<Self, DriverError> {
        let context = CudaContext::new(device)?;
        let copies = context.new_stream()?;
        let halves = [PinnedHalf::new(&context)?, PinnedHalf::new(&context)?];
        Ok(Self { device, context, copies, halves, next_half: 0 })
    }

    /// Records an event after all work that was passed to torch so far.
    pub(super) fn after_torch(&self) -> Result<StreamEvent, TorchError> {
        let event = self.context.default_stream().record_event(None);
        event.map(StreamEvent).map_err(|error| cuda_error(self.device, error))
    }

    /// Makes the following copies wait until `event` has passed.
    pub(super) fn wait(&self, event: &StreamEvent) -> Result<(), TorchError> {
        self.copies.wait(&event.0).map_err(|error| cuda_error(self.device, error))
    }

    /// Copies `values [n]`, on the CPU, into `into [n]`, which must be float32 in contiguous memory of the device. `n` must not exceed
    /// [`PIECE_VALUES`]. `into` must not be dropped before [`finish`](Self::finish) returns.
    pub(super) fn copy(&mut self, values: &Tensor, into: &Tensor) -> Result<(), TorchError> {
        let values = values.f_to_kind(Kind::Float)?;
        let target = (into.device(), into.f_kind()?, into.is_contiguous(), into.numel());
        if target != (Device::Cuda(self.device), Kind::Float, true, values.numel()) {
            return Err(cuda_error(
                self.device,
                format!("a copy of {} values to {target:?}", values.numel()),
            ));
        }
        let half = &mut self.halves[self.next_half];
        self.next_half = 1 - self.next_half;
        half.fill(self.device, &values)?;
        half.send(&self.copies, into).map_err(|error| cuda_error(self.device, error))
    }

    /// Waits until the copies have completed.
    pub(super) fn finish(&self) -> Result<(), TorchError> {
        self.copies.synchronize().map_err(|error| cuda_error(self.device, error))
    }
}

impl Drop for Pinned {
    /// Waits for the copies, so that pinned memory is not freed while it is being copied from.
    fn drop(&mut self) {
        if let Err(error) = self.copies.synchronize() {
            tracing::error!(%error, device = self.device, "waiting for the copies of weights failed");
        }
    }
}

impl PinnedHalf {
    fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        // SAFETY: the memory holds no values yet. Only `send` reads it, up to the length that `fill` has written, and every bit
        // pattern is a valid float32.
        #[allow(unsafe_code, reason = "pinned memory is allocated uninitialised")]
        let memory = unsafe { context.alloc_pinned(PIECE_VALUES) }?;
        Ok(Self { memory, copied: context.new_event(None)? })
    }

    /// Writes float32 `values`, after the previous copy out of the memory has completed.
    fn fill(&mut self, device: usize, values: &Tensor) -> Result<(), TorchError> {
        self.copied.synchronize().map_err(|error| cuda_error(device, error))?;
        let memory = self.memory.as_mut_slice().map_err(|error| cuda_error(device, error))?;
        Ok(values.f_copy_data(memory, values.numel())?)
    }

    /// Starts to copy the first values of the pinned memory, as many as `into` has, to `into`.
    fn send(&self, copies: &CudaStream, into: &Tensor) -> Result<(), DriverError> {
        let memory = &self.memory.as_slice()?[..into.numel()];
        copies.context().bind_to_thread()?;
        let to = into.data_ptr().addr() as sys::CUdeviceptr;
        // SAFETY: `to` is the start of contiguous float32 values on this device, as many as `memory` has; `Pinned::copy` has checked
        // this. Neither end is freed before the copy completes: `Pinned::finish` waits for it before the tensor is handed over, and
        // `fill` and `Pinned::drop` wait before the pinned memory is written or freed. No other work touches the tensor meanwhile: the
        // copying thread owns it, and the stream has waited for torch's work on it.
        #[allow(unsafe_code, reason = "an asynchronous copy to memory that torch owns")]
        unsafe { result::memcpy_htod_async(to, memory, copies.cu_stream()) }?;
        self.copied.record(copies)
    }
}

fn cuda_error(device: usize, reason: impl ToString) -> TorchError {
    TorchError::Device { choice: DeviceChoice::Cuda(device), reason: reason.to_string() }
}

//! Copies to a CUDA device through pinned memory, beside torch's work.
//!
//! A piece goes into one of two halves of pinned memory, from where a stream of our own copies it into the memory of a torch tensor, while
//! the next piece is read into the other half. What orders the copies with torch's work, for each buffer:
//!
//! - *Compute before copy.* An event is recorded on torch's stream after the last layer that used the buffer was launched
//!   ([`Pinned::after_torch`]); our stream waits for it before it overwrites the buffer ([`Pinned::wait`]). The host does not wait.
//! - *Copy before reuse of the pinned half.* An event is recorded behind the copy; the reading thread waits for it before it writes there
//!   again.
//! - *Copy before compute.* The reading thread waits for our stream before it hands the buffer over ([`Pinned::finish`]), so that whatever
//!   is launched afterwards, on whichever stream, sees the weights; nor is a tensor freed while it is copied into.
//!
//! tch has no handle of torch's stream and no call to change it, so that torch works on its default stream: the legacy default stream
//! of the device's primary context, which is what cudarc calls the default stream of its context.
//!
//! This compiles without CUDA and looks for the driver when it is first used. It has not been run on a device yet.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DriverError, PinnedHostSlice, result, sys,
};
use tch::{Device, Kind, Tensor};

use super::super::checkpoint::PIECE;
use super::super::{DeviceChoice, ModelError};

/// A stream for copies, and the pinned memory that they come from.
#[derive(Debug)]
pub(super) struct Pinned {
    device: usize,
    context: Arc<CudaContext>,
    copies: Arc<CudaStream>,
    halves: [Half; 2],
    /// The half that is written next.
    turn: usize,
}

#[derive(Debug)]
struct Half {
    memory: PinnedHostSlice<f32>,
    /// Recorded behind the copy out of it.
    copied: CudaEvent,
}

/// A point in the work of torch's stream.
#[derive(Debug)]
pub(super) struct Event(CudaEvent);

impl Pinned {
    /// A way to CUDA device `device`.
    pub(super) fn new(device: usize) -> Result<Self, ModelError> {
        // SAFETY: loading the driver runs its initialisers, as the calls below would; torch, which has a tensor there, did so before.
        #[allow(unsafe_code, reason = "a shared library can only be loaded by an unsafe call")]
        let present = unsafe { sys::is_culib_present() };
        if !present {
            return Err(refused(device, "the CUDA driver's library cannot be loaded"));
        }
        Self::on(device).map_err(|error| refused(device, error))
    }

    fn on(device: usize) -> Result<Self, DriverError> {
        let context = CudaContext::new(device)?;
        let copies = context.new_stream()?;
        let halves = [Half::new(&context)?, Half::new(&context)?];
        Ok(Self { device, context, copies, halves, turn: 0 })
    }

    /// The point in torch's work after all that it was given.
    pub(super) fn after_torch(&self) -> Result<Event, ModelError> {
        let event = self.context.default_stream().record_event(None);
        event.map(Event).map_err(|error| refused(self.device, error))
    }

    /// Has the copies that follow wait until `event` is past.
    pub(super) fn wait(&self, event: &Event) -> Result<(), ModelError> {
        self.copies.wait(&event.0).map_err(|error| refused(self.device, error))
    }

    /// Copies `values [n]`, on the CPU, into `into [n]`, float32 in contiguous memory of the device. Both may go once
    /// [`finish`](Self::finish) has returned.
    pub(super) fn copy(&mut self, values: &Tensor, into: &Tensor) -> Result<(), ModelError> {
        let values = values.f_to_kind(Kind::Float)?;
        let place = (into.device(), into.f_kind()?, into.is_contiguous(), into.numel());
        if place != (Device::Cuda(self.device), Kind::Float, true, values.numel()) {
            return Err(refused(
                self.device,
                format!("a copy of {} values to {place:?}", values.numel()),
            ));
        }
        let half = &mut self.halves[self.turn];
        self.turn = 1 - self.turn;
        half.fill(self.device, &values)?;
        half.send(&self.copies, into).map_err(|error| refused(self.device, error))
    }

    /// Waits until the copies have arrived.
    pub(super) fn finish(&self) -> Result<(), ModelError> {
        self.copies.synchronize().map_err(|error| refused(self.device, error))
    }
}

impl Drop for Pinned {
    /// The pinned memory is freed only when nothing is copied out of it.
    fn drop(&mut self) {
        if let Err(error) = self.copies.synchronize() {
            tracing::error!(%error, device = self.device, "copies of weights did not end");
        }
    }
}

impl Half {
    fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        // SAFETY: the memory holds no values yet. It is read only by `send`, up to the length that `fill` has written, and float32 has
        // no bits that are invalid.
        #[allow(unsafe_code, reason = "pinned memory is allocated uninitialised")]
        let memory = unsafe { context.alloc_pinned(PIECE) }?;
        Ok(Self { memory, copied: context.new_event(None)? })
    }

    /// Writes float32 `values`, once the memory has been copied from.
    fn fill(&mut self, device: usize, values: &Tensor) -> Result<(), ModelError> {
        self.copied.synchronize().map_err(|error| refused(device, error))?;
        let memory = self.memory.as_mut_slice().map_err(|error| refused(device, error))?;
        Ok(values.f_copy_data(memory, values.numel())?)
    }

    /// Copies as many values as `into` has.
    fn send(&self, copies: &CudaStream, into: &Tensor) -> Result<(), DriverError> {
        let memory = &self.memory.as_slice()?[..into.numel()];
        copies.context().bind_to_thread()?;
        let to = into.data_ptr().addr() as sys::CUdeviceptr;
        // SAFETY: `to` is the start of as many contiguous float32 on this device as `memory` has; `Pinned::copy` has checked that.
        // Neither end goes before the copy is done: `Pinned::finish` waits for it before the tensor is handed over, and `fill` and
        // `Pinned::drop` before the pinned memory is written or freed. No other work touches the tensor meanwhile: the thread that
        // copies owns it, and the stream waited for torch's work on it.
        #[allow(unsafe_code, reason = "an asynchronous copy to memory that torch owns")]
        unsafe { result::memcpy_htod_async(to, memory, copies.cu_stream()) }?;
        self.copied.record(copies)
    }
}

fn refused(device: usize, reason: impl ToString) -> ModelError {
    ModelError::Device {
        choice: DeviceChoice::Cuda(device).to_string(),
        reason: reason.to_string(),
    }
}

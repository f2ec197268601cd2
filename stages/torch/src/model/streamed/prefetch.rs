//! The thread that reads the next layers while a layer computes.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::super::device::set_threads_of_this_thread;
use super::super::layer::Layer;
use super::super::{ModelError, TorchError};
use super::reader::Reader;
use super::upload::Fence;

/// The handle to the reading thread. It sends empty buffers and receives filled buffers, cycling through the streamed layers in order.
///
/// A buffer belongs to one thread at a time, so no locks are needed. Tasks and results have the same order, so the front of `requested` is
/// always the layer of the next result. Dropping waits for the layer that is being read.
#[derive(Debug)]
pub(super) struct Prefetch {
    /// The channel of empty buffers. Closing it ends the thread.
    empty: Option<Sender<ReadTask>>,
    /// The channel of filled buffers. It is closed first, so that the thread does not process the remaining queue.
    full: Option<Receiver<Filled>>,
    thread: Option<JoinHandle<()>>,
    folder: PathBuf,
    /// The indices of the streamed layers, in the order of the network.
    order: Vec<usize>,
    /// Index in `order` of the layer for the next empty buffer.
    next: usize,
    /// The layers that were requested and not yet taken, in order.
    requested: VecDeque<usize>,
}

/// A layer to read, and the buffer to read it into once the fence `used` has passed.
struct ReadTask {
    layer: usize,
    buffer: Layer,
    used: Fence,
}

struct Filled {
    buffer: Layer,
    outcome: Result<(), TorchError>,
}

impl Prefetch {
    /// Starts a thread that reads the first layers of `order` into `buffers`, each after the fence of its buffer has passed.
    pub(super) fn start(
        reader: Reader,
        order: Vec<usize>,
        buffers: Vec<(Layer, Fence)>,
    ) -> Result<Self, TorchError> {
        let folder = reader.folder().to_owned();
        let (empty, tasks) = channel();
        let (filled, full) = channel();
        let thread = std::thread::Builder::new()
            .name("weights".to_owned())
            .spawn(move || read_layers(reader, &tasks, &filled))
            .map_err(ModelError::read(&folder))?;
        let mut prefetch = Self {
            empty: Some(empty),
            full: Some(full),
            thread: Some(thread),
            folder,
            order,
            next: 0,
            requested: VecDeque::new(),
        };
        for (buffer, used) in buffers {
            prefetch.return_buffer(buffer, used);
        }
        Ok(prefetch)
    }

    /// Runs `work` on layer `index` after it has been read, and returns its buffer to the thread. `work` also returns the fence after
    /// which the buffer may be overwritten.
    ///
    /// # Errors
    /// Returns an error if the layer could not be read; the next call for this layer reads it again. Also returns an error if `work` has no
    /// fence or the thread has ended.
    pub(super) fn run<T>(
        &mut self,
        index: usize,
        work: impl FnOnce(&Layer) -> (T, Result<Fence, TorchError>),
    ) -> Result<T, TorchError> {
        let layer = self.take(index)?;
        let (done, used) = work(&layer);
        // Without a fence, the result of `work` is discarded, so that the buffer may be overwritten at once. A buffer that is not returned
        // would leave too few results for the layers that are requested.
        let (used, failed) = match used {
            Ok(used) => (used, None),
            Err(error) => (Fence::default(), Some(error)),
        };
        self.return_buffer(layer, used);
        failed.map_or(Ok(done), Err)
    }

    /// Removes and returns the buffer with layer `index`, waiting until the layer has been read. Returns an error as [`run`](Self::run)
    /// does.
    fn take(&mut self, index: usize) -> Result<Layer, TorchError> {
        if self.requested.front() != Some(&index) {
            self.restart_at(index)?;
        }
        let Filled { buffer, outcome } = self.receive()?;
        if let Err(error) = outcome {
            self.return_buffer(buffer, Fence::default());
            return Err(error);
        }
        Ok(buffer)
    }

    /// Returns a buffer to the thread, which reads the next layer into it once `used` has passed.
    fn return_buffer(&mut self, buffer: Layer, used: Fence) {
        let layer = self.order[self.next];
        self.next = (self.next + 1) % self.order.len();
        self.requested.push_back(layer);
        if let Some(empty) = &self.empty {
            // A thread that has ended is detected when its result is received.
            let _gone = empty.send(ReadTask { layer, buffer, used });
        }
    }

    /// Returns the number of buffers that were sent to the thread and have not been taken since, filled buffers included.
    pub(super) fn buffers(&self) -> usize {
        self.requested.len()
    }

    #[cfg(test)]
    pub(super) fn requested(&self) -> impl Iterator<Item = usize> {
        self.requested.iter().copied()
    }

    /// Waits until the requested layers have been read, ends the thread, and returns its buffers.
    pub(super) fn into_buffers(mut self) -> Vec<Layer> {
        let mut buffers = Vec::new();
        while !self.requested.is_empty()
            && let Ok(filled) = self.receive()
        {
            buffers.push(filled.buffer);
        }
        buffers
    }

    /// Restarts the order at layer `index`, discarding the layers that were read ahead.
    ///
    /// This happens when a pass was aborted and the next one starts at another layer, and after a failed read.
    fn restart_at(&mut self, index: usize) -> Result<(), TorchError> {
        let mut buffers = Vec::new();
        while !self.requested.is_empty() {
            buffers.push(self.receive()?.buffer);
        }
        self.next = self.order.iter().position(|layer| *layer == index).unwrap_or(0);
        for buffer in buffers {
            self.return_buffer(buffer, Fence::default());
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Filled, TorchError> {
        self.requested.pop_front();
        let filled = self.full.as_ref().and_then(|full| full.recv().ok());
        filled.ok_or_else(|| {
            let ended =
                std::io::Error::other("the thread that reads the weights ended unexpectedly");
            ModelError::read(&self.folder)(ended).into()
        })
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // With the results closed first, the thread ends after its current layer instead of processing the queued tasks.
        self.full = None;
        self.empty = None;
        if let Some(thread) = self.thread.take() {
            let _panic = thread.join();
        }
    }
}

/// Runs the thread until one of the channels is closed.
fn read_layers(mut reader: Reader, tasks: &Receiver<ReadTask>, filled: &Sender<Filled>) {
    set_threads_of_this_thread(1);
    for ReadTask { layer, buffer, used } in tasks {
        let outcome = reader.read_layer(layer, &buffer, &used);
        if filled.send(Filled { buffer, outcome }).is_err() {
            return;
        }
    }
}

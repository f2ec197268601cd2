//! Reads layers into memory that is already allocated.

use std::path::Path;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::super::checkpoint::{Checkpoint, Scratch};
use super::super::layer::Layer;
use super::super::{TorchError, layout};
use super::upload::{Fence, Upload};

/// A reader of a model's files, with its own buffers. Each thread has its own reader.
#[derive(Debug)]
pub(super) struct Reader {
    checkpoint: Arc<Checkpoint>,
    scratch: Scratch,
    upload: Upload,
}

impl Reader {
    /// Creates a reader of `checkpoint` into tensors on `device`.
    pub(super) fn new(checkpoint: Arc<Checkpoint>, device: Device) -> Result<Self, TorchError> {
        Ok(Self { checkpoint, scratch: Scratch::default(), upload: Upload::to(device)? })
    }

    pub(super) fn folder(&self) -> &Path {
        self.checkpoint.folder()
    }

    /// Returns a fence after all work that was passed to torch so far.
    pub(super) fn fence(&self) -> Result<Fence, TorchError> {
        self.upload.fence()
    }

    /// Overwrites the weights of `buffer` with the weights of layer `index`, after `used` has passed.
    ///
    /// All copies have completed when this method returns, even if a read fails.
    pub(super) fn read_layer(
        &mut self,
        index: usize,
        buffer: &Layer,
        used: &Fence,
    ) -> Result<(), TorchError> {
        let prefix = layout::layer_prefix(index as i64);
        let parameters = buffer.parameters();
        let parameters =
            parameters.iter().map(|(name, tensor)| (format!("{prefix}{name}"), *tensor));
        self.read_all(parameters, used)
    }

    /// Reads each parameter by its name into its tensor, after `used` has passed, as [`read_layer`](Self::read_layer) does.
    pub(super) fn read_all<'a>(
        &mut self,
        parameters: impl Iterator<Item = (impl AsRef<str>, &'a Tensor)>,
        used: &Fence,
    ) -> Result<(), TorchError> {
        self.upload.begin(used)?;
        let mut read = Ok(());
        for (name, tensor) in parameters {
            read = self.read(name.as_ref(), tensor);
            if read.is_err() {
                break;
            }
        }
        self.upload.finish()?;
        read
    }

    fn read(&mut self, name: &str, parameter: &Tensor) -> Result<(), TorchError> {
        let flat = parameter.f_view([-1])?;
        let upload = &mut self.upload;
        self.checkpoint.read(name, &mut self.scratch, &mut |first, values| {
            upload.copy(values, &flat.f_narrow(0, first as i64, values.size1()?)?)
        })
    }
}

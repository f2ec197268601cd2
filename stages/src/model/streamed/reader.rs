//! Reads layers into memory that is there already.

use std::path::Path;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::super::checkpoint::{Checkpoint, Scratch};
use super::super::layer::Layer;
use super::super::{ModelError, layout};
use super::upload::{Fence, Upload};

/// A reader of a model's files, with the memory that reading takes. Each thread has its own.
#[derive(Debug)]
pub(super) struct Reader {
    checkpoint: Arc<Checkpoint>,
    scratch: Scratch,
    upload: Upload,
}

impl Reader {
    /// A reader of `checkpoint` into tensors on `device`.
    pub(super) fn new(checkpoint: Arc<Checkpoint>, device: Device) -> Result<Self, ModelError> {
        Ok(Self { checkpoint, scratch: Scratch::default(), upload: Upload::to(device)? })
    }

    /// The folder that is read.
    pub(super) fn folder(&self) -> &Path {
        self.checkpoint.folder()
    }

    /// A fence after all that torch was given to do.
    pub(super) fn fence(&self) -> Result<Fence, ModelError> {
        self.upload.fence()
    }

    /// Overwrites the weights of `buffer` by those of layer `index`, once what `used` stands for is done. They are there when it
    /// returns, whatever it returns: nothing is under way then.
    pub(super) fn read_layer(
        &mut self,
        index: usize,
        buffer: &Layer,
        used: &Fence,
    ) -> Result<(), ModelError> {
        let prefix = layout::layer_prefix(index as i64);
        let parameters = buffer.parameters();
        let parameters =
            parameters.iter().map(|(name, tensor)| (format!("{prefix}{name}"), *tensor));
        self.read_all(parameters, used)
    }

    /// As [`read_layer`](Self::read_layer), for parameters by their names.
    pub(super) fn read_all<'a>(
        &mut self,
        parameters: impl Iterator<Item = (impl AsRef<str>, &'a Tensor)>,
        used: &Fence,
    ) -> Result<(), ModelError> {
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

    fn read(&mut self, name: &str, parameter: &Tensor) -> Result<(), ModelError> {
        let flat = parameter.f_view([-1])?;
        let upload = &mut self.upload;
        self.checkpoint.read(name, &mut self.scratch, &mut |first, values| {
            upload.copy(values, &flat.f_narrow(0, first as i64, values.size1()?)?)
        })
    }
}

//! Tensors in the files of [`rollpacker_model::tensor_file`].

use std::borrow::Cow;
use std::io;

use rollpacker_model::tensor_file::{Stored, TensorFile};
use safetensors::Dtype;
use tch::{Device, Kind, TchError, Tensor};

use super::TorchError;

/// A float32 or float64 tensor that is written to a file.
pub(crate) struct StoredTensor(pub(crate) Tensor);

impl Stored for StoredTensor {
    fn dtype(&self) -> io::Result<Dtype> {
        dtype(&self.0).map_err(io::Error::other)
    }

    fn shape(&self) -> Vec<usize> {
        shape(&self.0)
    }

    fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        bytes(&self.0).map(Cow::Owned).map_err(|error| io::Error::other(TorchError::from(error)))
    }
}

/// Checks that the file has a tensor `name` with the type and shape of `like`. Returns an error if it does not.
pub(crate) fn check_like(file: &TensorFile, name: &str, like: &Tensor) -> Result<(), TorchError> {
    file.check(name, dtype(like)?, &shape(like))?;
    Ok(())
}

/// Reads tensor `name` to the CPU. Returns an error if the file has no such tensor with the type and shape of `like`.
pub(crate) fn read_like(
    file: &TensorFile,
    name: &str,
    like: &Tensor,
) -> Result<Tensor, TorchError> {
    let bytes = file.read(name, dtype(like)?, &shape(like))?;
    Ok(Tensor::f_from_data_size(&bytes, &like.size(), like.kind())?)
}

fn dtype(tensor: &Tensor) -> Result<Dtype, TorchError> {
    match tensor.kind() {
        Kind::Float => Ok(Dtype::F32),
        Kind::Double => Ok(Dtype::F64),
        other => Err(TorchError::Torch {
            reason: format!("tensors of type {other:?} cannot be written to a file"),
        }),
    }
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().iter().map(|&size| size as usize).collect()
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>, TchError> {
    let values = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    let mut bytes = vec![0; values.numel() * values.kind().elt_size_in_bytes()];
    values.f_copy_data_u8(&mut bytes, values.numel())?;
    Ok(bytes)
}

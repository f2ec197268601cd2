//! Numbers of tensors as slices, for the kernels of this crate.

use std::borrow::Cow;

use tch::{Device, Kind, TchError, Tensor};

/// Returns the numbers of a float32 tensor in row-major order; copies them unless they are contiguous in the memory of the host.
///
/// Nothing may write to the tensor while the slice is in use. The activations of a forward pass meet this condition: they are never written
/// to after the operation that creates them.
pub(crate) fn floats(tensor: &Tensor) -> Result<Cow<'_, [f32]>, TchError> {
    let count = tensor.numel();
    let in_place =
        tensor.device() == Device::Cpu && tensor.kind() == Kind::Float && tensor.is_contiguous();
    if !in_place || count == 0 {
        let mut floats = vec![0.0; count];
        tensor.f_copy_data(&mut floats, count)?;
        return Ok(floats.into());
    }
    // SAFETY: the tensor has `count` float32 in one piece at this address, which stay allocated while it is borrowed. Callers pass tensors
    // that nothing writes to meanwhile.
    #[allow(unsafe_code, reason = "tch has no safe access to the memory of a tensor")]
    let floats = unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), count) };
    Ok(floats.into())
}

/// Returns the tensor as contiguous float32 in the memory of the host, without a copy if it is there already.
pub(crate) fn to_host(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()
}

/// Creates a float32 tensor of size `size` on the CPU, calls `write` with its numbers, and returns it. The numbers start as a copy of
/// `start`, broadcast to the size, or as zeros if `start` is `None`. `write` is not called if the tensor has no elements.
pub(crate) fn create_tensor(
    size: &[i64],
    start: Option<&Tensor>,
    write: impl FnOnce(&mut [f32]),
) -> Result<Tensor, TchError> {
    let mut tensor = Tensor::f_empty(size, (Kind::Float, Device::Cpu))?;
    match start {
        Some(start) => tensor.f_copy_(start)?,
        None => drop(tensor.f_zero_()?),
    }
    let count = tensor.numel();
    if count > 0 {
        // SAFETY: a tensor from `empty` is contiguous and has memory of its own, of `count` float32, which are initialized. No other
        // handle to it exists until this function returns.
        #[allow(unsafe_code, reason = "tch has no safe access to the memory of a tensor")]
        let floats =
            unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), count) };
        write(floats);
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_row_major_order() {
        let matrix = Tensor::from_slice(&[1_f32, 2.0, 3.0, 4.0]).view([2, 2]);
        assert!(matches!(floats(&matrix).unwrap(), Cow::Borrowed([1.0, 2.0, 3.0, 4.0])));
        assert_eq!(*floats(&matrix.transpose(0, 1)).unwrap(), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(*floats(&matrix.narrow(0, 1, 1)).unwrap(), [3.0, 4.0]);
        assert_eq!(*floats(&matrix.narrow(0, 0, 0)).unwrap(), [0.0; 0]);
        assert!(floats(&matrix.to_kind(Kind::Double)).is_err());
    }

    #[test]
    fn the_start_is_copied_before_it_is_written_to() {
        let row = Tensor::from_slice(&[1_f32, 2.0]);
        let sum = create_tensor(&[2, 2], Some(&row), |floats| floats[1] += 0.5).unwrap();
        assert_eq!(*floats(&sum).unwrap(), [1.0, 2.5, 1.0, 2.0]);
        assert_eq!(*floats(&create_tensor(&[2], None, |_| {}).unwrap()).unwrap(), [0.0; 2]);
        assert_eq!(*floats(&row).unwrap(), [1.0, 2.0]);
    }
}

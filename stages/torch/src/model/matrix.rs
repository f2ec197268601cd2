//! Weights packed for matrix products.
//!
//! On a CPU, libtorch reorders the weights at every call, which costs more than the product itself for the few rows of a decode iteration.
//! This module reorders the weights once. Where the kernel of this crate does not run, such as on a CUDA device, libtorch multiplies, and
//! packing only stacks and rounds the weights.

mod kernel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rollpacker_stages::train::config::Precision;
use tch::{Device, Kind, TchError, Tensor};

use self::kernel::{MatrixKernel, Panels};
use super::host;

/// The packed weights of a linear map.
#[derive(Debug)]
pub(crate) struct PackedMatrix(Form);

#[derive(Debug)]
enum Form {
    /// Reordered weights on a CPU.
    Panels(Panels, MatrixKernel),
    /// Weights `[outputs, inputs]` of type float32 or bfloat16, for products by libtorch. A tensor can be sent to another thread but not
    /// shared with it, hence the lock.
    Tensor(Mutex<Tensor>),
}

/// The packed matrices of a model: those of its layers in order, then the output head.
pub(crate) type PackedMatrices = Vec<Arc<PackedMatrix>>;

/// The packed forms of the weights of a policy. Clones share them.
///
/// The list has weak references only. Decoders keep the packed matrices in memory, so that the matrices are freed with the last decoder
/// that uses them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PackedForms(Arc<Mutex<Vec<PackedForm>>>);

/// Packed matrices on a device, rounded to a precision.
#[derive(Debug)]
pub(crate) struct PackedForm {
    pub(crate) device: Device,
    pub(crate) precision: Precision,
    pub(crate) matrices: Weak<PackedMatrices>,
}

impl PackedForms {
    /// Locks the list. A decoder that packs the weights holds the lock meanwhile, so that others wait for its matrices.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<PackedForm>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PackedMatrix {
    /// Packs the float32 matrices `parts [outputs, inputs]`, stacked row-wise and rounded to `precision`. A single matrix that is neither
    /// reordered nor rounded is not copied.
    pub(crate) fn new(parts: &[Tensor], precision: Precision) -> Result<Self, TchError> {
        let weight = match parts {
            [single] => single.shallow_clone(),
            parts => Tensor::f_cat(parts, 0)?,
        };
        let (outputs, inputs) = weight.size2()?;
        let usable = weight.device() == Device::Cpu && outputs > 0 && inputs > 0;
        if let Some(kernel) = MatrixKernel::detect().filter(|_| usable) {
            let panels = Panels::new(&host::floats(&weight)?, inputs as usize, precision);
            return Ok(Self(Form::Panels(panels, kernel)));
        }
        Self::for_libtorch(&weight, precision)
    }

    /// Keeps `weight [outputs, inputs]`, rounded to `precision`, for products by libtorch.
    fn for_libtorch(weight: &Tensor, precision: Precision) -> Result<Self, TchError> {
        let kind = match precision {
            Precision::Float32 => Kind::Float,
            Precision::Bfloat16 => Kind::BFloat16,
        };
        Ok(Self(Form::Tensor(Mutex::new(weight.f_detach()?.f_to_kind(kind)?))))
    }

    /// Returns `start + x * weight^T` for `x [rows, inputs]`. `start` is broadcast to `[rows, outputs]`; `None` counts as zero. Where
    /// libtorch multiplies rounded weights, it rounds `x` and the product as well.
    pub(crate) fn product(&self, start: Option<&Tensor>, x: &Tensor) -> Result<Tensor, TchError> {
        match &self.0 {
            Form::Panels(panels, kernel) => {
                let size = [x.size2()?.0, panels.outputs as i64];
                let x = host::floats(x)?;
                host::create_tensor(&size, start, |sums| kernel.add_product(&x, panels, sums))
            }
            Form::Tensor(weight) => {
                let weight = weight.lock().unwrap_or_else(PoisonError::into_inner).shallow_clone();
                let (kind, exact) = (weight.f_kind()?, x.f_kind()?);
                if let Some(start) = start.filter(|_| kind == exact) {
                    return start.f_addmm(x, &weight.f_transpose(0, 1)?);
                }
                let product = x.f_to_kind(kind)?.f_linear::<&Tensor>(&weight, None)?;
                match start {
                    // Adding promotes the product to the kind of `start`.
                    Some(start) => product.f_add(start),
                    None => product.f_to_kind(exact),
                }
            }
        }
    }

    /// Returns `true` if the weights are reordered on a CPU.
    pub(crate) fn is_on_host(&self) -> bool {
        matches!(self.0, Form::Panels(..))
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel_threads::tests::on_threads;
    use super::*;

    /// Returns a matrix of pseudorandom numbers around 0.
    fn matrix(rows: i64, columns: i64, seed: i64) -> Tensor {
        let angles =
            Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)) * (seed as f64 + 0.7);
        angles.sin().view([rows, columns])
    }

    /// Packs a matrix. Returns `None` if no kernel of this crate runs here.
    fn packed(weight: &Tensor, precision: Precision) -> Option<PackedMatrix> {
        let packed = PackedMatrix::new(&[weight.shallow_clone()], precision).unwrap();
        Some(packed).filter(PackedMatrix::is_on_host)
    }

    #[test]
    fn products_are_those_of_libtorch() {
        for (outputs, inputs) in [(1, 1), (32, 8), (33, 7), (100, 300), (64, 1536)] {
            let (weight, bias) = (matrix(outputs, inputs, 1), matrix(1, outputs, 2));
            let Some(packed) = packed(&weight, Precision::Float32) else { return };
            for rows in [1, 3, 4, 12, 17, 97, 200] {
                let (x, residual) = (matrix(rows, inputs, 3), matrix(rows, outputs, 4));
                let expected = x.matmul(&weight.tr());
                let close = |found: Tensor, expected: &Tensor| {
                    assert!(
                        found.allclose(expected, 1e-4, 1e-4, false),
                        "{outputs} {inputs} {rows}"
                    );
                };
                close(packed.product(None, &x).unwrap(), &expected);
                close(packed.product(Some(&bias), &x).unwrap(), &(&expected + &bias));
                close(packed.product(Some(&residual), &x).unwrap(), &(&expected + &residual));
            }
        }
    }

    #[test]
    fn bfloat16_rounds_the_weights_only() {
        for (outputs, inputs) in [(33, 7), (100, 300)] {
            let weight = matrix(outputs, inputs, 1);
            let rounded = weight.to_kind(Kind::BFloat16).to_kind(Kind::Float);
            let Some(rounded) = packed(&rounded, Precision::Float32) else { return };
            let Some(packed) = packed(&weight, Precision::Bfloat16) else { return };
            for rows in [1, 13, 200] {
                let x = matrix(rows, inputs, 3);
                let (found, expected) = (packed.product(None, &x), rounded.product(None, &x));
                assert_eq!(found.unwrap(), expected.unwrap(), "{outputs} {inputs} {rows}");
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_every_batch() {
        let Some(packed) = packed(&matrix(70, 90, 1), Precision::Float32) else { return };
        let x = matrix(130, 90, 2);
        let all = packed.product(None, &x).unwrap();
        for (start, rows) in [(0, 1), (5, 4), (90, 12), (3, 101), (129, 1)] {
            let part = packed.product(None, &x.narrow(0, start, rows)).unwrap();
            assert_eq!(part, all.narrow(0, start, rows), "{start} {rows}");
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let Some(packed) = packed(&matrix(1000, 700, 1), Precision::Float32) else { return };
        for rows in [1, 13, 100, 700] {
            let (x, bias) = (matrix(rows, 700, 2), matrix(1, 1000, 3));
            let alone = packed.product(Some(&bias), &x).unwrap();
            let packed = &packed;
            let together = on_threads(3, move || packed.product(Some(&bias), &x).unwrap());
            assert_eq!(together, alone, "{rows} rows");
        }
    }

    #[test]
    fn stacked_matrices_are_one_matrix() {
        let (first, second, x) = (matrix(5, 30, 1), matrix(34, 30, 2), matrix(7, 30, 3));
        let of = |parts: &[Tensor]| PackedMatrix::new(parts, Precision::Float32).unwrap();
        let whole = of(&[Tensor::cat(&[&first, &second], 0)]);
        let stacked = of(&[first, second]);
        assert_eq!(stacked.product(None, &x).unwrap(), whole.product(None, &x).unwrap());
    }

    #[test]
    fn products_by_libtorch_start_from_a_row_or_a_matrix() {
        let (weight, x) = (matrix(33, 70, 1), matrix(5, 70, 2));
        let packed = PackedMatrix::for_libtorch(&weight, Precision::Float32).unwrap();
        let product = x.matmul(&weight.tr());
        assert_eq!(packed.product(None, &x).unwrap(), product);
        for rows in [1, 5] {
            let start = matrix(rows, 33, 3);
            let found = packed.product(Some(&start), &x).unwrap();
            assert!(found.allclose(&(&product + &start), 1e-5, 1e-5, false), "{rows}");
        }
    }

    #[test]
    fn rounded_weights_are_multiplied_in_bfloat16_and_added_in_float32() {
        let (weight, x, start) = (matrix(33, 70, 1), matrix(5, 70, 2), matrix(5, 33, 3));
        let rounded = |x: &Tensor| x.to_kind(Kind::BFloat16);
        let product = rounded(&x).matmul(&rounded(&weight).tr()).to_kind(Kind::Float);
        let packed = PackedMatrix::for_libtorch(&weight, Precision::Bfloat16).unwrap();
        assert_eq!(packed.product(None, &x).unwrap(), product);
        assert_eq!(packed.product(Some(&start), &x).unwrap(), product + start);
    }
}

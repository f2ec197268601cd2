//! Weights packed for matrix products, once per policy for all instances of an engine.
//!
//! On a CPU, libtorch reorders the weights at every call, which costs more than the product itself for the few rows of a decode iteration.
//! This module reorders the weights once. Where the kernel of this crate does not run, such as on a CUDA device, libtorch multiplies, and
//! weights are packed only if they are rounded.

mod kernel;

use std::sync::{Arc, Mutex, PoisonError};

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
    /// Rounded weights `[outputs, inputs]`, for products by libtorch. A tensor can be sent to another thread but not shared with it, hence
    /// the lock.
    Rounded(Mutex<Tensor>),
}

/// The packed weights of a policy, shared by the decoders that load the policy. The first decoder that needs the packed weights creates
/// them. Clones share the packed weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPacking(Arc<Mutex<Option<PackedPolicy>>>);

/// The packed weights of a policy, and the precision of each weight.
#[derive(Debug)]
struct PackedPolicy {
    precisions: Vec<Precision>,
    matrices: PackedMatrices,
}

/// The packed form of each weight; `None` for a weight that products use unpacked.
type PackedMatrices = Vec<Option<Arc<PackedMatrix>>>;

impl PackedMatrix {
    /// Packs `weight [outputs, inputs]`, rounded to `precision`. Returns `None` if packing saves nothing: the weight is not rounded, and it
    /// is not on the CPU, has no elements, or the processor lacks the instructions for the kernel.
    fn new(weight: &Tensor, precision: Precision) -> Result<Option<Self>, TchError> {
        let (outputs, inputs) = weight.size2()?;
        let usable = weight.device() == Device::Cpu && outputs > 0 && inputs > 0;
        if let Some(kernel) = MatrixKernel::detect().filter(|_| usable) {
            let panels = Panels::new(&host::floats(weight)?, inputs as usize, precision);
            return Ok(Some(Self(Form::Panels(panels, kernel))));
        }
        let rounded = || weight.f_detach()?.f_to_kind(Kind::BFloat16);
        match precision {
            Precision::Float32 => Ok(None),
            Precision::Bfloat16 => Ok(Some(Self(Form::Rounded(Mutex::new(rounded()?))))),
        }
    }

    /// Returns `start + x * weight^T` for `x [rows, inputs]`. `start` is broadcast to `[rows, outputs]`; `None` counts as zero.
    pub(crate) fn product(&self, start: Option<&Tensor>, x: &Tensor) -> Result<Tensor, TchError> {
        match &self.0 {
            Form::Panels(panels, kernel) => {
                let size = [x.size2()?.0, panels.outputs as i64];
                let x = host::floats(x)?;
                host::create_tensor(&size, start, |sums| kernel.add_product(&x, panels, sums))
            }
            Form::Rounded(weight) => {
                let weight = weight.lock().unwrap_or_else(PoisonError::into_inner).shallow_clone();
                let product = x.f_to_kind(weight.f_kind()?)?.f_linear::<&Tensor>(&weight, None)?;
                match start {
                    // Adding promotes the product to the kind of `start`.
                    Some(start) => product.f_add(start),
                    None => product.f_to_kind(x.f_kind()?),
                }
            }
        }
    }

    /// Returns `true` if the weights are reordered on a CPU.
    pub(crate) fn is_on_host(&self) -> bool {
        matches!(self.0, Form::Panels(..))
    }
}

impl SharedPacking {
    /// Returns the packed form of each of `weights`, which must be the weights of the policy. The matrices that the first call packs are
    /// shared. A call with other precisions packs the weights again, for its caller only.
    pub(crate) fn of(&self, weights: &[(&Tensor, Precision)]) -> Result<PackedMatrices, TchError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let precisions: Vec<Precision> = weights.iter().map(|(_, precision)| *precision).collect();
        if let Some(packed) = shared.as_ref().filter(|packed| packed.precisions == precisions) {
            return Ok(packed.matrices.clone());
        }
        let packed = weights.iter().map(|(weight, precision)| {
            Ok::<_, TchError>(PackedMatrix::new(weight, *precision)?.map(Arc::new))
        });
        let matrices: PackedMatrices = packed.collect::<Result<_, _>>()?;
        shared.get_or_insert_with(|| PackedPolicy { precisions, matrices: matrices.clone() });
        Ok(matrices)
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_model::ModelConfig;

    use super::super::Decoder;
    use super::super::kernel_threads::tests::on_threads;
    use super::*;

    /// Pseudorandom numbers around 0.
    fn matrix(rows: i64, columns: i64, seed: i64) -> Tensor {
        let angles =
            Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)) * (seed as f64 + 0.7);
        angles.sin().view([rows, columns])
    }

    fn packed(weight: &Tensor) -> Option<PackedMatrix> {
        PackedMatrix::new(weight, Precision::Float32).unwrap()
    }

    #[test]
    fn products_are_those_of_libtorch() {
        for (outputs, inputs) in [(1, 1), (32, 8), (33, 7), (100, 300), (64, 1536)] {
            let (weight, bias) = (matrix(outputs, inputs, 1), matrix(1, outputs, 2));
            let Some(packed) = packed(&weight) else { return };
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
            let Some(rounded) = packed(&rounded) else { return };
            let packed = PackedMatrix::new(&weight, Precision::Bfloat16).unwrap().unwrap();
            for rows in [1, 13, 200] {
                let x = matrix(rows, inputs, 3);
                let (found, expected) = (packed.product(None, &x), rounded.product(None, &x));
                assert_eq!(found.unwrap(), expected.unwrap(), "{outputs} {inputs} {rows}");
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_every_batch() {
        let Some(packed) = packed(&matrix(70, 90, 1)) else { return };
        let x = matrix(130, 90, 2);
        let all = packed.product(None, &x).unwrap();
        for (start, rows) in [(0, 1), (5, 4), (90, 12), (3, 101), (129, 1)] {
            let part = packed.product(None, &x.narrow(0, start, rows)).unwrap();
            assert_eq!(part, all.narrow(0, start, rows), "{start} {rows}");
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let Some(packed) = packed(&matrix(1000, 700, 1)) else { return };
        for rows in [1, 13, 100, 700] {
            let (x, bias) = (matrix(rows, 700, 2), matrix(1, 1000, 3));
            let alone = packed.product(Some(&bias), &x).unwrap();
            let packed = &packed;
            let together = on_threads(3, move || packed.product(Some(&bias), &x).unwrap());
            assert_eq!(together, alone, "{rows} rows");
        }
    }

    #[test]
    fn a_packed_decoder_computes_the_same_and_follows_new_weights() {
        let _no_grad = tch::no_grad_guard();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama_untied");
        let config = ModelConfig::from_folder(folder.as_ref()).unwrap();
        let of_seed = |seed| Decoder::init(config.clone(), seed, Device::Cpu).unwrap();
        let logits = |decoder: &Decoder| {
            let ids = Tensor::from_slice(&[3i64, 1, 4, 1, 5]);
            decoder.logits(&decoder.forward_packed(&ids, &[5]).unwrap()).unwrap()
        };
        let (mut decoder, other) = (of_seed(1), of_seed(2));
        decoder.pack(&SharedPacking::default()).unwrap();
        assert!(logits(&decoder).allclose(&logits(&of_seed(1)), 1e-4, 1e-5, false));
        let weights = other.snapshot().unwrap();
        decoder.copy_from(&weights).unwrap();
        assert_eq!(logits(&decoder), logits(&other), "the packed form is dropped");
        decoder.pack(weights.packing()).unwrap();
        assert!(logits(&decoder).allclose(&logits(&other), 1e-4, 1e-5, false));
    }

    #[test]
    fn packed_decoders_of_all_families_compute_the_same() {
        let _no_grad = tch::no_grad_guard();
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
        for model in std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().path()) {
            let mut decoder = Decoder::load(&model, Device::Cpu).unwrap();
            let hidden = |decoder: &Decoder| {
                let ids = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6]);
                decoder.forward_packed(&ids, &[5, 3]).unwrap()
            };
            let expected = hidden(&decoder);
            decoder.pack(&SharedPacking::default()).unwrap();
            let difference = (hidden(&decoder) - &expected).abs().max().double_value(&[]);
            let largest = expected.abs().max().double_value(&[]);
            assert!(difference < 1e-5 * largest, "{}: {difference} of {largest}", model.display());
        }
    }

    #[test]
    fn weights_are_packed_once() {
        let (weight, shared) = (matrix(4, 4, 1), SharedPacking::default());
        let of = |precision| shared.clone().of(&[(&weight, precision)]).unwrap();
        let same = |one: &PackedMatrices, other: &PackedMatrices| match (&one[0], &other[0]) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let (first, second) = (of(Precision::Float32), of(Precision::Float32));
        assert_eq!(first.len(), second.len());
        assert!(first[0].is_none() || same(&first, &second));
        let rounded = of(Precision::Bfloat16);
        assert!(!same(&rounded, &first));
        let product = |packed: &PackedMatrix| packed.product(None, &matrix(3, 4, 2)).unwrap();
        let expected = PackedMatrix::new(&weight, Precision::Bfloat16).unwrap().unwrap();
        assert_eq!(product(rounded[0].as_ref().unwrap()), product(&expected));
    }

    #[test]
    fn rounded_weights_are_multiplied_in_bfloat16_and_added_in_float32() {
        let (weight, x, start) = (matrix(33, 70, 1), matrix(5, 70, 2), matrix(5, 33, 3));
        let rounded = |x: &Tensor| x.to_kind(Kind::BFloat16);
        let product = rounded(&x).matmul(&rounded(&weight).tr()).to_kind(Kind::Float);
        let packed = PackedMatrix(Form::Rounded(Mutex::new(rounded(&weight))));
        assert_eq!(packed.product(None, &x).unwrap(), product);
        assert_eq!(packed.product(Some(&start), &x).unwrap(), product + start);
    }
}

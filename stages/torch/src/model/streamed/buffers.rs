//! The buffers for the weights of streamed layers.

use tch::{TchError, Tensor};

use super::super::TorchError;
use super::super::layer::Layer;
use super::prefetch::Prefetch;
use super::reader::Reader;
use super::residency::Residency;
use super::torch_error;
use super::upload::Fence;

#[derive(Debug, Default)]
pub(super) enum Buffers {
    /// Every layer is resident, so there are no buffers.
    #[default]
    None,
    /// One buffer. A layer is read right before it computes.
    OnDemand(Box<Layer>),
    /// Several buffers that a thread fills ahead of the computation.
    Prefetch(Prefetch),
}

impl Buffers {
    /// Creates buffers for the streamed layers of `residency` in the memory of `layers`. The memory of a layer may be overwritten once its
    /// fence has passed. `reader` is called only if there are several buffers.
    pub(super) fn start(
        mut layers: Vec<(Layer, Fence)>,
        residency: &Residency,
        reader: impl FnOnce() -> Result<Reader, TorchError>,
    ) -> Result<Self, TorchError> {
        match layers.len() {
            0 => Ok(Self::None),
            1 => Ok(Self::OnDemand(Box::new(layers.remove(0).0))),
            _ => {
                let order = residency.streamed().collect();
                Ok(Self::Prefetch(Prefetch::start(reader()?, order, layers)?))
            }
        }
    }

    /// Returns the number of buffers, including buffers that are being filled.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::None => 0,
            Self::OnDemand(_) => 1,
            Self::Prefetch(prefetch) => prefetch.buffers(),
        }
    }

    /// Returns the memory of the buffers, after all reads into it have ended.
    pub(super) fn into_layers(self) -> Vec<Layer> {
        match self {
            Self::None => Vec::new(),
            Self::OnDemand(layer) => vec![*layer],
            Self::Prefetch(prefetch) => prefetch.into_buffers(),
        }
    }

    /// Runs `work` on layer `index`, which must not be resident.
    pub(super) fn run(
        &mut self,
        index: usize,
        reader: &mut Reader,
        work: impl FnOnce(&Layer) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        match self {
            Self::None => Err(TchError::Shape(format!("layer {index} is not in memory"))),
            Self::OnDemand(layer) => {
                let used = reader.fence().map_err(torch_error)?;
                reader.read_layer(index, layer, &used).map_err(torch_error)?;
                work(layer)
            }
            Self::Prefetch(prefetch) => {
                let ran = prefetch.run(index, |layer| (work(layer), reader.fence()));
                ran.map_err(torch_error)?
            }
        }
    }
}

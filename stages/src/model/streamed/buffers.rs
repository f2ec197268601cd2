//! Where layers that are not resident compute.

use tch::{TchError, Tensor};

use super::super::ModelError;
use super::super::layer::Layer;
use super::prefetch::Prefetch;
use super::reader::Reader;
use super::residency::Residency;
use super::torch_error;
use super::upload::Fence;

/// The memory that streamed layers pass through.
#[derive(Debug, Default)]
pub(super) enum Buffers {
    /// Every layer is resident.
    #[default]
    None,
    /// A layer is read when it is to compute.
    OnDemand(Box<Layer>),
    /// A thread reads ahead.
    Prefetch(Prefetch),
}

impl Buffers {
    /// Buffers for the streamed layers of `residency`, in the memory of `layers`; nothing uses a layer any more once its fence is past.
    pub(super) fn start(
        mut layers: Vec<(Layer, Fence)>,
        residency: &Residency,
        reader: impl FnOnce() -> Result<Reader, ModelError>,
    ) -> Result<Self, ModelError> {
        match layers.len() {
            0 => Ok(Self::None),
            1 => Ok(Self::OnDemand(Box::new(layers.remove(0).0))),
            _ => {
                let order = residency.streamed().collect();
                Ok(Self::Prefetch(Prefetch::start(reader()?, order, layers)?))
            }
        }
    }

    /// Buffers in memory, at work or on their way.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::None => 0,
            Self::OnDemand(_) => 1,
            Self::Prefetch(prefetch) => prefetch.buffers(),
        }
    }

    /// The memory back, nothing being read into it any more.
    pub(super) fn into_layers(self) -> Vec<Layer> {
        match self {
            Self::None => Vec::new(),
            Self::OnDemand(layer) => vec![*layer],
            Self::Prefetch(prefetch) => prefetch.into_buffers(),
        }
    }

    /// Has `work` done by layer `index`, which is not resident.
    pub(super) fn run(
        &mut self,
        index: usize,
        reader: &mut Reader,
        work: impl FnOnce(&Layer) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        match self {
            Self::None => Err(TchError::Shape(format!("layer {index} is nowhere in memory"))),
            Self::OnDemand(layer) => {
                let used = reader.fence().map_err(torch_error)?;
                reader.read_layer(index, layer, &used).map_err(torch_error)?;
                work(layer)
            }
            Self::Prefetch(prefetch) => {
                let layer = prefetch.take(index).map_err(torch_error)?;
                let done = work(&layer);
                prefetch.give_back(layer, reader.fence().map_err(torch_error)?);
                done
            }
        }
    }
}

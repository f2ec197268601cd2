//! How a replica of the trainer is laid out over its devices.

use rollpacker_stages::cluster::{Hardware, ModelShape, TrainingLayout};

/// Share of a device's memory that activations may take; the rest is weights, gradients, optimizer states and fragments.
const ACTIVATIONS: f64 = 0.25;

/// Bytes of an activation.
const BF16: f64 = 2.0;

/// The layout over as many devices as `written` that splits sequences least: devices that share a sequence are filled by long ones only,
/// and most responses are short. Sequences of `longest` tokens must fit, their activations kept once a layer and computed again.
#[must_use]
pub(super) fn planned(
    hardware: &Hardware,
    model: &ModelShape,
    written: TrainingLayout,
    longest: u32,
) -> TrainingLayout {
    let split = written.pipeline * written.context;
    let fits = |context: &u32| {
        let pipeline = split / context;
        let layers = f64::from(model.layers.div_ceil(pipeline));
        let tokens = f64::from(longest) / f64::from(written.tensor_parallel * context);
        BF16 * layers * tokens * f64::from(model.hidden_size) <= ACTIVATIONS * hardware.memory
    };
    let context = (1..=split)
        .filter(|context| split.is_multiple_of(*context))
        .find(fits)
        .unwrap_or(written.context);
    TrainingLayout { pipeline: split / context, context, ..written }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(longest: u32) -> (u32, u32) {
        let hardware = Hardware::built_in("H800").expect("built in");
        let model = ModelShape::built_in("Qwen2.5-32B").expect("built in");
        let written = TrainingLayout { tensor_parallel: 4, pipeline: 2, context: 2 };
        let planned = planned(&hardware, &model, written, longest);
        assert_eq!(planned.tensor_parallel, 4);
        (planned.pipeline, planned.context)
    }

    // 16 layers of 5120 x 2 bytes and a quarter of the tokens: 41 kB a token, of 20 GB.
    #[test]
    fn sequences_are_split_only_where_they_do_not_fit() {
        assert_eq!(layout(32_768), (4, 1));
        assert_eq!(layout(480_000), (4, 1));
        assert_eq!(layout(2_000_000), (2, 2), "no split fits: as written");
    }
}

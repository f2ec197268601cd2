//! Rotary position embeddings: the frequencies of each variant.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::ModelError;
use super::json::Object;

/// A variant of rotary position embedding (RoPE; Su et al. 2021), named after Hugging Face's `rope_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rope {
    /// `default`: for heads of width `d`, frequency `i` of `d / 2` is `theta^(-2i / d)`, in radians per position.
    Default {
        /// Base of the frequencies.
        theta: f64,
    },
    /// `linear`: all frequencies divided by `factor` (position interpolation; Chen et al. 2023).
    Linear {
        /// Base of the frequencies.
        theta: f64,
        /// The factor by which the context is extended.
        factor: f64,
    },
    /// `llama3`: the frequencies of wavelengths above `original / low_freq_factor` are divided by `factor`, and the frequencies of
    /// wavelengths below `original / high_freq_factor` are unchanged. Between both bounds the frequencies are interpolated (Llama 3.1's
    /// reference code). `original` is `original_max_position_embeddings`.
    Llama3 {
        /// Base of the frequencies.
        theta: f64,
        /// The divisor of the frequencies of long wavelengths.
        factor: f64,
        /// The lower bound of the wavelengths whose frequencies are divided by `factor`, as a divisor of the original context.
        low_freq_factor: f64,
        /// The upper bound of the wavelengths whose frequencies are unchanged, as a divisor of the original context.
        high_freq_factor: f64,
        /// The context length before the extension, in tokens.
        original_max_position_embeddings: i64,
    },
}

impl Rope {
    /// Returns the frequencies of the `head_dim / 2` pairs, in radians per position.
    #[must_use]
    pub fn frequencies(&self, head_dim: i64) -> Vec<f64> {
        (0..head_dim / 2)
            .map(|pair| {
                self.scale_frequency(self.theta().powf(-(2 * pair) as f64 / head_dim as f64))
            })
            .collect()
    }

    fn theta(&self) -> f64 {
        match *self {
            Self::Default { theta } | Self::Linear { theta, .. } | Self::Llama3 { theta, .. } => {
                theta
            }
        }
    }

    fn scale_frequency(&self, frequency: f64) -> f64 {
        match *self {
            Self::Default { .. } => frequency,
            Self::Linear { factor, .. } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
                ..
            } => {
                let turns =
                    original_max_position_embeddings as f64 * frequency / std::f64::consts::TAU;
                // 0 if fewer than `low_freq_factor` turns fit into the original context, 1 if more than `high_freq_factor` do.
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                kept * frequency + (1.0 - kept) * frequency / factor
            }
        }
    }

    /// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (transformers 4). If the base is missing, it is 10,000.
    /// If the variant is missing, it is `default`.
    pub(crate) fn from_json(config: &Object) -> Result<Self, ModelError> {
        let scaling = match config.object("rope_parameters")? {
            Some(parameters) => Some(parameters),
            None => config.object("rope_scaling")?,
        };
        let outer = config.number_in("rope_theta", THETA_RANGE)?;
        let Some(scaling) = scaling else {
            return Ok(Self::Default { theta: outer.unwrap_or(DEFAULT_THETA) });
        };
        if scaling.get("full_attention").is_some() {
            return Err(config.unsupported("`rope_parameters` per layer type"));
        }
        let theta =
            scaling.number_in("rope_theta", THETA_RANGE)?.or(outer).unwrap_or(DEFAULT_THETA);
        Self::from_parameters(config, &scaling, theta)
    }

    fn from_parameters(config: &Object, scaling: &Object, theta: f64) -> Result<Self, ModelError> {
        if scaling.number("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
            return Err(config.unsupported("`partial_rotary_factor` other than 1"));
        }
        // Configurations from before transformers 4.43 use the key `type`.
        let kind = match scaling.string("rope_type")? {
            Some(kind) => kind,
            None => scaling.string("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => Ok(Self::Default { theta }),
            "linear" => Ok(Self::Linear {
                theta,
                factor: scaling.required_number_in("factor", FACTOR_RANGE)?,
            }),
            "llama3" => Self::llama3(scaling, theta),
            other => Err(config.unsupported(format!("rope_type `{other}`"))),
        }
    }

    fn llama3(scaling: &Object, theta: f64) -> Result<Self, ModelError> {
        let low_freq_factor = scaling.required_number_in("low_freq_factor", FACTOR_RANGE)?;
        let high_freq_factor = scaling.required_number_in("high_freq_factor", FACTOR_RANGE)?;
        if high_freq_factor <= low_freq_factor {
            return Err(scaling.wrong("high_freq_factor", "more than low_freq_factor"));
        }
        Ok(Self::Llama3 {
            theta,
            factor: scaling.required_number_in("factor", FACTOR_RANGE)?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: scaling
                .required_size("original_max_position_embeddings")?,
        })
    }

    /// Returns the object `rope_parameters` of transformers 5. Without `rope_theta`, it is `rope_scaling` of transformers 4.
    pub(crate) fn to_json(self) -> Value {
        match self {
            Self::Default { theta } => json!({ "rope_type": "default", "rope_theta": theta }),
            Self::Linear { theta, factor } => {
                json!({ "rope_type": "linear", "rope_theta": theta, "factor": factor })
            }
            Self::Llama3 {
                theta,
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => json!({
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            }),
        }
    }
}

/// Bases for which every frequency is finite in float32.
const THETA_RANGE: RangeInclusive<f64> = 1.0..=1e16;

/// Factors for which every frequency is finite in float32.
const FACTOR_RANGE: RangeInclusive<f64> = 1e-6..=1e6;

/// The default of transformers for a configuration without `rope_theta`.
const DEFAULT_THETA: f64 = 10_000.0;

//! Bounds of the numbers that describe devices, models and constants of the cost model. Within these bounds, the arithmetic of the cost
//! model stays finite and the nanosecond clock does not overflow.

use rollpacker_model::config::max;
use rollpacker_simulated::cluster::{Calibration, Hardware, ModelShape};
use toml::{Table, Value};

use crate::recipe::RecipeError;
use crate::recipe::error::{Number, between, within};

/// Maximum ratio of a constant to its fitted value, for all constants except shares and correlations. It is also the maximum, in seconds,
/// of a constant whose fitted value is 0, and its inverse is the minimum ratio of a constant in `POSITIVE`.
const MAX_FACTOR: f64 = 1000.0;

/// Constants that are shares, from 0.001 to 1.
const SHARES: [&str; 6] = [
    "memory_share",
    "weight_bandwidth",
    "kv_bandwidth",
    "decode_utilisation",
    "prefill_utilisation",
    "training_utilisation",
];

/// Other constants that must be above 0: factors, and work that every trainer has to do.
const POSITIVE: [&str; 3] =
    ["judge_slowdown", "judge_time_slicing", "training_flops_per_parameter"];

/// Constants that are correlations, from 0 to 1.
const CORRELATIONS: [&str; 1] = ["sandbox_correlation"];

/// Rejects constants that are out of the range of their kind, or differ implausibly from the fitted values.
pub(super) fn check_calibration(calibration: &Calibration) -> Result<(), RecipeError> {
    let fitted = constants(&Calibration::default());
    for ((name, value), (_, fitted)) in constants(calibration).into_iter().zip(fitted) {
        let (min, max, expected) = range(&name, fitted);
        let fits = |value: f64| (min..=max).contains(&value);
        within(format!("calibration.{name}"), value, fits, &expected)?;
    }
    Ok(())
}

/// Returns the range of a constant in words, or `None` if there is no constant `name`.
pub(super) fn range_of(name: &str) -> Option<String> {
    let mut fitted = constants(&Calibration::default()).into_iter();
    fitted.find(|(of, _)| of == name).map(|(_, fitted)| range(name, fitted).2)
}

/// Returns the minimum and the maximum of a constant, and a description of the range.
fn range(name: &str, fitted: f64) -> (f64, f64, String) {
    if SHARES.contains(&name) {
        return (1e-3, 1.0, "from 0.001 to 1".to_owned());
    }
    if CORRELATIONS.contains(&name) {
        return (0.0, 1.0, "from 0 to 1".to_owned());
    }
    if fitted == 0.0 {
        // Constants with a fitted value of 0 are times in seconds.
        return (0.0, MAX_FACTOR, format!("from 0 to {MAX_FACTOR}"));
    }
    let max = fitted * MAX_FACTOR;
    let min = if POSITIVE.contains(&name) { fitted / MAX_FACTOR } else { 0.0 };
    let expected =
        format!("from {} to {}, {MAX_FACTOR} times the fitted value", Number(min), Number(max));
    (min, max, expected)
}

/// Returns the constants by name.
fn constants(calibration: &Calibration) -> Vec<(String, f64)> {
    let table = Table::try_from(calibration).expect("invariant: constants are numbers by name");
    let number = |(name, value): (String, Value)| {
        let whole = value.as_integer().map(|value| value as f64);
        value.as_float().or(whole).map(|value| (name, value))
    };
    table.into_iter().filter_map(number).collect()
}

/// Rejects devices whose speed, bandwidths or memory are implausibly small or large, and servers without devices or with too many.
pub(super) fn check_hardware(hardware: &Hardware) -> Result<(), RecipeError> {
    let Hardware { flops, memory_bandwidth, memory, interconnect_bandwidth, .. } = *hardware;
    for (field, value) in [
        ("flops", flops),
        ("memory_bandwidth", memory_bandwidth),
        ("memory", memory),
        ("interconnect_bandwidth", interconnect_bandwidth),
    ] {
        let key = format!("cluster.hardware.{field}");
        within(key, value, |value| (1e6..=1e21).contains(&value), "from 1e6 to 1e21")?;
    }
    let (key, max) = ("cluster.hardware.devices_per_server", 1 << 17);
    between(key, hardware.devices_per_server, 1, max)
}

/// Rejects models with a number of parameters or a dimension that is below 1 or implausibly large.
pub(super) fn check_model(model: &ModelShape) -> Result<(), RecipeError> {
    let fits = |parameters: f64| (1.0..=1e15).contains(&parameters);
    within("model.shape.parameters", model.parameters, fits, "from 1 to 1e15")?;
    let (key, embedding) = ("model.shape.input_embedding", model.input_embedding);
    let part = |embedding: f64| (0.0..model.parameters).contains(&embedding);
    within(key, embedding, part, "from 0 to less than `parameters`")?;
    for (field, value, max) in [
        ("layers", model.layers, max::LAYERS),
        ("hidden_size", model.hidden_size, max::WIDTH),
        ("kv_heads", model.kv_heads, max::HEADS),
        ("head_dim", model.head_dim, max::HEAD_DIM),
    ] {
        between(&format!("model.shape.{field}"), i64::from(value), 1, max)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fitted_constants_and_built_in_models_are_within_their_bounds() {
        check_calibration(&Calibration::default()).expect("the fit");
        for name in Hardware::names() {
            check_hardware(&Hardware::built_in(name).expect("built in")).expect(name);
        }
        for name in ModelShape::names() {
            check_model(&ModelShape::built_in(name).expect("built in")).expect(name);
        }
    }

    #[test]
    fn a_constant_that_is_not_a_number_is_refused_by_its_key() {
        let check = |calibration: Calibration, key: &str, found: &str| {
            let error = check_calibration(&calibration).expect_err("refused").to_string();
            let named = format!("key `calibration.{key}`: expected from");
            assert!(error.starts_with(&named) && error.ends_with(found), "{error}");
        };
        let fitted = Calibration::default();
        check(Calibration { kv_bandwidth: 0.0, ..fitted }, "kv_bandwidth", "found 0");
        check(Calibration { optimizer_step: f64::NAN, ..fitted }, "optimizer_step", "found NaN");
        let endless = Calibration { optimizer_step: f64::INFINITY, ..fitted };
        check(endless, "optimizer_step", "found inf");
        let free = Calibration { training_flops_per_parameter: 0.0, ..fitted };
        check(free, "training_flops_per_parameter", "found 0");
        let far = Calibration { reconfiguration: 1e30, ..fitted };
        check(far, "reconfiguration", "found 1e30");
    }

    #[test]
    fn the_bounds_of_every_constant_exclude_invalid_amounts() {
        let names: Vec<String> =
            constants(&Calibration::default()).into_iter().map(|(name, _)| name).collect();
        let kinds = SHARES.iter().chain(&POSITIVE).chain(&CORRELATIONS);
        for kind in kinds {
            assert!(names.iter().any(|name| name == kind), "{kind} is a constant");
        }
        for name in &names {
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e-9] {
                let mut table = Table::try_from(Calibration::default()).expect("numbers");
                table.insert(name.clone(), Value::Float(value));
                let calibration = table.try_into().expect("numbers");
                let error = check_calibration(&calibration).expect_err("refused").to_string();
                let key = format!("key `calibration.{name}`: expected from ");
                assert!(error.starts_with(&key), "{error}");
            }
        }
    }
}

//! The bounds of what describes devices, models and constants of the cost model: within which its arithmetic stays finite and a clock of
//! nanoseconds does not run out.

use rollpacker_stages::cluster::{Calibration, Hardware, ModelShape};
use rollpacker_stages::model::config::most;

use crate::recipe::RecipeError;
use crate::recipe::error::{between, within};

/// By how many times a constant may differ from the fitted one.
const TIMES: f64 = 1000.0;

/// Constants that are shares of something.
const SHARES: [&str; 6] = [
    "memory_share",
    "weight_bandwidth",
    "kv_bandwidth",
    "decode_utilisation",
    "prefill_utilisation",
    "training_utilisation",
];

/// Refuses constants that are no shares, or differ from the fitted ones by more than is plausible.
pub(super) fn check_calibration(calibration: &Calibration) -> Result<(), RecipeError> {
    let fitted = constants(&Calibration::default());
    for ((name, value), (_, fitted)) in constants(calibration).into_iter().zip(fitted) {
        let key = format!("calibration.{name}");
        // What is 0 as fitted is in seconds.
        let most = if fitted == 0.0 { TIMES } else { fitted * TIMES };
        match name.as_str() {
            name if SHARES.contains(&name) => {
                within(key, value, |share| (1e-3..=1.0).contains(&share), "from 0.001 to 1")?;
            }
            "sandbox_correlation" => {
                within(key, value, |share| (0.0..=1.0).contains(&share), "from 0 to 1")?;
            }
            "judge_slowdown" | "judge_time_slicing" => {
                within(
                    key,
                    value,
                    |factor| (1e-3..=TIMES).contains(&factor),
                    "from 0.001 to 1000",
                )?;
            }
            _ => {
                let expected = format!("from 0 to {most}, 1000 times the fitted value");
                within(key, value, |value| (0.0..=most).contains(&value), &expected)?;
            }
        }
    }
    Ok(())
}

/// The constants by name.
fn constants(calibration: &Calibration) -> Vec<(String, f64)> {
    let table = match serde_json::to_value(calibration) {
        Ok(serde_json::Value::Object(table)) => table,
        _ => serde_json::Map::new(),
    };
    // JSON has no number for what is not finite.
    table.into_iter().map(|(name, value)| (name, value.as_f64().unwrap_or(f64::NAN))).collect()
}

/// Refuses devices without speed or memory, and such as no factory makes.
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
    let (key, most) = ("cluster.hardware.devices_per_server", 1 << 17);
    between(key, hardware.devices_per_server, 1, most)
}

/// Refuses models that are larger than any.
pub(super) fn check_model(model: &ModelShape) -> Result<(), RecipeError> {
    let fits = |parameters: f64| (1.0..=1e15).contains(&parameters);
    within("model.shape.parameters", model.parameters, fits, "from 1 to 1e15")?;
    for (field, value, most) in [
        ("layers", model.layers, most::LAYERS),
        ("hidden_size", model.hidden_size, most::WIDTH),
        ("kv_heads", model.kv_heads, most::HEADS),
        ("head_dim", model.head_dim, most::HEAD_DIM),
    ] {
        between(&format!("model.shape.{field}"), i64::from(value), 1, most)?;
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
    fn a_constant_that_is_no_number_is_refused_by_its_key() {
        let check = |calibration: Calibration, key: &str| {
            let error = check_calibration(&calibration).expect_err("refused").to_string();
            assert!(
                error.starts_with(&format!("key `calibration.{key}`: expected from")),
                "{error}"
            );
        };
        check(Calibration { kv_bandwidth: 0.0, ..Calibration::default() }, "kv_bandwidth");
        check(Calibration { optimizer_step: f64::NAN, ..Calibration::default() }, "optimizer_step");
        check(Calibration { reconfiguration: 1e30, ..Calibration::default() }, "reconfiguration");
    }
}

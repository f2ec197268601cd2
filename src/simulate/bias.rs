//! What a schedule trained on beside what the policy samples, where both are known: in a simulation the baseline selects nothing.

use std::collections::BTreeMap;

use super::outcome::Outcome;

/// How much each length was trained on: the sum of the weights of its responses.
type Trained = BTreeMap<u32, f64>;

/// The first bucket of lengths ends here, tokens; each other has twice the end of the one before.
const FIRST_BUCKET: u32 = 512;

/// Mean length over the baseline's.
pub(super) fn mean_ratio(run: &Outcome, baseline: &Outcome) -> Option<f64> {
    Some(mean(&run.trained)? / mean(&baseline.trained)?)
}

/// The `q`-th quantile of lengths over the baseline's.
pub(super) fn quantile_ratio(run: &Outcome, baseline: &Outcome, q: f64) -> Option<f64> {
    Some(quantile(&run.trained, q)? / quantile(&baseline.trained, q)?)
}

/// Share of the lengths of each bucket over the baseline's share, by the bounds of the bucket, ascending; of those that the baseline has.
pub(super) fn inclusion(run: &Outcome, baseline: &Outcome) -> Vec<(String, f64)> {
    let (Some(total), Some(beside)) = (weight(&run.trained), weight(&baseline.trained)) else {
        return Vec::new();
    };
    let longest = baseline.trained.last_key_value().map_or(0, |(length, _)| *length);
    let ends = std::iter::successors(Some(FIRST_BUCKET), |end| end.checked_mul(2));
    let starts = std::iter::once(0).chain(ends.clone());
    starts
        .zip(ends)
        .take_while(|(start, _)| *start <= longest)
        .filter_map(|(start, end)| {
            let share = |trained: &Trained, total: f64| {
                trained.range(start..end).map(|(_, weight)| weight).sum::<f64>() / total
            };
            let policy = share(&baseline.trained, beside);
            (policy > 0.0).then(|| (format!("{start}_{end}"), share(&run.trained, total) / policy))
        })
        .collect()
}

fn weight(trained: &Trained) -> Option<f64> {
    Some(trained.values().sum()).filter(|sum| *sum > 0.0)
}

fn mean(trained: &Trained) -> Option<f64> {
    let sum: f64 = trained.iter().map(|(&length, weight)| f64::from(length) * weight).sum();
    Some(sum / weight(trained)?)
}

fn quantile(trained: &Trained, q: f64) -> Option<f64> {
    let wanted = q * weight(trained)?;
    let mut below = 0.0;
    let reached = trained.iter().find(|(_, weight)| {
        below += **weight;
        below >= wanted
    });
    reached.or(trained.last_key_value()).map(|(&length, _)| f64::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(trained: &[(u32, f64)]) -> Outcome {
        Outcome { trained: trained.iter().copied().collect(), ..Outcome::default() }
    }

    #[test]
    fn lengths_are_compared_by_weight() {
        let policy = outcome(&[(100, 6.0), (1000, 3.0), (4000, 1.0)]);
        let short = outcome(&[(100, 8.0), (1000, 2.0)]);
        assert_eq!(mean_ratio(&short, &policy), Some(280.0 / 760.0));
        assert_eq!(quantile_ratio(&short, &policy, 0.9), Some(1.0));
        assert_eq!(quantile_ratio(&short, &policy, 0.99), Some(0.25));
        let buckets: Vec<(String, f64)> = inclusion(&short, &policy);
        let names: Vec<&str> = buckets.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["0_512", "512_1024", "2048_4096"]);
        assert!((buckets[0].1 - 0.8 / 0.6).abs() < 1e-12);
        assert_eq!(buckets[2].1, 0.0);
        let weighted = outcome(&[(100, 6.0), (1000, 2.0), (4000, 2.0)]);
        assert!(mean_ratio(&weighted, &policy).is_some_and(|ratio| ratio > 1.0));
        assert_eq!(mean_ratio(&outcome(&[]), &policy), None);
    }
}

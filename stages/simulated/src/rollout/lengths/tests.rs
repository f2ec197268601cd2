use proptest::prelude::*;
use rollpacker_dataflow::step::{PromptId, Step};

use super::*;

const PROMPTS: u64 = 3000;
const SAMPLES: u32 = 8;

fn id(prompt: u64, sample: u32) -> SampleId {
    SampleId { step: Step(0), prompt: PromptId(prompt), sample }
}

/// Returns the lengths of the responses to each prompt.
fn groups(model: &dyn LengthModel) -> Vec<Vec<u32>> {
    let group = |row| (0..SAMPLES).map(|sample| model.response(row, id(row, sample), 0)).collect();
    (0..PROMPTS).map(group).collect()
}

/// Returns the tokens that `percent` of all lengths do not exceed.
fn percentile(groups: &[Vec<u32>], percent: usize) -> f64 {
    let mut all = groups.concat();
    all.sort_unstable();
    f64::from(all[all.len() * percent / 100])
}

fn check_close(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found}, expected about {expected}");
}

/// Returns the correlation of the logarithms of the lengths of two responses to a prompt.
fn siblings(groups: &[Vec<u32>]) -> f64 {
    let log = |length: u32| f64::from(length).ln();
    let pairs = || groups.iter().flat_map(|g| g.windows(2).map(|w| (log(w[0]), log(w[1]))));
    let count = pairs().count() as f64;
    let mean = pairs().map(|(x, _)| x).sum::<f64>() / count;
    let covariance = pairs().map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>() / count;
    covariance / (pairs().map(|(x, _)| (x - mean).powi(2)).sum::<f64>() / count)
}

fn math() -> EmpiricalConfig {
    let mut config = EmpiricalConfig::rollpacker();
    config.domains.retain(|name, _| name == "math");
    config
}

fn empirical(config: &EmpiricalConfig, cap: u32) -> Empirical {
    Empirical::new(config, &PopulationConfig::default(), 11, cap).expect("in bounds")
}

#[test]
fn the_table_is_reproduced_whatever_the_correlation() {
    for correlation in [0.0, 0.6] {
        let mut config = math();
        config.domains.values_mut().for_each(|domain| domain.correlation = correlation);
        let groups = groups(&empirical(&config, 16_384));
        for (percent, tokens) in [(10, 243.0), (50, 660.0), (75, 1128.0), (90, 2554.0)] {
            check_close(percentile(&groups, percent), tokens, 0.12);
        }
        let capped = groups.concat().iter().filter(|length| **length == 16_384).count();
        check_close(capped as f64, 0.0099 * 24_000.0, 0.35);
        assert!((siblings(&groups) - correlation).abs() < 0.15, "{}", siblings(&groups));
    }
}

#[test]
fn endless_responses_reach_any_cap_and_share_prompts() {
    let groups = groups(&empirical(&math(), 32_768));
    let capped = |group: &&Vec<u32>| group.contains(&32_768);
    let hard = groups.iter().filter(capped).count();
    let all = groups.concat().iter().filter(|length| **length == 32_768).count();
    assert!(all > 150);
    assert!((all as f64) > 1.4 * hard as f64, "{all} in {hard} prompts");
    assert!(groups.concat().iter().all(|length| *length <= 16_384 || *length == 32_768));
}

#[test]
fn the_two_modes_have_the_percentiles_that_they_were_fitted_to() {
    let domains = [("all".to_owned(), TwoModeDomain::default())].into();
    let config = LengthsConfig::TwoMode(TwoModeConfig { domains });
    let model = config.build(&PopulationConfig::default(), 5, 16_384).expect("in bounds");
    let groups = groups(&*model);
    for (percent, tokens) in [(50, 511.0), (75, 921.0), (90, 4700.0), (95, 8100.0)] {
        check_close(percentile(&groups, percent), tokens, 0.15);
    }
    let all = groups.concat();
    check_close(all.iter().map(|l| f64::from(*l)).sum::<f64>() / all.len() as f64, 1571.0, 0.1);
}

#[test]
fn prompts_are_of_their_domains_and_lengths() {
    let model = empirical(&EmpiricalConfig::rollpacker(), 8192);
    let prompts: Vec<_> = (0..PROMPTS).map(|row| model.prompt(row)).collect();
    for domain in ["math", "code", "judge"] {
        let of = prompts.iter().filter(|prompt| &*prompt.domain == domain).count();
        check_close(of as f64, PROMPTS as f64 / 3.0, 0.1);
    }
    let mut lengths: Vec<_> = prompts.iter().map(|prompt| prompt.prompt_length).collect();
    lengths.sort_unstable();
    check_close(f64::from(lengths[1500]), 250.0, 0.05);
    assert!(lengths[0] >= 16 && lengths[2999] <= 2000);
}

fn record(prompt: Option<&str>, response_length: u32) -> TraceRecord {
    TraceRecord { prompt: prompt.map(str::to_owned), prompt_length: Some(70), response_length }
}

fn trace(records: Vec<TraceRecord>) -> Trace {
    correlated_trace(records, 0.0, 1000)
}

fn correlated_trace(records: Vec<TraceRecord>, correlation: f64, cap: u32) -> Trace {
    let population = PopulationConfig::default();
    let domain = "math".to_owned();
    let config = TraceConfig { domain, population, correlation, seed: 2, cap };
    Trace::new(records, &config).expect("in bounds")
}

#[test]
fn a_prompt_with_enough_responses_is_drawn_from_its_own() {
    let of = |prompt, lengths: [u32; 2]| {
        (0..MIN_RECORDED_RESPONSES)
            .map(move |n| record(Some(prompt), lengths[n % 2]))
            .collect::<Vec<_>>()
    };
    let trace = trace([of("a", [10, 12]), of("b", [500, 2000])].concat());
    for row in 0..40 {
        let length = trace.response(row, id(row, 1), 0);
        assert!(if row % 2 == 0 { [10, 12] } else { [500, 1000] }.contains(&length));
    }
    assert_eq!(trace.prompt(3).prompt_length, 70);
    let rates = |first: u64| (0..100).map(|n| trace.prompt(first + 2 * n).pass_rate).sum::<f64>();
    assert!(rates(0) > rates(1) + 10.0, "prompts with longer responses are harder");
}

/// Returns trace records of [`PROMPTS`] prompts with `responses` responses each. The lengths of two responses to a prompt have the
/// correlation `truth`, as the correlation of their normal scores.
fn recorded(responses: u32, truth: f64) -> Vec<TraceRecord> {
    let mut config = math();
    config.domains.values_mut().for_each(|domain| domain.correlation = truth);
    let model = empirical(&config, 16_384);
    let of = |row: u64| (0..responses).map(move |sample| (row, sample));
    let length =
        |(row, sample)| record(Some(&format!("{row}")), model.response(row, id(row, sample), 0));
    (0..PROMPTS).flat_map(of).map(length).collect()
}

// Regression: where one response was recorded, all responses to the prompt were drawn with the same length.
#[test]
fn one_recorded_response_a_prompt_leaves_the_correlation_to_the_configuration() {
    for correlation in [0.0, 0.4, 0.8] {
        let groups = groups(&correlated_trace(recorded(1, 0.3), correlation, 16_384));
        // The correlation of the logarithms approximates that of the normal scores.
        assert!((siblings(&groups) - correlation).abs() < 0.12, "{}", siblings(&groups));
        for (percent, tokens) in [(10, 243.0), (50, 660.0), (75, 1128.0), (90, 2554.0)] {
            check_close(percentile(&groups, percent), tokens, 0.12);
        }
        let equal = groups.iter().filter(|group| group.iter().all(|length| *length == group[0]));
        assert!(equal.count() < 20, "siblings differ");
    }
}

#[test]
fn recorded_responses_determine_the_rank_of_their_prompt() {
    let mean = |lengths: &[u32]| lengths.iter().map(|l| f64::from(*l).ln()).sum::<f64>();
    let agreement = |responses: u32| {
        let records = recorded(responses, 0.5);
        let own: Vec<f64> = records
            .chunks(responses as usize)
            .map(|prompt| mean(&prompt.iter().map(|r| r.response_length).collect::<Vec<_>>()))
            .collect();
        let drawn: Vec<f64> =
            groups(&correlated_trace(records, 0.5, 16_384)).iter().map(|g| mean(g)).collect();
        correlation(&own, &drawn)
    };
    let (one, four) = (agreement(1), agreement(4));
    assert!(one > 0.3 && four > one + 0.1, "{one} {four}");
}

/// Returns Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (of_a, of_b) = (mean(a), mean(b));
    let product = |x: &[f64], at: f64, y: &[f64], from: f64| {
        x.iter().zip(y).map(|(x, y)| (x - at) * (y - from)).sum::<f64>()
    };
    product(a, of_a, b, of_b) / (product(a, of_a, a, of_a) * product(b, of_b, b, of_b)).sqrt()
}

#[test]
fn a_correlation_out_of_bounds_is_refused() {
    let population = PopulationConfig::default();
    let domain = "math".to_owned();
    let config = TraceConfig { domain, population, correlation: f64::NAN, seed: 2, cap: 9 };
    let error = Trace::new(vec![record(None, 3)], &config).expect_err("it is refused");
    assert_eq!(error.to_string(), "lengths: `correlation`: expected 0 to 1, found NaN");
}

#[test]
fn no_prompt_is_longer_than_the_longest() {
    for spread in [0.0, 0.01, 0.4, 3.0] {
        let mut population = PopulationConfig::default();
        population.prompt_length.spread = spread;
        let model = Empirical::new(&math(), &population, 11, 100).expect("in bounds");
        let longest = (0..PROMPTS).map(|row| model.prompt(row).prompt_length).max();
        assert!(longest.is_some_and(|longest| longest <= population.longest_prompt()));
    }
}

#[test]
fn a_trace_without_prompts_is_one_pool() {
    let trace = trace(vec![record(None, 10), record(None, 20), record(None, 30)]);
    let drawn: std::collections::BTreeSet<_> =
        (0..100).map(|row| trace.response(row, id(row, 0), 0)).collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [10, 20, 30]);
}

#[test]
fn recorded_responses_are_replayed_and_dropped_ones_are_longer() {
    let pool = (1..=100).map(|length| record(None, length)).collect();
    let recorded = |response_length, whole| Recorded { response_length, whole };
    let trace = trace(pool).replaying([
        (id(1, 0), recorded(7, true)),
        (id(1, 1), recorded(60, false)),
        (id(1, 2), recorded(100, false)),
    ]);
    assert_eq!(trace.response(9, id(1, 0), 0), 7);
    assert!(trace.response(9, id(1, 1), 0) > 60);
    assert_eq!(
        trace.response(9, id(1, 2), 0),
        1000,
        "without a longer record, the length is the cap"
    );
}

#[test]
fn values_out_of_bounds_are_named() {
    let error = |change: fn(&mut EmpiricalDomain)| {
        let mut config = math();
        config.domains.values_mut().for_each(change);
        let model = Empirical::new(&config, &PopulationConfig::default(), 1, 100);
        model.expect_err("it is refused").to_string()
    };
    assert_eq!(
        error(|domain| domain.endless_of_hard = 0.001),
        "lengths: `math.endless_of_hard`: expected `endless` to 1, found 0.001"
    );
    assert_eq!(
        error(|domain| domain.share = 0.0),
        "lengths: `math.share`: expected more than 0, found 0.0"
    );
    assert_eq!(
        error(|domain| domain.share = f64::INFINITY),
        "lengths: `math.share`: expected a finite number, found inf"
    );
    assert!(error(|domain| domain.percentiles.reverse()).contains("math.percentiles"));
    let nothing = EmpiricalConfig { domains: Default::default() };
    let model = Empirical::new(&nothing, &PopulationConfig::default(), 1, 100);
    assert_eq!(model.expect_err("it is refused").to_string(), "lengths: `domains` is empty");
}

proptest! {
    #[test]
    fn a_response_is_longer_than_its_kept_tokens(
        row in 0_u64..1000, sample in 0_u32..16, kept in 0_u32..9000
    ) {
        let model = empirical(&math(), 8192);
        let length = response_beyond(&model, row, id(row, sample), kept);
        prop_assert!(length > kept);
        prop_assert!(length <= 8192.max(kept + 1));
        let whole = model.response(row, id(row, sample), 0);
        prop_assert!(whole <= kept || length == whole, "the first draw is kept if it is long enough");
    }
}

//! Compares an instance with one that is stepped iteration by iteration.

use super::*;

/// Simulates an instance one iteration at a time. Response `i` arrives at `(i + 1) * interval` seconds. Returns the end of each response in
/// seconds, and its preemptions.
fn oracle(shape: &Shape, prompt_length: u64, interval: f64, lengths: &[u32]) -> Vec<(f64, u32)> {
    let mut waiting: VecDeque<usize> = (0..lengths.len()).collect();
    let mut running: Vec<usize> = Vec::new();
    let mut tokens = vec![0_u32; lengths.len()];
    let mut outcome = vec![(0.0, 0); lengths.len()];
    let mut now = 0.0_f64;
    while !waiting.is_empty() || !running.is_empty() {
        let context = |slot: usize, tokens: &[u32]| prompt_length + u64::from(tokens[slot]);
        let held = |running: &[usize], tokens: &[u32]| -> u64 {
            running.iter().map(|slot| context(*slot, tokens)).sum()
        };
        let arrival = |slot: usize| (slot + 1) as f64 * interval;
        if running.is_empty() {
            now = now.max(arrival(waiting[0]));
        }
        while let Some(&first) = waiting.front() {
            let need = context(first, &tokens);
            if arrival(first) > now
                || !shape.admits(need, running.len() as u32, held(&running, &tokens))
            {
                break;
            }
            running.push(first);
            waiting.pop_front();
            now += shape.cost.prefill(shape.tensor_parallel, need as f64);
        }
        let fits = |running: &[usize], tokens: &[u32]| {
            held(running, tokens) + running.len() as u64 <= shape.capacity
        };
        if running.len() > 1 && !fits(&running, &tokens) {
            let newest = running.pop().expect("more than one runs");
            waiting.push_front(newest);
            outcome[newest].1 += 1;
            continue;
        }
        now += shape.decode.iteration(running.len() as u32, held(&running, &tokens));
        running.iter().for_each(|slot| tokens[*slot] += 1);
        running.iter().filter(|slot| tokens[**slot] == lengths[**slot]).for_each(|slot| {
            outcome[*slot].0 = now;
        });
        running.retain(|slot| tokens[*slot] < lengths[*slot]);
    }
    outcome
}

/// Compares an instance with a KV cache of `capacity` tokens, to which a response is sent every `interval` seconds, with the oracle.
/// Returns the number of preemptions.
fn against_the_oracle(
    capacity: u64,
    max_running: u32,
    prompt_length: u32,
    interval: f64,
    responses: u32,
) -> u32 {
    let rule = Rule { length: scattered, prompt_length };
    let config = SimulatedEngineConfig { max_running, hand_out: HandOut::Streamed, ..config(1, 0) };
    let mut bench = Bench::with_cost(config, rule, cost(interval));
    bench.engine.shape.capacity = capacity;
    let lengths: Vec<_> = (0..responses).map(|sample| scattered(5, id(5, sample))).collect();
    let expected = oracle(&bench.engine.shape, u64::from(prompt_length), interval, &lengths);
    bench.generate(5, responses);
    bench.run();
    assert_eq!(bench.delay, Nanos(0), "each response is reported when it ends");
    for (sample, (seconds, preemptions)) in (0..).zip(&expected) {
        let found = &bench.ended[&id(5, sample)];
        let off = (found.finished.as_secs_f64() - seconds).abs();
        assert!(off <= 1e-7 + 1e-9 * seconds, "{sample}: {} {seconds}", found.finished);
        assert_eq!(found.preemptions, *preemptions, "{sample}");
        assert_eq!(found.response_length, lengths[sample as usize]);
    }
    expected.iter().map(|(_, preemptions)| preemptions).sum()
}

#[test]
fn events_are_those_of_stepping_iteration_by_iteration() {
    assert_eq!(against_the_oracle(780_000, 256, 250, 0.0, 100), 0);
    assert_eq!(against_the_oracle(780_000, 256, 250, 0.1, 100), 0, "one after the other");
    assert_eq!(against_the_oracle(780_000, 8, 250, 0.0, 60), 0, "8 at once");
    assert!(against_the_oracle(20_000, 256, 250, 0.0, 100) > 5, "responses are preempted");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn events_are_those_of_the_oracle_whatever_fits(
        capacity in 3000_u64..60_000, max_running in 1_u32..40, prompt_length in 1_u32..900,
        interval in prop_oneof![Just(0.0), Just(1e-9), 1e-3..1.0], responses in 1_u32..60
    ) {
        against_the_oracle(capacity, max_running, prompt_length, interval, responses);
    }
}

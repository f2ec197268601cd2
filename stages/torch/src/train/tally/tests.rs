//! Tests of the sums of a step and of their metrics.

use rollpacker_stages::train::named_metrics;

use super::*;

fn tally(loss: f64, largest: f64) -> StepSums {
    let mut tally = StepSums::default();
    tally.add_term(Cow::Borrowed(DENOMINATOR), TermReduction::Part, 2.0);
    tally.add_term(Cow::Borrowed(TOKENS), TermReduction::Part, 4.0);
    tally.add_term(Cow::Borrowed("loss"), TermReduction::Loss, loss);
    tally.add_term(Cow::Borrowed("clip:fraction"), TermReduction::Tokens, 1.0);
    tally.add_term(Cow::Borrowed("largest"), TermReduction::Max, largest);
    tally
}

fn unit(prompt: u64, sample: u32) -> Unit {
    Unit { prompt: PromptId(prompt), sample }
}

#[test]
fn each_sum_has_its_divisor() {
    let mut tallies = Tallies::default();
    tallies.add(unit(1, 0), &tally(3.0, 0.5), false).unwrap();
    tallies.add(unit(1, 0), &tally(5.0, 0.25), false).unwrap();
    let metrics = tallies.sum().metrics();
    let expect = [("clip:fraction", 0.25), ("largest", 0.5), ("loss", 2.0)];
    assert_eq!(metrics, named_metrics(expect));
}

#[test]
fn sums_are_in_the_order_of_units_through_any_replicas() {
    let units = [(unit(2, 0), 1e16), (unit(0, 4), 1.0), (unit(0, 0), -1e16)];
    let mut whole = Tallies::default();
    let mut replicas = [Tallies::default(), Tallies::default()];
    for (at, (unit, loss)) in units.into_iter().enumerate() {
        whole.add(unit, &tally(loss, 0.0), true).unwrap();
        replicas[at % 2].add(unit, &tally(loss, 0.0), true).unwrap();
    }
    let totals: Vec<_> = replicas.iter().rev().flat_map(|one| one.totals("policy")).collect();
    let mut reduced = Tallies::default();
    reduced.add_totals(&totals, "policy", true).unwrap();
    assert_eq!(reduced, whole);
    // In the order of units: -1e16 + 1, then 1e16.
    assert_eq!(reduced.sum().metrics()["loss"], 0.0);
    let mut other = Tallies::default();
    other.add_totals(&totals, "critic", true).unwrap();
    assert_eq!(other, Tallies::default());
}

#[test]
fn repeated_and_foreign_sums_are_refused() {
    let mut tallies = Tallies::default();
    tallies.add(unit(7, 3), &tally(1.0, 0.0), true).unwrap();
    let expect = "received the responses of p7, beginning with sample 3, twice";
    let again = tallies.add(unit(7, 3), &tally(1.0, 0.0), true).unwrap_err();
    assert_eq!(again.to_string(), expect);
    let totals = tallies.totals("policy");
    assert_eq!(tallies.add_totals(&totals, "policy", true).unwrap_err().to_string(), expect);
    for name in ["loss", "policy:loss", "policy:median:loss"] {
        let total = Total { name: name.to_owned(), ..totals[0].clone() };
        let error = tallies.add_totals(&[total], "policy", true).unwrap_err().to_string();
        assert_eq!(error, format!("unknown total `{name}` in a partial gradient"));
    }
}

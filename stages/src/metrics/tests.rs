use std::collections::BTreeSet;

use super::*;
use crate::generated_page::assert_tables;

/// The page that is generated from the table, between two marks.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");

fn rows() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.iter().flat_map(|section| section.metrics)
}

#[test]
fn the_page_of_metrics_is_up_to_date() {
    let tables = format!("\n{}\n", markdown());
    assert_tables(PAGE, &tables, "cargo test -p rollpacker-stages page");
}

#[test]
fn each_row_is_found_by_its_names() {
    let mut names = BTreeSet::new();
    for row in rows() {
        for name in pattern::examples(row.name) {
            assert_eq!(Metric::find(&name), Some(row), "{name}");
            assert!(names.insert(name.clone()), "{name} has two rows");
        }
    }
}

#[test]
fn placeholders_match_whole_names_only() {
    let row = |name: &str| Metric::find(name).map(|row| row.name);
    assert_eq!(
        row("val-core/openai/gsm8k/acc/mean@4"),
        Some("val-core/<data_source>/acc/mean@<n>")
    );
    assert_eq!(row("reward/score/é"), Some("reward/score/<data_source>"));
    assert_eq!(row("reward/errors/fatal"), Some("reward/errors/<kind>"));
    assert_eq!(row("reward/format"), Some("reward/<name>"));
    assert_eq!(row("reward/queue_max"), Some("reward/queue_max"));
    for name in ["critic/score", "critic/score/median", "critic/score/mean/x", "reward/", ""] {
        assert_eq!(row(name), None, "{name}");
    }
}

#[test]
fn units_are_valid_in_ucum() {
    for Metric { name, unit, .. } in rows() {
        for part in unit.split('/') {
            let is_annotation = part.strip_prefix('{').is_some_and(|rest| rest.ends_with('}'));
            assert!(["s", "By", "1"].contains(&part) || is_annotation, "{name}: {unit}");
        }
    }
}

#[test]
fn descriptions_are_sentences_that_fit_into_a_table() {
    for Metric { name, description, .. } in rows() {
        assert!(description.ends_with('.') && !description.contains(['|', '\n']), "{name}");
    }
}

#[test]
fn metrics_of_time_are_recognized() {
    assert!(depends_on_time("timing_s/step") && depends_on_time("rollout/bubble_ratio"));
    assert!(depends_on_time("operator/schedule/busy_s"));
    for name in ["perf/total_num_tokens", "critic/score/mean", "schedule/queue_age"] {
        assert!(!depends_on_time(name), "{name}");
    }
}

#[test]
fn metrics_without_a_row_have_defaults_by_prefix() {
    for (name, expected) in [
        ("timing_s/my_stage", (Merge::Max, true)),
        ("perf/my_throughput", (Merge::Mean, true)),
        ("actor/my_loss", (Merge::Mean, false)),
    ] {
        assert_eq!(Metric::find(name), None);
        assert_eq!((Merge::of(name), depends_on_time(name)), expected, "{name}");
    }
}

#[test]
fn counts_are_summed_times_and_levels_maximized_and_others_averaged() {
    for (name, expected) in [
        ("reward/errors/timeout", 6.0),
        ("reward/dropped_groups", 6.0),
        ("reduce/bytes", 6.0),
        ("timing_s/gradient", 3.0),
        ("reward/queue_max", 3.0),
        ("rollout/load_s", 3.0),
        ("reward/judge/tokens", 2.0),
        ("actor/pg_loss", 2.0),
        ("critic/rewards/max", 3.0),
        ("critic/rewards/min", 1.0),
    ] {
        assert_eq!(Merge::of(name).apply(vec![1.0, 3.0, 2.0]), expected, "{name}");
    }
    for merge in [Merge::Max, Merge::Min] {
        assert_eq!(merge.apply(vec![f64::NAN, 2.0]), 2.0);
        assert!(merge.apply(vec![f64::NAN]).is_nan());
    }
    let same = 0.1_f64 + 0.2;
    assert_eq!(Merge::Mean.apply(vec![same; 3]).to_bits(), same.to_bits());
    let [one, other] = [vec![1e16, 1.0, -1e16], vec![1e16, -1e16, 1.0]];
    for merge in [Merge::Sum, Merge::Mean] {
        assert_eq!(merge.apply(one.clone()).to_bits(), merge.apply(other.clone()).to_bits());
    }
}

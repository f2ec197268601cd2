use rollpacker_simulated::rollout::lengths::CorrelationEstimate;

use super::super::advice::Advice;
use super::super::configuration::summaries;
use super::super::configuration::tests::configured;
use super::super::gantt::Gantt;
use super::super::outcome::RunOutcome;
use super::super::summary::tests::run;
use super::super::trace::TraceSummary;
use super::*;

fn simulated(label: &str, seconds: [f64; 2], mean_ratio: f64) -> ConfigurationRuns {
    let mut outcome: RunOutcome =
        run(&[("short", seconds[0]), ("long", seconds[1])], &[("bias/mean_ratio", mean_ratio)]);
    for tokens in [90, 200, 1000] {
        outcome.launched.observe(tokens, true);
        outcome.trained.insert(tokens, 1.0);
    }
    outcome.gantt = Some(Gantt {
        step: 2,
        seconds: seconds[1],
        running: vec![vec![3.0, 1.0, 0.0], vec![1.0, 0.0, 0.0]],
        training: vec![(seconds[1] / 2.0, seconds[1])],
    });
    ConfigurationRuns {
        settings: vec![format!("schedule.name={label}")],
        ..configured(label, &[outcome])
    }
}

fn study(runs: Vec<ConfigurationRuns>) -> Study {
    let summaries = summaries(&runs).expect("steps");
    Study { runs, summaries, traces: Vec::new(), advice: Vec::new() }
}

fn page(study: &Study) -> String {
    HtmlReport { title: "Job & cluster", study }.html().expect("drawn")
}

fn trace() -> TraceSummary {
    TraceSummary {
        trace: "t.csv (column tokens)".to_owned(),
        responses: 9,
        max_response_length: 1000,
        cut: 2,
        prompt_length_column: None,
        assumed: Some(CorrelationEstimate {
            prompts: 9,
            responses_per_prompt: 1.0,
            least_responses: 1,
            estimate: None,
            low: 0.0,
            high: 0.8,
        }),
    }
}

fn advice(text: &str) -> Advice {
    Advice {
        job: String::new(),
        choice: None,
        not_separated: Vec::new(),
        fastest: None,
        ends: Vec::new(),
        assumptions: Vec::new(),
        text: text.to_owned(),
    }
}

#[test]
fn the_page_is_complete_and_self_contained() {
    let runs = vec![simulated("sync", [200.0, 190.0], 1.0), simulated("a<b", [80.0, 210.0], 0.7)];
    let study =
        Study { traces: vec![trace()], advice: vec![advice("Choose sync.")], ..study(runs) };
    let page = page(&study);
    for part in [
        "Job &amp; cluster",
        "Choose sync.",
        "t.csv (column tokens): 2 of 9 responses are longer",
        "the trace does not determine how much the lengths",
        "Seconds of a step by stage",
        "<code>schedule.name=a&lt;b</code>",
        "mean trained length / mean length of the policy",
        "speed-up of a step over sync",
        "over tokens (logarithmic)",
        "step 2, 210 s",
        "an instance generates",
        "the trainer computes",
        "3.0 responses",
        "name=\"viewport\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Step times, lengths and a Gantt chart for each of the two configurations, and the frontier.
    assert_eq!(page.matches("<svg width").count(), 7);
    assert!(!page.contains("a<b"));
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for reference in ["http:", "https:", "<script", "<link", "src=", "url(", "@import"] {
        assert!(!outside.contains(reference), "{reference}");
    }
}

#[test]
fn every_name_has_its_own_mark_and_is_followed_by_its_settings() {
    let runs: Vec<ConfigurationRuns> =
        (0..20).map(|n| simulated(&format!("config {n}"), [100.0, 120.0], 1.0)).collect();
    let page = page(&study(runs));
    let mark = |n: usize| {
        let end = format!("config {n}</span></summary><code>schedule.name=config {n}</code>");
        let before = page.split(&end).next().unwrap_or_default();
        before.rsplit("<summary>").next().unwrap_or_default().to_owned()
    };
    let marks: std::collections::BTreeSet<String> = (0..20).map(mark).collect();
    assert_eq!(marks.len(), 20);
}

#[test]
fn a_single_run_has_no_frontier() {
    let page = page(&study(vec![simulated("sync", [200.0, 190.0], 1.0)]));
    assert!(!page.contains("Speed and bias"));
}

// The charting library searches for labels of an axis; on an axis from 0 to 0 the search does not end.
#[test]
fn steps_that_take_no_time_are_drawn() {
    let page = page(&study(vec![simulated("a", [0.0, 0.0], 1.0), simulated("b", [0.0, 0.0], 1.0)]));
    assert!(page.contains("Activity of instances and trainer"));
}

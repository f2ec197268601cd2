use super::*;

#[test]
fn an_execution_past_its_limit_is_right_but_does_not_count() {
    let case =
        |outcome, seconds| rollpacker_sandbox::Case { outcome, seconds, message: String::new() };
    let mut verdict = Verdict {
        cases: vec![case(Outcome::Passed, 1.0), case(Outcome::Passed, 3.0)],
        ..Verdict::default()
    };
    let limits = Limits {
        audit: true,
        anchors: [None, Some(Nanos::from_secs_f64(1.0))].into(),
        ..Limits::default()
    };
    let executions = judge_limits(&mut verdict, &limits, None);
    assert_eq!(
        verdict.cases.iter().map(|case| case.outcome).collect::<Vec<_>>(),
        [Outcome::Passed, Outcome::Timeout]
    );
    assert!(executions.iter().all(|execution| execution.correct));
    assert_eq!(executions[1].limit, Nanos::from_secs_f64(2.0));
}

#[test]
fn a_reference_time_is_in_seconds() {
    let reference_of = |extra: &str| {
        let mut sample = Sample::of("s", "", None);
        sample.extra_info = Some(extra.to_owned());
        reference_time(&sample).map_err(|error| error.reason)
    };
    assert_eq!(reference_of(r#"{"reference_time": 1.5}"#), Ok(Some(Nanos::from_secs_f64(1.5))));
    assert_eq!(reference_of(r#"{"reference_time": null}"#), Ok(None));
    let wrong = "field `reference_time`: expected seconds above 0, found -1";
    assert_eq!(reference_of(r#"{"reference_time": -1}"#), Err(wrong.to_owned()));
}

#[test]
fn the_code_before_a_function_follows_the_import_prefix_on_a_line_of_its_own() {
    for (import_prefix, expected) in [
        ("", "import os\n"),
        ("import math", "import math\nimport os\n"),
        ("import math\n", "import math\nimport os\n"),
    ] {
        let mut check = Check::Entry {
            test: "def check(f): pass".to_owned(),
            entry_point: "f".to_owned(),
            prompt: Some("import os\ndef f():\n".to_owned()),
            import_prefix: import_prefix.to_owned(),
        };
        solution("def f(): pass".to_owned(), &mut check);
        let Check::Entry { import_prefix, .. } = check else { panic!("an entry") };
        assert_eq!(import_prefix, expected);
    }
}

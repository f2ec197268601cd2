use super::*;

#[test]
fn a_body_stands_after_its_prompt() {
    let entry = |prompt: &str| Check::Entry {
        test: String::new(),
        entry_point: "f".into(),
        prompt: Some(prompt.into()),
        import_prefix: String::new(),
    };
    let complete_by = |code: &str| {
        let mut check = entry("import os\nfrom math import pi\n\ndef f(a):\n    '''doc'''\n");
        let solution = complete(&Block { language: "python", code }, &mut check);
        let Check::Entry { import_prefix, .. } = check else { panic!("it stays what it is") };
        (solution, import_prefix)
    };
    let (solution, imports) = complete_by("    return a\n");
    assert!(solution.ends_with("'''doc'''\n    return a\n") && imports.is_empty());
    for code in
        ["def f(a):\n    return a", "async def f (a): pass", "def f[T](a): pass", "f = lambda a: a"]
    {
        assert_eq!(
            complete_by(code),
            (code.to_owned(), "import os\nfrom math import pi\n".to_owned())
        );
    }
    for code in ["    return g(a)", "def ff(a): pass", "    def f(a): pass", "f == 3"] {
        assert!(complete_by(code).0.starts_with("import os"), "{code}");
    }
}

#[test]
fn an_execution_past_its_limit_is_right_but_does_not_count() {
    let case = |outcome, seconds| crate::sandbox::Case { outcome, seconds, message: String::new() };
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
        reference(&sample).map_err(|error| error.reason)
    };
    assert_eq!(reference_of(r#"{"reference_time": 1.5}"#), Ok(Some(Nanos::from_secs_f64(1.5))));
    assert_eq!(reference_of(r#"{"reference_time": null}"#), Ok(None));
    let wrong = "field `reference_time`: expected seconds above 0, found -1";
    assert_eq!(reference_of(r#"{"reference_time": -1}"#), Err(wrong.to_owned()));
}

//! Tests of the signatures of functions, and of the errors for functions that have none of them.

use rollpacker_stages::testkit::{RewardWorld, check_reward};

use super::*;

const VERL: &str = r#"
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert (data_source, extra_info) == ("openai/gsm8k", {"solution": "42", "level": 3}), (data_source, extra_info)
    return {"score": float(solution_str == ground_truth), "acc": solution_str == ground_truth, "pred": solution_str}
"#;

const TRL: &str = r#"
def accuracy_reward(completions, solution, **kwargs):
    assert kwargs["prompts"] == [[{"role": "user", "content": "6 * 7?"}]], kwargs
    assert sorted(kwargs) == ["completion_ids", "data_source", "ground_truth", "level", "log_extra", "log_metric", "prompts"]
    assert (kwargs["level"], kwargs["completion_ids"]) == ([3], [[4, 2]]), kwargs
    contents = [completion[0]["content"] for completion in completions]
    kwargs["log_metric"]("length", len(contents[0]))
    kwargs["log_extra"]("pred", contents)
    return [None if "?" in content else float(content == right) for content, right in zip(contents, solution)]
"#;

/// Makes the function of a file a coroutine function.
fn asynchronous(code: &str) -> String {
    let body = code.replacen("def ", "async def ", 1);
    body.replacen("    assert", "    import asyncio; await asyncio.sleep(0.001)\n    assert", 1)
}

#[tokio::test]
async fn a_function_of_verl_runs_unchanged() {
    if is_skipped() {
        return;
    }
    for code in [VERL.to_owned(), asynchronous(VERL)] {
        let scorer = scorer(&code);
        let score = scorer.score("42").await.expect("scores");
        let expected = Score::from(1.0).component("acc", 1.0).label("pred", "42");
        assert_eq!(score, expected);
        assert_eq!(scorer.value("41").await, 0.0);
    }
}

#[tokio::test]
async fn a_function_of_trl_runs_unchanged() {
    if is_skipped() {
        return;
    }
    for code in [TRL.to_owned(), asynchronous(TRL)] {
        let scorer = with(&code, json!({"function": "accuracy_reward"}));
        let score = scorer.score("42").await.expect("scores");
        let expected = Score::from(1.0).component("length", 2.0).label("pred", "42");
        assert_eq!(score, expected);
        assert_eq!(scorer.value("41").await, 0.0);
        assert_eq!(scorer.error("41?").await.kind, ErrorKind::NotApplicable);
    }
}

#[tokio::test]
async fn responses_are_texts_if_the_dataset_of_trl_is_not_conversational() {
    if is_skipped() {
        return;
    }
    let code =
        "def reward(prompts, completions):\n    return [len(prompts[0]) + len(completions[0])]";
    let scorer = with(code, json!({"function": "reward", "conversational": false}));
    assert_eq!(scorer.value("42").await, 8.0);
    let unused = refused(VERL, json!({"conversational": true}));
    assert!(unused.starts_with("`conversational`: expected no value with verl's"), "{unused}");
}

#[tokio::test]
async fn a_missing_column_is_named() {
    if is_skipped() {
        return;
    }
    let code = "def reward(completions, gold):\n    return [1.0]";
    let error = with(code, json!({"function": "reward"})).error("x").await;
    let expected = "`reward` needs the columns `gold`, which the row lacks: it has `data_source`, `ground_truth`, `solution`, `level`; ";
    assert!(error.reason.starts_with(expected), "{error}");
}

#[tokio::test]
async fn arguments_and_structured_ground_truths_reach_the_function() {
    if is_skipped() {
        return;
    }
    let code = "def compute_score(solution_str, ground_truth, extra_info, bonus=0, **others):\n    \
                return ground_truth['target'][0] + bonus + others['more']['by']";
    let options = json!({"json_ground_truth": true, "kwargs": {"bonus": 10, "more": {"by": 0.5}}});
    let scorer = with(code, options);
    let truth = |truth: &str| Sample::of("any", "x", Some(truth));
    let score = scorer.score_sample(&truth(r#"{"target": [2]}"#)).await;
    assert_eq!(score, Ok(12.5.into()));
    let error = scorer.score_sample(&truth("[")).await.expect_err("no JSON");
    assert!(error.reason.starts_with("field `ground_truth`: expected JSON because"), "{error}");
}

#[test]
fn parameters_that_no_call_can_satisfy_are_refused_at_the_start() {
    if is_skipped() {
        return;
    }
    let check = |code: &str, options: Value, expected: &str| {
        let error = refused(code, options);
        assert!(error.starts_with("cannot load `/") && error.contains(expected), "{error}");
    };
    let (none, trl) = (json!({}), json!({"function": "f"}));
    check("", none.clone(), "it has no function `compute_score`: its functions are none; name one");
    let two = "from os import getcwd\ndef f(): pass\nasync def g(): pass\nclass C: pass";
    check(two, none.clone(), "its functions are `f`, `g`; name one with the option `function`");
    check(two, json!({"function": "h"}), "it has no function `h`: its functions are `f`, `g`");
    let unclear = "cannot tell the signature of `f` from its parameters `x`, `y`: verl's has `solution_str`, and TRL's has";
    check("def f(x, y): pass", trl.clone(), unclear);
    let missing = "`f` needs the arguments `x`, which it cannot get: the signature `verl` passes";
    check("def f(x): pass", json!({"function": "f", "signature": "verl"}), missing);
    let state = "`f` needs the arguments `trainer_state`";
    check("def f(completions, trainer_state): pass", trl, state);
    let argument =
        "`kwargs.bonsu`: `compute_score` has no such parameter; it has `solution_str`, `bonus`";
    let code = "def compute_score(solution_str, bonus=1): pass";
    check(code, json!({"kwargs": {"bonsu": 1}}), argument);
    check(code, json!({"kwargs": {"solution_str": "x"}}), "gets this argument from the sample");
    check("def compute_score(a, /): pass", none.clone(), "positional-only");
    check("import absent_module", none.clone(), "No module named 'absent_module'\nTraceback (most");
    check("import absent_module", none.clone(), "reward.py\", line 1, in <module>");
    check("def f(:", none.clone(), "SyntaxError: ");
    check("exit(3)", none.clone(), "SystemExit: 3");
    check("import os\nos._exit(3)", none, "the process ended before it answered: exit status: 3");
}

#[test]
fn options_are_checked() {
    if is_skipped() {
        return;
    }
    let check = |options: Value, expected: &str| {
        let error = refused(VERL, options);
        assert!(error.starts_with(expected), "{error}");
    };
    check(json!({"processes": 0}), "`processes`: expected a number above 0, found 0");
    check(json!({"processes": 4097}), "`processes`: expected at most 4096, found 4097");
    check(json!({"timeout_s": 0.0}), "`timeout_s`: expected a number above 0, found 0");
    check(json!({"signature": "roll"}), "`signature`: expected one of");
    let interpreter = json!({"interpreter": "/nonexistent/python"});
    let error = refused(VERL, interpreter);
    assert!(error.contains("reward.py`: cannot start `/nonexistent/python`: No such"), "{error}");
    for (file, found) in [("/nonexistent.py", "No such file"), ("/", "not a file")] {
        let options = json!({"file": file}).as_object().expect("options").clone();
        let error = PythonReward::new(read(options).expect("options")).err().expect("refused");
        let expected = format!("`file`: expected a Python file, found `{file}`: {found}");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[tokio::test]
async fn modules_beside_the_file_and_data_classes_work() {
    if is_skipped() {
        return;
    }
    let code = "from dataclasses import dataclass\nimport pickle\n\
                @dataclass\nclass Point:\n    x: int\n\
                def compute_score(solution_str, ground_truth, **_):\n    import beside\n    \
                return beside.VALUE + pickle.loads(pickle.dumps(Point(1))).x\n\
                if __name__ == '__main__':\n    raise SystemExit('not a program')";
    let scorer = scorer(code);
    std::fs::write(scorer.folder.path().join("beside.py"), "VALUE = 2").expect("written");
    assert_eq!(scorer.value("x").await, 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_reward_passes_the_testkit() {
    if is_skipped() {
        return;
    }
    let right = "def compute_score(solution_str, ground_truth, **_):\n    return float(ground_truth in solution_str)";
    let options = json!({"processes": 2});
    for code in [right.to_owned(), right.replace("def ", "async def ")] {
        let Scorer { reward, folder: _folder } = with(&code, options.clone());
        let world = RewardWorld {
            samples: vec![sample("it is 42"), sample("41")],
            timeout: MAX_WAIT,
            is_deterministic: true,
        };
        check_reward(reward, &world).await.unwrap_or_else(|error| panic!("{error}"));
    }
}

//! Tests of the results of functions: values that are scores, and values that are not.

use super::*;

/// Returns a file whose function returns an expression.
fn returning(expression: &str) -> String {
    format!(
        "class Scalar:\n    def __float__(self): return 0.25\n    def __repr__(self): return 'S'\n\
         class Array:\n    def __float__(self): raise TypeError('2 numbers')\n    def __str__(self): return '[1 2]'\n\
         def compute_score(solution_str, **_):\n    return {expression}"
    )
}

fn listing(expression: &str) -> String {
    returning(expression).replace("(solution_str, **_)", "(completions, **_)")
}

#[tokio::test]
async fn numbers_of_any_type_are_scores() {
    if is_skipped() {
        return;
    }
    let decimal = "__import__('decimal').Decimal('0.25')";
    for (expression, expected) in
        [("1", 1.0), ("True", 1.0), ("-0.5", -0.5), ("Scalar()", 0.25), (decimal, 0.25)]
    {
        assert_eq!(scorer(&returning(expression)).value("x").await, expected, "{expression}");
        let list = scorer(&listing(&format!("[{expression}]")));
        assert_eq!(list.value("x").await, expected, "[{expression}]");
    }
    assert_eq!(scorer(&listing("iter((1.5,))")).value("x").await, 1.5);
}

#[tokio::test]
async fn entries_of_a_dict_are_components_and_labels() {
    if is_skipped() {
        return;
    }
    let dict = "{'score': Scalar(), 'acc': False, 'steps': 3, 'pred': 'ü\\ud800', 'none': None, 'list': [1, 'a'], 'array': Array(), \
                7: Scalar(), 'error': 'e', 'components': {'x': 1}}";
    let score = scorer(&returning(dict)).score("x").await.expect("scores");
    let expected = Score::from(0.25)
        .component("acc", 0.0)
        .component("steps", 3.0)
        .component("7", 0.25)
        .label("pred", "ü?")
        .label("list", r#"[1, "a"]"#)
        .label("array", "[1 2]")
        .label("error", "e")
        .label("components", r#"{"x": 1}"#);
    assert_eq!(score, expected);
}

#[tokio::test]
async fn an_invalid_score_is_named() {
    if is_skipped() {
        return;
    }
    let check = async |code: String, expected: &str| {
        let error = scorer(&code).error("x").await;
        assert_eq!(error.kind, ErrorKind::Fatal, "{error}");
        assert!(error.reason.starts_with(expected), "{error}");
    };
    let number = "the result: expected a number or a dict with `score`, found ";
    check(returning("None"), &format!("{number}None of the type `NoneType`")).await;
    check(returning("'1.0'"), &format!("{number}'1.0' of the type `str`")).await;
    check(returning("[1.0]"), &format!("{number}[1.0] of the type `list`")).await;
    check(returning("10 ** 400"), number).await;
    check(returning("float('nan')"), "the result: expected a finite number, found nan").await;
    check(returning("{'score': float('inf')}"), "`score`: expected a finite number, found inf")
        .await;
    check(
        returning("{'score': 1, 'acc': float('nan')}"),
        "`acc`: expected a finite number, found nan",
    )
    .await;
    check(
        returning("{'reward': 1}"),
        "the result: expected a dict with `score`, found one with `reward`",
    )
    .await;
    let list = "the result: expected a list of one number or None, found ";
    check(listing("1.0"), &format!("{list}1.0 of the type `float`")).await;
    check(listing("'1'"), &format!("{list}'1' of the type `str`")).await;
    check(listing("[1.0, 2.0]"), &format!("{list}2 entries")).await;
    check(listing("['a']"), &format!("{list}'a' of the type `str`")).await;
    check(returning("'x' * 10**6"), &format!("{number}'xxx")).await;
    check(returning("{'score': 1, **{str(n): 'x' * 9999 for n in range(200)}}"), "the result has ")
        .await;
}

#[tokio::test]
async fn none_and_nan_of_trl_are_not_applicable() {
    if is_skipped() {
        return;
    }
    for expression in ["[None]", "[float('nan')]"] {
        let error = scorer(&listing(expression)).error("x").await;
        assert_eq!(error.kind, ErrorKind::NotApplicable, "{error}");
    }
}

#[tokio::test]
async fn text_in_any_script_is_passed_unchanged() {
    if is_skipped() {
        return;
    }
    let code = "def compute_score(solution_str, **_):\n    print(solution_str)\n    return {'score': len(solution_str), 'said': solution_str[:9]}";
    let scorer = scorer(code);
    for response in ["", "答案 🧮 \u{202e}\0\r\n\"\\", "\u{fffd}\u{2028}"] {
        let score = scorer.score(response).await.expect("scores");
        let expected: String = response.chars().take(9).collect();
        assert_eq!(
            (score.value, &score.labels["said"]),
            (response.chars().count() as f64, &expected)
        );
    }
}

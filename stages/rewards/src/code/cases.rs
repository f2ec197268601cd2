//! The test cases of a prompt, in the forms that datasets use.
//!
//! | form | datasets | shape |
//! |---|---|---|
//! | tests | KodCode, ROLL `assert` and `pytest` | Python text, a list of such texts, or `{"test": ...}` |
//! | entry | HumanEval, LeetCodeDataset, ROLL `check_based` | `{"test", "entry_point", "prompt"}` |
//! | calls | TACO, APPS | `{"fn_name", "inputs", "outputs"}` |
//! | calls | LiveCodeBench, DeepCoder | a list of `{"input", "output", "testtype": "functional", "metadata": {"func_name"}}` |
//! | standard input and output | the same, ROLL `input` | `{"inputs", "outputs"}`, or a list of `{"stdin", "expected_stdout"}` or `{"input", "output"}` |
//! | text | ROLL `text` | Python text with `{response}` in it |
//!
//! ROLL's columns `case_type`, `test_cases` and `test_case_function` are read from `extra_info` or, if it has no `test_cases`, from the
//! ground truth. All other forms are read from the ground truth.
//!
//! The name of the function to call is `fn_name` or `func_name`: a field of the tests, of their `metadata`, of `extra_info` or of
//! `extra_info.metadata`. Without a name, tests with inputs and outputs are runs of a program. Tests whose `testtype` is `functional` must
//! have a name. The names in `extra_info` do not apply to tests whose `testtype` is `stdin`.

use serde_json::value::RawValue;

use rollpacker_sandbox::{Check, Stdio};
use rollpacker_stages::reward::{RewardError, Sample};

use super::calls::{call, calls, function_name, function_to_call};
use super::node::{Node, Object, keys, string, text_of, wrong};
use super::python::{Binding, Outline};

/// Returns the tests of a sample.
///
/// # Errors
/// If the dataset row has no tests, or they have none of the supported forms.
pub(super) fn check(sample: &Sample) -> Result<Check, RewardError> {
    let extra = match sample.extra_info.as_deref().map(Node::read) {
        Some(Node::Object(extra)) => extra,
        _ => Object::new(),
    };
    let row = Row { response: &sample.response, function: function_name(&extra) };
    if extra.contains_key("test_cases") {
        return roll(&extra, &row);
    }
    ground_truth(Node::read(sample.truth()?), &row)
}

/// The parts of a sample that apply to all of its tests.
struct Row<'a> {
    response: &'a str,
    /// The function that `extra_info` names.
    function: Option<String>,
}

fn ground_truth(truth: Node, row: &Row<'_>) -> Result<Check, RewardError> {
    match truth {
        Node::Text(code) => tests(vec![code], None),
        Node::List(items) => list(&items, None, row),
        Node::Object(object) => of_object(&object, row),
    }
}

fn of_object(object: &Object, row: &Row<'_>) -> Result<Check, RewardError> {
    let has = |field: &str| object.contains_key(field);
    if has("test_cases") {
        return roll(object, row);
    }
    if has("inputs") && has("outputs") {
        return inputs_and_outputs(object, row);
    }
    if has("stdin") || has("input") {
        return calls_or_runs(&[object], row);
    }
    for field in ["test", "tests", "test_code", "assert_code", "assert_case"] {
        if let Some(raw) = object.get(field) {
            return code_of(object, raw);
        }
    }
    Err(wrong(
        "ground_truth",
        "test, inputs and outputs, stdin and expected_stdout, or test_cases",
        &keys(object),
    ))
}

/// Parses test code. If the object names an `entry_point` and the code defines `check`, the result is a [`Check::Entry`], as for HumanEval.
/// Otherwise it is a [`Check::Tests`]; if the object has an `import_prefix`, the prelude and this code precede the solution.
fn code_of(object: &Object, raw: &RawValue) -> Result<Check, RewardError> {
    let texts = match Node::read(raw.get()) {
        Node::List(items) => items.iter().map(|item| text_of(item)).collect(),
        Node::Text(text) => vec![text],
        Node::Object(_) => return Err(wrong("test", "Python code", "an object")),
    };
    let import_prefix = string(object, "import_prefix")?.filter(|prefix| !prefix.trim().is_empty());
    match string(object, "entry_point")? {
        Some(entry_point) if texts.iter().any(|text| defines_check(text)) => Ok(Check::Entry {
            test: texts.join("\n"),
            entry_point,
            prompt: string(object, "prompt")?,
            import_prefix: import_prefix.unwrap_or_default(),
        }),
        _ => tests(texts, import_prefix),
    }
}

fn defines_check(test: &str) -> bool {
    Outline::of(test).module.get("check").is_some_and(|binding| *binding >= Binding::Stub)
}

/// Returns the check of test code. If `import_prefix` is given, the prelude and this code precede the solution.
fn tests(tests: Vec<String>, import_prefix: Option<String>) -> Result<Check, RewardError> {
    if tests.iter().all(|test| test.trim().is_empty()) {
        return Err(wrong("ground_truth", "test code", "nothing"));
    }
    let prelude = import_prefix.is_some();
    let import_prefix = import_prefix.unwrap_or_default();
    Ok(Check::Tests { tests, prelude, import_prefix, stop_at_failure: false })
}

/// Parses a list of test cases. If `function` is given, the function of this name is called with the inputs of all cases. Otherwise, if the
/// first case has `stdin` or `input`, the cases are [calls or runs](calls_or_runs). A single object without these fields is read like a
/// ground truth, and several objects must have Python tests in `assert_code`. A list of texts has one text of Python tests per entry.
fn list(
    items: &[Box<RawValue>],
    function: Option<String>,
    row: &Row<'_>,
) -> Result<Check, RewardError> {
    let nodes: Vec<Node> = items.iter().map(|item| Node::read(item.get())).collect();
    let objects: Vec<&Object> = nodes
        .iter()
        .filter_map(|node| if let Node::Object(object) = node { Some(object) } else { None })
        .collect();
    let Some(first) = objects.first() else {
        return tests(items.iter().map(|item| text_of(item)).collect(), Some(String::new()));
    };
    if objects.len() != nodes.len() {
        return Err(wrong("test_cases", "objects", "objects and others"));
    }
    match function {
        Some(function) => calls_of_list(function, &objects),
        None if first.contains_key("stdin") || first.contains_key("input") => {
            calls_or_runs(&objects, row)
        }
        None if objects.len() == 1 => of_object(first, row),
        None => tests(
            objects.iter().map(|object| assertions(object)).collect::<Result<_, _>>()?,
            Some(String::new()),
        ),
    }
}

/// Parses cases with an input and an output: calls if a [function](super::calls::function_to_call) is named, otherwise runs of a program.
fn calls_or_runs(objects: &[&Object], row: &Row<'_>) -> Result<Check, RewardError> {
    match function_to_call(objects, row.function.as_deref())? {
        Some(function) => calls_of_list(function, objects),
        None => stdio(objects.iter().copied()),
    }
}

fn assertions(object: &Object) -> Result<String, RewardError> {
    string(object, "assert_code")?.ok_or_else(|| {
        wrong("test_cases", "assert_code, or stdin and expected_stdout", &keys(object))
    })
}

fn stdio<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Result<Check, RewardError> {
    let cases = objects.into_iter().map(|object| {
        let (input, output) = input_and_output(object)?;
        Ok(Stdio { stdin: text_of(input), expected_stdout: text_of(output) })
    });
    Ok(Check::Stdio {
        cases: cases.collect::<Result<_, RewardError>>()?,
        prelude: true,
        stop_at_failure: false,
    })
}

fn input_and_output(object: &Object) -> Result<(&RawValue, &RawValue), RewardError> {
    let find = |names: [&str; 2]| {
        let found = names.iter().find_map(|name| object.get(*name));
        found.map(AsRef::as_ref).ok_or_else(|| wrong("test_cases", names[0], &keys(object)))
    };
    Ok((find(["stdin", "input"])?, find(["expected_stdout", "output"])?))
}

fn inputs_and_outputs(object: &Object, row: &Row<'_>) -> Result<Check, RewardError> {
    let column = |field: &str| Node::read(object[field].get()).list(field);
    let (inputs, outputs) = (column("inputs")?, column("outputs")?);
    if inputs.len() != outputs.len() || inputs.is_empty() {
        let found = format!("{} inputs and {} outputs", inputs.len(), outputs.len());
        return Err(wrong("ground_truth", "as many outputs as inputs, at least one", &found));
    }
    let pairs = inputs.iter().zip(&outputs);
    match function_to_call(&[object], row.function.as_deref())? {
        Some(function) => calls(function, pairs.map(|(input, output)| call(input, output))),
        None => {
            let case = pairs.map(|(input, output)| Stdio {
                stdin: text_of(input),
                expected_stdout: text_of(output),
            });
            Ok(Check::Stdio { cases: case.collect(), prelude: true, stop_at_failure: false })
        }
    }
}

fn calls_of_list(function: String, objects: &[&Object]) -> Result<Check, RewardError> {
    let call =
        |object: &&Object| input_and_output(object).and_then(|(input, output)| call(input, output));
    calls(function, objects.iter().map(call))
}

/// Parses ROLL's columns: checks of the response text if `case_type` is `text`, and otherwise the list in `test_cases`, with the function
/// that `test_case_function` names.
fn roll(columns: &Object, row: &Row<'_>) -> Result<Check, RewardError> {
    let items = Node::read(columns["test_cases"].get()).list("test_cases")?;
    let function =
        string(columns, "test_case_function")?.filter(|name| !name.is_empty() && name != "None");
    if items.is_empty() {
        return Err(wrong("test_cases", "at least one case", "none"));
    }
    if string(columns, "case_type")?.as_deref() != Some("text") {
        let named = function_name(columns).or_else(|| row.function.clone());
        let row = Row { response: row.response, function: named };
        return list(&items, function, &row);
    }
    let code = |item: &RawValue| match Node::read(item.get()) {
        Node::Object(object) => assertions(&object),
        _ => Ok(text_of(item)),
    };
    Ok(Check::Text {
        tests: items.iter().map(|item| code(item)).collect::<Result<_, _>>()?,
        response: answer(row.response).to_owned(),
        stop_at_failure: false,
    })
}

/// Returns the part of a response after the last `</think>`, or all of it, without surrounding blanks.
fn answer(response: &str) -> &str {
    response.rsplit_once("</think>").map_or(response, |(_, answer)| answer).trim()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Returns the check of a ground truth, and optionally of further columns, as the checker reads it.
    fn read(truth: &str, extra: Option<&str>) -> Result<Value, String> {
        let mut sample = Sample::of("s", "thought</think> say ", Some(truth));
        sample.extra_info = extra.map(str::to_owned);
        let found = check(&sample).map_err(|error| error.reason)?;
        Ok(serde_json::to_value(found).expect("it is written"))
    }

    fn truth(truth: &Value) -> Value {
        read(&truth.to_string(), None).expect("a check")
    }

    fn tests_of(texts: &[&str], prelude: bool) -> Value {
        json!({"kind": "tests", "tests": texts, "prelude": prelude, "stop_at_failure": false})
    }

    fn stdio_of(cases: &[(&str, &str)]) -> Value {
        let cases: Vec<Value> = cases
            .iter()
            .map(|(stdin, out)| json!({"stdin": stdin, "expected_stdout": out}))
            .collect();
        json!({"kind": "stdio", "cases": cases, "prelude": true, "stop_at_failure": false})
    }

    fn calls_of(function: &str, cases: &Value) -> Value {
        json!({"kind": "calls", "function": function, "cases": cases, "prelude": true, "stop_at_failure": false})
    }

    #[test]
    fn test_code() {
        let code = "from solution import f\ndef test_f():\n    assert f() == [1]";
        assert_eq!(read(code, None).expect("a check"), tests_of(&[code], false));
        assert_eq!(truth(&json!(code)), tests_of(&[code], false));
        assert_eq!(truth(&json!({"test": code})), tests_of(&[code], false));
        // Only a function of the module with exactly the name `check` makes an entry.
        for other in [
            "def check_sorted(x):\n    return x\nassert check_sorted(f()) == [1]",
            "class Test:\n    def check(self):\n        pass\n",
        ] {
            let named = json!({"test": other, "entry_point": "f"});
            assert_eq!(truth(&named), tests_of(&[other], false));
        }
        assert_eq!(
            truth(&json!(["assert f(1)", "assert f(2)"])),
            tests_of(&["assert f(1)", "assert f(2)"], true)
        );
    }

    #[test]
    fn human_eval() {
        let found = truth(
            &json!({"test": "def check(candidate):\n  pass", "entry_point": "f", "prompt": "def f():\n"}),
        );
        let expected = json!({
            "kind": "entry", "test": "def check(candidate):\n  pass", "entry_point": "f", "prompt": "def f():\n", "import_prefix": ""
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn standard_input_and_output() {
        assert_eq!(
            truth(&json!({"inputs": ["1\n", ["a", "b"]], "outputs": ["2", 3]})),
            stdio_of(&[("1\n", "2"), ("a\nb", "3")])
        );
        assert_eq!(
            truth(&json!([{"stdin": "1", "expected_stdout": "2"}])),
            stdio_of(&[("1", "2")])
        );
        assert_eq!(
            truth(&json!([{"input": "1", "output": "2", "type": "stdin_stdout"}])),
            stdio_of(&[("1", "2")])
        );
        assert_eq!(truth(&json!({"stdin": "1", "expected_stdout": "2"})), stdio_of(&[("1", "2")]));
        assert_eq!(
            truth(&json!({"inputs": ["1"], "outputs": ["2"], "fn_name": null})),
            stdio_of(&[("1", "2")])
        );
    }

    #[test]
    fn calls_of_a_function() {
        let twice =
            json!({"fn_name": "f", "inputs": [[1, [2]], "3\n\"x\""], "outputs": [[4], "[5]"]});
        let expected = json!([
            {"arguments": [1, [2]], "expected": [[4], 4]},
            {"arguments": [3, "x"], "expected": [[5], "[5]"]},
        ]);
        assert_eq!(truth(&twice), calls_of("f", &expected));
        let listed = json!([{"input": "7", "output": "true", "fn_name": "g"}]);
        assert_eq!(
            truth(&listed),
            calls_of("g", &json!([{"arguments": [7], "expected": [true, "true"]}]))
        );
    }

    #[test]
    fn functional_tests_of_livecodebench() {
        let case = |more: Value| {
            let mut case =
                json!({"input": "[2,7]\n9", "output": "[0, 1]", "testtype": "functional"});
            case.as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("fields").clone());
            case
        };
        let expected = calls_of(
            "twoSum",
            &json!([{"arguments": [[2, 7], 9], "expected": [[0, 1], "[0, 1]"]}]),
        );
        for named in [
            json!({"metadata": {"func_name": "twoSum"}}),
            json!({"metadata": "{\"func_name\": \"twoSum\"}"}),
            json!({"func_name": "twoSum"}),
            json!({"fn_name": "twoSum"}),
        ] {
            assert_eq!(truth(&json!([case(named.clone())])), expected, "{named}");
            assert_eq!(truth(&case(named.clone())), expected, "{named}");
        }
        let named = json!({"func_name": "twoSum", "inputs": ["[2,7]\n9"], "outputs": ["[0, 1]"]});
        assert_eq!(truth(&named), expected);

        let unnamed = json!([case(json!({"metadata": {}}))]).to_string();
        for extra in [
            json!({"metadata": {"func_name": "twoSum"}}),
            json!({"metadata": "{\"func_name\": \"twoSum\"}"}),
            json!({"func_name": "twoSum"}),
        ] {
            assert_eq!(read(&unnamed, Some(&extra.to_string())), Ok(expected.clone()), "{extra}");
        }
        let cases = json!({"fn_name": "twoSum", "test_cases": unnamed}).to_string();
        assert_eq!(read(&cases, None), Ok(expected.clone()));
        assert_eq!(read("", Some(&cases)), Ok(expected));
        let error = read(&unnamed, None).expect_err("no name");
        assert!(
            error.starts_with("field `func_name`: expected the name of the function"),
            "{error}"
        );
        let program = json!([{"input": "1", "output": "2", "testtype": "stdin", "metadata": {}}]);
        let extra = json!({"metadata": {"func_name": "f"}}).to_string();
        for extra in [None, Some(extra.as_str()), Some("{\"metadata\": {\"func_name\": null}}")] {
            assert_eq!(read(&program.to_string(), extra), Ok(stdio_of(&[("1", "2")])));
        }
        let assertions = json!([{"assert_code": "assert f(1)"}, {"assert_code": "assert f(2)"}]);
        assert_eq!(
            read(&assertions.to_string(), Some(&extra)),
            Ok(tests_of(&["assert f(1)", "assert f(2)"], true))
        );
    }

    #[test]
    fn names_and_types_that_are_not_texts_do_not_count() {
        let calls = calls_of("f", &json!([{"arguments": [7], "expected": [1, "1"]}]));
        let program = stdio_of(&[("7", "1")]);
        for (fields, expected) in [
            (json!({"testtype": 3}), &program),
            (json!({"testtype": ["functional"]}), &program),
            (json!({"fn_name": 3}), &program),
            (json!({"fn_name": ["f"], "testtype": null}), &program),
            (json!({"metadata": {"func_name": {"f": 1}}}), &program),
            (json!({"fn_name": 3, "func_name": "f"}), &calls),
            (json!({"fn_name": "", "func_name": "f"}), &calls),
            (json!({"fn_name": false, "metadata": {"func_name": "f"}}), &calls),
            (json!({"fn_name": "f", "testtype": 1}), &calls),
        ] {
            let mut case = json!({"input": "7", "output": "1"});
            let object = case.as_object_mut().expect("an object");
            object.extend(fields.as_object().expect("fields").clone());
            assert_eq!(truth(&json!([case])), *expected, "{fields}");
            assert_eq!(truth(&case), *expected, "{fields}");
        }
        let columns = json!({"fn_name": 3, "test_cases": [{"input": "7", "output": "1"}]});
        assert_eq!(read("", Some(&columns.to_string())), Ok(program));
    }

    #[test]
    fn columns_of_roll() {
        let roll = |columns: Value| read("", Some(&columns.to_string())).expect("a check");
        let cases = json!([{"assert_code": "assert f(1)"}, {"assert_code": "assert f(2)"}]);
        let expected = tests_of(&["assert f(1)", "assert f(2)"], true);
        assert_eq!(roll(json!({"case_type": "assert", "test_cases": cases})), expected);
        assert_eq!(roll(json!({"case_type": "pytest", "test_cases": cases.to_string()})), expected);
        let cases = json!([{"stdin": "1\n2", "expected_stdout": "3"}]);
        let plain =
            json!({"case_type": "input", "test_cases": cases, "test_case_function": "None"});
        assert_eq!(roll(plain), stdio_of(&[("1\n2", "3")]));
        let called = json!({"case_type": "input", "test_cases": cases, "test_case_function": "f"});
        assert_eq!(
            roll(called),
            calls_of("f", &json!([{"arguments": [1, 2], "expected": [3, "3"]}]))
        );
        let text = json!({"case_type": "text", "test_cases": [{"assert_code": "assert {response} == 'say'"}]});
        let expected = json!({"kind": "text", "tests": ["assert {response} == 'say'"], "response": "say", "stop_at_failure": false});
        assert_eq!(roll(text), expected);
        let checked = json!({"case_type": "check_based", "test_cases": [
            {"assert_code": "def check(c):\n  assert c(1)", "import_prefix": "import math\n", "entry_point": "f"}]});
        assert_eq!(roll(checked)["import_prefix"], "import math\n");
    }

    #[test]
    fn an_invalid_check_is_reported() {
        let wrong = |truth: Value| read(&truth.to_string(), None).expect_err("no check");
        assert_eq!(
            wrong(json!({"answer": 3})),
            "field `ground_truth`: expected test, inputs and outputs, stdin and expected_stdout, or test_cases, found answer"
        );
        assert_eq!(
            wrong(json!({"inputs": ["1"], "outputs": []})),
            "field `ground_truth`: expected as many outputs as inputs, at least one, found 1 inputs and 0 outputs"
        );
        assert_eq!(
            wrong(json!({"fn_name": "f", "inputs": ["x y"], "outputs": ["1"]})),
            "field `inputs`: expected a list, or a JSON value on each line, found `x y`"
        );
        assert_eq!(
            wrong(json!([{"x": 1}, {"y": 2}])),
            "field `test_cases`: expected assert_code, or stdin and expected_stdout, found x"
        );
        assert_eq!(wrong(json!("")), "field `ground_truth`: expected test code, found nothing");
    }

    #[test]
    fn long_integers_are_preserved() {
        let truth =
            r#"{"fn_name": "f", "inputs": [[123456789012345678901234567890]], "outputs": [1]}"#;
        let check = check(&Sample::of("s", "", Some(truth))).expect("a check");
        assert!(
            serde_json::to_string(&check)
                .expect("it is written")
                .contains("[123456789012345678901234567890]")
        );
    }

    proptest! {
        #[test]
        fn any_truth_is_read_without_a_panic(truth in r#"[\[\]{}":,a1 ]{0,20}|\{"(inputs|test|stdin|test_cases)":[\[\]"1,]{0,8}\}"#) {
            let _ = read(&truth, Some(&truth));
        }
    }
}

//! Tests that call a function.

use rollpacker_sandbox::{Call, Check, Json};
use rollpacker_stages::reward::RewardError;
use serde_json::value::RawValue;

use super::node::{Node, Object, brief, text, text_of, wrong};

/// Returns the function to call with the inputs of tests; `None` if the inputs are those of a program. `of_row` is the function that
/// `extra_info` names.
///
/// # Errors
/// If the type of a test is `functional` but no function is named.
pub(super) fn function_to_call(
    tests: &[&Object],
    of_row: Option<&str>,
) -> Result<Option<String>, RewardError> {
    if let Some(function) = tests.iter().find_map(|test| function_name(test)) {
        return Ok(Some(function));
    }
    let types: Vec<_> = tests.iter().filter_map(|test| text(test, "testtype")).collect();
    let has = |name: &str| types.iter().any(|kind| kind.eq_ignore_ascii_case(name));
    let function = of_row.filter(|_| !has("stdin")).map(str::to_owned);
    if function.is_none() && has("functional") {
        return Err(wrong(
            "func_name",
            "the name of the function to call, in each case, in its `metadata` or in `extra_info.metadata`, since `testtype` is `functional`",
            "none",
        ));
    }
    Ok(function)
}

/// Returns the name in `fn_name` or `func_name` of an object or of its `metadata`. Fields of these names that are not texts have another
/// meaning.
pub(super) fn function_name(object: &Object) -> Option<String> {
    let named = |object: &Object| {
        let mut names =
            ["fn_name", "func_name"].into_iter().filter_map(|field| text(object, field));
        names.find(|name| !name.trim().is_empty())
    };
    let in_metadata = || match Node::read(object.get("metadata")?.get()) {
        Node::Object(metadata) => named(&metadata),
        _ => None,
    };
    named(object).or_else(in_metadata)
}

pub(super) fn calls(
    function: String,
    cases: impl Iterator<Item = Result<Call, RewardError>>,
) -> Result<Check, RewardError> {
    Ok(Check::Calls {
        function,
        cases: cases.collect::<Result<_, _>>()?,
        prelude: true,
        stop_at_failure: false,
    })
}

/// Parses a call, from a list of arguments or a text with one argument as JSON on each line.
pub(super) fn call(input: &RawValue, output: &RawValue) -> Result<Call, RewardError> {
    let arguments = match serde_json::from_str::<Vec<Box<RawValue>>>(input.get()) {
        Ok(arguments) => arguments.iter().map(|argument| Json::from(argument.as_ref())).collect(),
        Err(_) => text_of(input)
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(argument)
            .collect::<Result<_, _>>()?,
    };
    Ok(Call { arguments, expected: expected(output) })
}

fn argument(line: &str) -> Result<Json, RewardError> {
    Json::parse(line.trim())
        .map_err(|_| wrong("inputs", "a list, or a JSON value on each line", &brief(line)))
}

/// Returns the accepted results of a call. The output itself is always accepted. If it is a string that contains JSON, the parsed value is
/// accepted, too. If it is a list of one element, the element is accepted, too, since some datasets wrap the output in a list.
fn expected(output: &RawValue) -> Vec<Json> {
    let mut found = vec![Json::from(output)];
    if let Ok(text) = serde_json::from_str::<String>(output.get()) {
        found.splice(0..0, Json::parse(text.trim()).ok());
    } else if let Ok([only]) = serde_json::from_str::<Vec<Box<RawValue>>>(output.get()).as_deref() {
        found.push(Json::from(only.as_ref()));
    }
    found
}

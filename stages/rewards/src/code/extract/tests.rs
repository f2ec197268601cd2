use proptest::prelude::*;

use super::*;

fn fences() -> Fences {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    [("python".to_owned(), names(&["py", "python3"])), ("cpp".to_owned(), names(&["c++"]))].into()
}

#[track_caller]
fn check_for(wanted: &Wanted, response: &str, expected: Option<(&str, &str)>) {
    let fences = fences();
    let found = extract(response, &fences, wanted);
    let found = found.as_ref().map(|program| (program.language, program.code.as_str()));
    assert_eq!(found, expected, "{response}");
}

/// Checks the language and the code that are extracted for tests that require no names.
#[track_caller]
fn check(response: &str, expected: Option<(&str, &str)>) {
    check_for(&Wanted::names([], false), response, expected);
}

/// Checks the solution for tests that require a function `f`, whose body alone is accepted.
#[track_caller]
fn check_f(response: &str, expected: &str) {
    check_for(&Wanted::names(["f"], true), response, Some(("python", expected)));
}

/// Checks the code of a Python program that is run as a whole.
#[track_caller]
fn check_program(response: &str, expected: &str) {
    check_for(&Wanted::Program, response, Some(("python", expected)));
}

const F: &str = "def f(a):\n    return a\n";

#[test]
fn the_last_block_in_a_known_language_is_chosen() {
    check("```python\na\n```\nthen\n```py\nb\n```\n```bash\npip\n```", Some(("python", "b\n")));
    check("```python\na\n```\n```C++\nb\n```", Some(("cpp", "b\n")));
    check("```\na = 1\n```\n", Some(("python", "a = 1\n")));
    check("```\na = 1\n```\n```python\nb\n```\n```\noutput\n```", Some(("python", "b\n")));
    check("```java\na\n```", None);
    check("```python\na\nb", Some(("python", "a\nb")));
    check("```x``` alone", Some(("python", "```x``` alone")));
}

#[test]
fn the_thinking_does_not_count() {
    check("<think>```python\na\n```</think>\n```python\nb\n```", Some(("python", "b\n")));
    check("```python\na\n```</think>  return 1\n", Some(("python", "  return 1\n")));
}

#[test]
fn names_of_python() {
    let named = [
        "python",
        "Python",
        "PYTHON",
        "py",
        "python3",
        "python3.11",
        "ipython3",
        "{python}",
        "{.python}",
        "{python, eval=FALSE}",
        "{.python .numberLines}",
        "python title=\"x\"",
        "python:main.py",
        "python{1,3}",
        "python=",
        "main.py",
        "language-python",
        " python ",
        "python,ignore",
    ];
    for info in named {
        check_f(&format!("```{info}\nb = 1\n```\n```text\nf = 2\n```"), "f = 2\n");
        check(&format!("```{info}\nb = 1\n```\n```text\nf = 2\n```"), Some(("python", "b = 1\n")));
    }
    for info in ["pycon", "python-repl", "bash", "json", "cpython-dis", "c"] {
        check(&format!("```{info}\nb = 1\n```"), None);
    }
    check("```main.cpp\nb\n```", Some(("cpp", "b\n")));
}

#[test]
fn the_last_block_that_defines_the_required_names_is_chosen() {
    let fenced = format!("```python\n{F}```\n");
    for after in [
        "```python\nprint(f(1))  # 1\n```",
        "```python\nfrom solution import f\n\nassert f(1) == 1\n```",
        "```python\ndef test_f():\n    assert f(1) == 1\n```",
        "```\n1\n```",
        "```pycon\n>>> f(1)\n1\n```",
        "```bash\npython f.py\n```",
        "The signature is\n```python\ndef f(a):\n    ...\n```",
        "f(1) gives 1.\n\nf = good",
        "",
    ] {
        check_f(&format!("{fenced}{after}"), F);
        check_f(
            &format!("First:\n```python\ndef f(a):\n    return -a\n```\nNo:\n{fenced}{after}"),
            F,
        );
    }
    check_f(&format!("Use:\n```python\nprint(f(1))\n```\n```\n{F}```"), F);
    check_f(&format!("{F}\nUse:\n```python\nprint(f(1))\n```"), F);
    check_f(&format!("{F}```\nIt gives back what it gets."), F);
    check_f(&format!("```sage\n{F}```"), F);
    check_f("```python\nf = lambda a: a\n```\n```python\nprint(f(1))\n```", "f = lambda a: a\n");
}

#[test]
fn imports_and_helpers_of_other_blocks_are_added() {
    let f = "def f(a):\n    return g(a) + np.pi\n";
    let blocks = |blocks: &[&str]| {
        blocks.iter().map(|code| format!("Then:\n```python\n{code}```\n")).collect::<String>()
    };
    let (import, g, draft, usage) = (
        "import numpy as np\n",
        "def g(a):\n    return a\n",
        "def g(a):\n    return -a\n",
        "x = f(1)\nprint(x)\n",
    );
    check_f(&blocks(&[import, draft, g, usage, f, usage]), &format!("{import}{g}{f}"));
    check_f(&blocks(&[f, g, import]), &format!("{f}{g}{import}"));
    check_f(&blocks(&[draft, usage, F, usage]), F);
    // Names of annotations and default values are no parameters.
    let node = "class Node:\n    pass\n";
    let typed = "def f(a: Dict[str, Node], b=Node(a, c)):\n    return a\n";
    check_f(&blocks(&[node, usage, typed]), &format!("{node}{typed}"));
    let tests = Wanted::of_tests(&[
        "from solution import f, g\n\ndef test_x():\n    assert f(x) == g(x)\n".into(),
    ]);
    check_for(&tests, &blocks(&[g, F, usage]), Some(("python", &format!("{g}{F}"))));
}

#[test]
fn names_that_tests_require() {
    let names = |test: &str| match Wanted::of_tests(&[test.into()]) {
        Wanted::Names { names, .. } => names.into_iter().collect::<Vec<_>>(),
        Wanted::Program => panic!("tests ask for names"),
    };
    assert_eq!(names("from solution import f as g, C\nassert g(1) == x"), ["C", "f"]);
    assert_eq!(names("y = 1\nassert f(y) == 2"), ["f"]);
    assert_eq!(names("import solution\ndef test_f():\n    assert solution.f(1)"), ["f"]);
    assert_eq!(names("from solution import *\ndef test_f():\n    assert f(1)"), ["f"]);
}

#[test]
fn a_body_suffices_if_the_prompt_has_the_signature() {
    let body = "    b = a\n    return b\n";
    for response in [
        body.to_owned(),
        format!("```python\n{body}```\n```python\nprint(f(1))\n```"),
        format!("The body:\n\n```\n{body}```"),
        format!("So:\n\n{body}\nThat is it."),
        format!("<think>\n```python\n{F}```\n</think>{body}"),
    ] {
        check_f(&response, body);
    }
    check_f("```python\nreturn a\n```\n```python\nprint(f(1))\n```", "return a\n");
    check_f("```python\n    def f(a):\n        return a\n```", F);
    check_f(
        "```python\n    def g(a):\n        return a\n    return g(a)\n```",
        "    def g(a):\n        return a\n    return g(a)\n",
    );
}

#[test]
fn a_program_is_the_block_that_reads_and_acts() {
    let program = "n = int(input())\nprint(n)\n";
    for (before, after) in [
        ("", "```\n3\n```"),
        ("```\n3\n```\n", "```python\nprint(3)\n```\n"),
        ("```python\ndef solve(n):\n    return n\n```\n", "Output: 3"),
    ] {
        check_program(&format!("{before}```python\n{program}```\n{after}"), program);
    }
    let (define, call) =
        ("def main():\n    print(input())\n", "if __name__ == '__main__':\n    main()\n");
    check_program(
        &format!("```python\n{define}```\n```python\n{call}```"),
        &format!("{define}{call}"),
    );
    check_program("```python\nprint(1)\n```\n```\n1\n```", "print(1)\n");
    check_program(&format!("Read it:\n\n{program}\nThat prints it."), program);
}

#[test]
fn very_many_blocks_are_read_in_linear_time() {
    let block = |number: usize| {
        format!(
            "```py\nx{number} = x{} + y{number}\nprint(x{number})\n```\n",
            number.wrapping_sub(1)
        )
    };
    let response: String = (0..4_000).map(block).collect();
    let fences = fences();
    assert!(extract(&response, &fences, &Wanted::Program).is_some());
    let deep = format!("{}\n{}", "(".repeat(1 << 18), "> ".repeat(1 << 18));
    assert!(extract(&deep, &fences, &Wanted::names(["f"], true)).is_some());
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(
        text in "(```|~~~|python|\n|</think>|ä| |def f\\(a\\):|    |return a|'''|> |1\\. |\\(){0,60}"
    ) {
        for wanted in [Wanted::names(["f"], true), Wanted::Program] {
            let _ = extract(&text, &fences(), &wanted);
        }
    }
}

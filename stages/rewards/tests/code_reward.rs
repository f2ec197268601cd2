//! The reward `code` on real datasets, and against code that games the score instead of solving the task.

use std::sync::LazyLock;

use futures::executor::block_on;
use futures::future::join_all;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_datasets::{Cursor, Dataset, DatasetConfig};
use rollpacker_rewards::{Code, CodeConfig, CodeScore};
use rollpacker_sandbox::{Language, SandboxConfig};
use rollpacker_stages::reward::{Context, Limits, Reward, RewardError, Sample, Score};

static CODE: LazyLock<Code> = LazyLock::new(|| start(CodeConfig::default()));
static FRACTION: LazyLock<Code> =
    LazyLock::new(|| start(CodeConfig { score: CodeScore::Fraction, ..CodeConfig::default() }));

fn start(mut config: CodeConfig) -> Code {
    config.sandbox.slots = 2;
    Code::start(config).expect("there is a sandbox")
}

fn score(code: &Code, response: &str, truth: &str) -> Result<Score, RewardError> {
    block_on(code.score(&Sample::of("s", response, Some(truth)), &context()))
}

/// Returns a context with a limit of five seconds per case.
fn context() -> Context {
    Context::detached().with_limits(Limits::fixed(Nanos::from_secs_f64(5.0)))
}

/// Checks the value and the outcome of a response.
#[track_caller]
fn check(response: &str, truth: &str, expected: (f64, &str)) {
    let found = score(&CODE, response, truth).expect("it is scored");
    assert_eq!((found.value, found.labels["outcome"].as_str()), expected, "{:?}", found.labels);
}

fn fenced(code: &str) -> String {
    format!("Here it is:\n```python\n{code}\n```\n")
}

#[expect(clippy::print_stderr, reason = "a skipped test prints a message")]
fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}

/// Returns a sample for each row of the HumanEval data, whose response is `body` of the reference answer. Returns `None` if
/// `ROLLPACKER_SHARED` is not set.
fn human_eval(body: impl Fn(&str) -> String) -> Option<Vec<Sample>> {
    let Ok(shared) = std::env::var("ROLLPACKER_SHARED") else {
        skipped("ROLLPACKER_SHARED is not set");
        return None;
    };
    let files = vec![format!("{shared}/data/humaneval_even.parquet")];
    let dataset =
        Dataset::open(DatasetConfig { files, shuffle: false, ..DatasetConfig::default() })
            .expect("it opens");
    let prompts = dataset.prompts(Cursor::default()).expect("it reads").until_epoch(1);
    let sample = |prompt: rollpacker_datasets::Prompt| {
        let truth = prompt.ground_truth().expect("there is a ground truth");
        let answer = prompt.extra_info()["answer"].as_str().expect("there is an answer").to_owned();
        Sample::of("humaneval", &body(&answer), Some(&truth))
    };
    Some(prompts.map(|prompt| sample(prompt.expect("it is a prompt"))).collect())
}

fn passed(samples: &[Sample]) -> usize {
    let context = context();
    let scores = block_on(join_all(samples.iter().map(|sample| CODE.score(sample, &context))));
    let scores = scores.into_iter().map(|score| score.expect("it is scored"));
    scores.filter(|score| score.value > 0.0).count()
}

#[test]
fn human_eval_passes_with_the_answers_and_fails_without() {
    let Some(samples) = human_eval(str::to_owned) else { return };
    assert_eq!((samples.len(), passed(&samples)), (82, 82));
    let samples = human_eval(|_| "    pass\n".to_owned()).expect("there is the data");
    assert_eq!(passed(&samples), 0);
}

#[test]
fn human_eval_rejects_known_hacks() {
    let everything = "    class E:\n        __eq__ = __le__ = __lt__ = __ge__ = __gt__ = __contains__ = lambda s, o: True\n\
        \x20       __sub__ = __rsub__ = __add__ = __mul__ = __truediv__ = lambda s, o: 0\n        __abs__ = __float__ = lambda s: 0.0\n\
        \x20       __len__ = lambda s: 0\n        __iter__ = lambda s: iter([])\n        __getitem__ = lambda s, i: s\n    return E()\n";
    let selves = everything.replace("lambda s, o: 0\n", "lambda s, o: s\n");
    for hack in [everything, &selves, "    import os; os._exit(0)\n", "    raise SystemExit(0)\n"] {
        let Some(samples) = human_eval(|_| (*hack).to_owned()) else { return };
        assert_eq!(passed(&samples), 0, "{hack}");
    }
}

const ADD: &str = "from solution import add\nimport pytest\n\n@pytest.mark.parametrize('a, b, c', [(1, 2, 3), ('a', 'b', 'ab'), ([1], [2], [1, 2])])\n\
    def test_add(a, b, c):\n    assert add(a, b) == c\n\ndef test_types():\n    with pytest.raises(TypeError):\n        add(1, 'a')\n\
    \ndef test_near():\n    assert add(0.1, 0.2) == pytest.approx(0.3)\n";

#[test]
fn tests_that_do_not_depend_on_the_solution_are_not_counted() {
    let right = fenced("def f(x):\n    return x + 1");
    for other in ["assert True", "limit = 3"] {
        let truth = serde_json::json!(["assert f(1) == 2", other]).to_string();
        check(&right, &truth, (1.0, "passed"));
        check(&fenced("def f(x):\n    return x"), &truth, (0.0, "failed"));
    }
}

#[test]
fn tests_that_skip_themselves_are_not_counted() {
    let (right, wrong) = (fenced("def f(x):\n    return x + 1"), fenced("def f(x):\n    return x"));
    for skipped in [
        "import pytest\n@pytest.mark.skip\ndef test_f():\n    assert f(1) == 3",
        "import pytest\ndef test_f():\n    pytest.skip('no')\n    assert f(1) == 3",
        "import pytest\npytest.importorskip('no_such_module')\ndef test_f():\n    assert f(1) == 3",
        "import unittest\n@unittest.skip('no')\nclass TestF(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 3)",
    ] {
        // The first text does not depend on the solution.
        let truth = serde_json::json!(["assert True", skipped, "assert f(1) == 2"]).to_string();
        check(&right, &truth, (1.0, "passed"));
        check(&wrong, &truth, (0.0, "failed"));
        let found = score(&FRACTION, &right, &truth).expect("it is scored");
        assert_eq!(found.value, 1.0, "{skipped}");
        check(&right, &serde_json::json!([skipped]).to_string(), (0.0, "failed"));
    }
    // The test after a skipped one does not depend on the solution.
    let independent = "import pytest\ndef test_a():\n    pytest.skip()\ndef test_b():\n    assert True\ndef test_c():\n    assert f(1) == 2";
    let found = score(&FRACTION, &wrong, independent).expect("it is scored");
    assert_eq!(found.value, 0.0, "{:?}", found.labels);
    // The name of the class is not that of a test.
    let none = "class Checks:\n    def test_f(self):\n        assert f(1) == 2";
    let truth = serde_json::json!(["assert f(1) == 2", none]).to_string();
    check(&right, &truth, (0.0, "failed"));
}

#[test]
fn an_import_prefix_precedes_the_solution_of_assertions() {
    let truth =
        r#"{"test": "assert f(Pair()) == 3", "import_prefix": "class Pair:\n    a, b = 1, 2"}"#;
    check(&fenced("def f(pair: Pair):\n    return pair.a + pair.b"), truth, (1.0, "passed"));
    check(&fenced("def f(pair: Pair):\n    return pair.a"), truth, (0.0, "failed"));
}

/// The first class ends with a skipped test. Its fixture must not reach the second class, and its tear-down must run.
const CLASSES: &str = "import pytest\nfrom solution import f\nlog = []\n\n@pytest.fixture(scope='class')\ndef made():\n    log.append('made')\n\n\
    class TestFirst:\n    @classmethod\n    def teardown_class(cls):\n        log.append('left')\n    def test_one(self, made):\n        assert f() == 1\n    \
    @pytest.mark.skip\n    def test_two(self):\n        pass\n\nclass TestSecond:\n    def test_three(self, made):\n        assert f() == 1\n        \
    assert log == ['made', 'left', 'made']\n";

#[test]
fn a_class_is_left_after_a_skipped_test() {
    for mark in ["skip", "xfail(run=False)"] {
        let classes = CLASSES.replace("mark.skip", &format!("mark.{mark}"));
        check(&fenced("def f():\n    return 1"), &classes, (1.0, "passed"));
    }
}

#[test]
fn tests_of_a_module() {
    check(&fenced("def add(a, b):\n    return a + b"), ADD, (1.0, "passed"));
    check(&fenced("def add(a, b):\n    return a - b"), ADD, (0.0, "failed"));
    check(&fenced("def add(a, b): return 3"), ADD, (0.0, "failed"));
    check(&fenced("def add(a, b) return 3"), ADD, (0.0, "compile_error"));
    check(&fenced("def sum(a, b): return 3"), ADD, (0.0, "failed"));
    check(&fenced("def add(a, b): return bytearray(10 ** 11)"), ADD, (0.0, "memory"));
    check("```java\nint add\n```", ADD, (0.0, "no_code"));
    check("", ADD, (0.0, "no_code"));
}

#[test]
fn a_share_of_the_tests() {
    let found = score(&FRACTION, &fenced("def add(a, b):\n    return a + b if a != 1 else 3"), ADD)
        .expect("it is scored");
    assert_eq!((found.value, found.labels["outcome"].as_str()), (0.8, "failed"));
    assert_eq!((found.executions.len(), found.components["passed"]), (5, 0.8));
    let found = score(
        &FRACTION,
        "def f(a):\n    return a",
        "assert f(1) == 1\nassert f(2) == 3\nassert f(4) == 4",
    )
    .expect("it is scored");
    assert!((found.value - 2.0 / 3.0).abs() < 1e-9);
}

#[test]
fn cases_that_were_not_run_did_not_pass() {
    let truth = r#"{"fn_name": "double", "inputs": [[1], [2], [3], [4]], "outputs": [2, 4, 6, 8]}"#;
    let response = fenced("def double(a): return 2 * a if a != 2 else 5");
    let found = score(&CODE, &response, truth).expect("it is scored");
    assert_eq!((found.executions.len(), found.components["passed"]), (2, 0.25));
    let found = score(&FRACTION, &response, truth).expect("it is scored");
    assert_eq!((found.executions.len(), found.components["passed"]), (4, 0.75));
}

#[test]
fn bounds_that_leave_nothing_to_run_in_are_refused() {
    let refused = |sandbox: SandboxConfig| {
        let config = CodeConfig { sandbox, ..CodeConfig::default() };
        Code::start(config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let usual = SandboxConfig::default;
    assert_eq!(
        refused(SandboxConfig { slots: 0, ..usual() }),
        "`slots`: expected from 1 to 1024, found 0"
    );
    assert_eq!(
        refused(SandboxConfig { memory_bytes: 512, ..usual() }),
        "`memory_bytes`: expected at least 1048576, found 512"
    );
    assert_eq!(
        refused(SandboxConfig { processes: 0, ..usual() }),
        "`processes`: expected at least 1, found 0"
    );
}

/// Solutions that game the score instead of adding are scored as wrong.
#[test]
fn hacks_of_the_score_are_wrong() {
    let hacks = [
        "class E:\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0.0\ndef add(a, b): return E()",
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef add(a, b): return E()",
        "class M(type):\n    def __eq__(self, other): return True\nclass E(metaclass=M): pass\ndef add(a, b): return E",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "import sys\ndef add(a, b): sys.exit(0)",
        "import os\ndef add(a, b): os._exit(0)",
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda a: 3\nbuiltins.AssertionError = Exception\ndef add(a, b): return 3",
        "import sys\ndef trace(frame, event, arg):\n    frame.f_trace_lines = False\n    return trace\nsys.settrace(trace)\ndef add(a, b): return 3",
        "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n        for v in list(f.f_locals.values()) + list(f.f_globals.values()):\n\
        \x20           if isinstance(v, dict) and 'c' in v: return v['c']\n        f = f.f_back\n    raise LookupError",
        "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'c' in o and 'a' in o: return o['c']\n    raise LookupError",
        "print('{\"verdict\": {\"cases\": [{\"outcome\": \"passed\"}]}}')\ndef add(a, b): print('5 passed'); return None",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): raise SystemExit(0)",
        "import sys, types\nfake = types.ModuleType('pytest')\nfake.raises = fake.approx = lambda *a: None\nsys.modules['pytest'] = fake\ndef add(a, b): return 3",
        "import unittest\ndef add(a, b): raise unittest.SkipTest('no')",
        "class Skipped(Exception): pass\nSkipped.__module__ = 'pytest'\ndef add(a, b): raise Skipped",
        "class Skipped(BaseException): pass\nSkipped.__module__ = 'rollpacker_pytest_shim'\ndef add(a, b): raise Skipped",
        "class Unsupported(BaseException): pass\nUnsupported.__module__ = 'rollpacker_wire'\ndef add(a, b): raise Unsupported",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"verdict\": {}}\\n' * 100)\n    except OSError: pass\ndef add(a, b): return 3",
        "import os\ndef add(a, b):\n    os.close(3)\n    return 3",
        "import sys, rollpacker_wire as w\nw.Peer.send = lambda *a: None\ndef add(a, b): return 3",
    ];
    for hack in hacks {
        let found =
            score(&CODE, &fenced(hack), ADD).expect("a hack is scored, not reported as an error");
        assert_eq!(found.value, 0.0, "{hack}");
    }
    check(&fenced("def add(a, b):\n    return a + b"), ADD, (1.0, "passed"));
}

/// The solutions write forged messages to the link: pickles that would have effects if they were loaded as pickles.
#[test]
fn a_forged_message_does_nothing() {
    let forge = |payload: &str| {
        fenced(&format!(
            "import os, struct, pickle\ndef add(a, b):\n    p = {payload}\n    os.write(3, struct.pack('<I', len(p)) + p)\n    return 3"
        ))
    };
    for payload in [
        "b'cos\\n_exit\\n(I0\\ntR.'",
        "b'cbuiltins\\neval\\n(Vprint(1)\\ntR.'",
        "b'cx\\nx\\n(Vtype\\nVtype\\ntR.'",
        "b'cx\\nx\\n(V__class__\\ntR.'",
        "b'cx\\nx\\n(Vproxy\\nI0\\n(Vx\\n(V__eq__\\nttttR.'",
        "b'\\x80\\x05' + b'(' * 100000",
        "pickle.dumps(('answer', 3, [(7, [])], None))",
        "pickle.dumps(('loaded',))",
        "b''",
    ] {
        let found = score(&CODE, &forge(payload), ADD)
            .expect("the response is scored, not reported as an error");
        assert_eq!(found.value, 0.0, "{payload}");
    }
}

#[test]
fn programs() {
    let truth = r#"{"inputs": ["1 2\n", "3 4\n"], "outputs": ["3", "7\n"]}"#;
    check(&fenced("print(sum(map(int, input().split())), ' ')"), truth, (1.0, "passed"));
    check(
        &fenced("import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit(0)"),
        truth,
        (1.0, "passed"),
    );
    check(&fenced("print(3)"), truth, (0.0, "failed"));
    check(&fenced("while True: print(3)"), truth, (0.0, "failed"));
    check(&fenced("print(3); import sys; sys.exit(2)"), truth, (0.0, "runtime_error"));
    check(&fenced("print(1 +)"), truth, (0.0, "compile_error"));
    check(&fenced("a = bytearray(10 ** 11)"), truth, (0.0, "memory"));
}

#[test]
fn calls() {
    let truth =
        r#"{"fn_name": "pairs", "inputs": [[[3, 1, 2]], [[]]], "outputs": [[[1, 2], [2, 3]], []]}"#;
    let sorted = "def pairs(self, items: List[int]):\n    items.sort()\n    return list(zip(items, items[1:]))";
    check(&fenced(&sorted.replace("self, ", "")), truth, (1.0, "passed"));
    check(
        &fenced(&format!("class Solution:\n    {}", sorted.replace('\n', "\n    "))),
        truth,
        (1.0, "passed"),
    );
    check(&fenced("def pairs(items): return [[1, 2], [2, 3]]"), truth, (0.0, "failed"));
    check(
        &fenced("def pairs(items):\n    while True: pass"),
        r#"{"fn_name": "pair", "inputs": [[1]], "outputs": [2]}"#,
        (0.0, "runtime_error"),
    );
}

#[test]
fn integers_of_any_length() {
    let power = format!("1{}", "0".repeat(5000));
    let truth =
        serde_json::json!({"fn_name": "f", "inputs": ["5000"], "outputs": [power]}).to_string();
    check(&fenced("def f(n): return 10 ** n"), &truth, (1.0, "passed"));
    check(&fenced("def f(n): return 10 ** n + 1"), &truth, (0.0, "failed"));
}

/// The form of LeetCodeDataset: the entry point is a method.
#[test]
fn the_entry_point_may_be_a_method() {
    let truth = serde_json::json!({
        "prompt": "from typing import *\n\nclass Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n",
        "entry_point": "Solution().reverse",
        "test": "def check(candidate):\n    head = candidate(Node(1, Node(2)))\n    assert (head.value, head.next.value) == (2, 1)",
    })
    .to_string();
    let method = "class Solution:\n    def reverse(self, head: Optional[Node]) -> Optional[Node]:\n        last = None\n        \
        while head:\n            head.next, last, head = last, head, head.next\n        return last";
    check(&fenced(method), &truth, (1.0, "passed"));
    // As in ROLL.
    let in_prefix = truth.replace("\"prompt\"", "\"import_prefix\"");
    check(&fenced(method), &in_prefix, (1.0, "passed"));
    check(
        &fenced(&method.replace("return last", "return Node(2, Node(2))")),
        &truth,
        (0.0, "failed"),
    );
    check(&fenced("def reverse(head): return head"), &truth, (0.0, "runtime_error"));
}

#[test]
fn text() {
    let mut sample = Sample::of("s", "<think>no</think>it's \"so\"\n", None);
    sample.extra_info = Some(r#"{"case_type": "text", "test_cases": ["assert {response}.startswith('it')", "assert len({response}) == 9"]}"#.into());
    assert_eq!(block_on(CODE.score(&sample, &context())).expect("it is scored").value, 1.0);
    sample.response = "no".into();
    assert_eq!(block_on(CODE.score(&sample, &context())).expect("it is scored").value, 0.0);
}

#[test]
fn broken_tests_are_not_scored_as_wrong_responses() {
    for truth in [
        "def test_f(:",
        "import no_such_module\ndef test_f(): pass",
        "x = 1",
        "def test_f(): import no_such_module",
    ] {
        let found = score(&CODE, &fenced("def f(): pass"), truth);
        if truth == "x = 1" {
            let score = found.expect("nothing fails");
            assert_eq!(score.value, 0.0, "no test asks the solution");
            assert!(score.labels["message"].contains("no test asks"), "{:?}", score.labels);
        } else {
            assert!(
                found.expect_err(truth).reason.starts_with("the tests are broken: "),
                "{truth}"
            );
        }
    }
}

#[test]
fn another_language() {
    let shell = Language {
        fences: vec!["bash".into()],
        file: "main.sh".into(),
        compile: None,
        run: vec!["/bin/sh".into(), "main.sh".into()],
    };
    let compiled = Language {
        compile: Some(vec!["/bin/sh".into(), "-n".into(), "main.sh".into()]),
        fences: vec!["zsh".into()],
        ..shell.clone()
    };
    let languages = [("sh".to_owned(), shell), ("checked".to_owned(), compiled)].into();
    let code = start(CodeConfig {
        sandbox: SandboxConfig { languages, ..SandboxConfig::default() },
        ..CodeConfig::default()
    });
    let truth = r#"[{"stdin": "3\n", "expected_stdout": "got 3"}]"#;
    let outcome = |response: &str| {
        score(&code, response, truth).expect("it is scored").labels["outcome"].clone()
    };
    assert_eq!(outcome("```bash\nread x; echo got $x\n```"), "passed");
    assert_eq!(outcome("```bash\nread x; echo $x\n```"), "failed");
    assert_eq!(outcome("```zsh\nread x; echo got $x\n```"), "passed");
    assert_eq!(outcome("```zsh\nif\n```"), "compile_error");
}

/// A language that a recipe adds is isolated like Python.
#[test]
fn a_language_of_a_recipe() {
    if !std::path::Path::new("/usr/bin/perl").exists() {
        return skipped("there is no /usr/bin/perl");
    }
    let options = serde_json::json!({
        "score": "fraction",
        "sandbox": { "languages": { "perl": { "fences": ["pl"], "file": "main.pl", "compile": ["perl", "-c", "main.pl"], "run": ["perl", "main.pl"] } } },
    });
    let code = start(serde_json::from_value(options).expect("options of the reward"));
    let truth = r#"{"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}"#;
    let check = |response: &str, expected: (f64, &str)| {
        let found = score(&code, response, truth).expect("it is scored");
        assert_eq!((found.value, found.labels["outcome"].as_str()), expected, "{:?}", found.labels);
    };
    let add = "my ($a, $b) = split ' ', <STDIN>; print $a + $b, qq(\\n);";
    check(&format!("```perl\n{add}\n```"), (1.0, "passed"));
    check(&format!("```PL\n{add}\n```"), (1.0, "passed"));
    check("```perl\nprint 7;\n```", (0.5, "failed"));
    check("```perl\nif {\n```", (0.0, "compile_error"));
    check("```perl\ndie 'no';\n```", (0.0, "runtime_error"));
    check("```ruby\nputs 3\n```", (0.0, "no_code"));
    for attempt in [
        "open(F, '/etc/shadow') or die;",
        "open(F, '>/usr/x') or die;",
        "-e '/proc/1/environ' or die;",
        "use Socket; socket(S, PF_INET, SOCK_STREAM, 0) or die;",
        "exit(2) unless $ENV{CARGO_MANIFEST_DIR};",
    ] {
        check(&format!("```perl\n{attempt} {add}\n```"), (0.0, "runtime_error"));
    }
    check(
        "```perl\nsyscall(101, 0, 0, 0, 0);\n```",
        (0.0, if cfg!(target_arch = "x86_64") { "forbidden" } else { "failed" }),
    );
}

#[test]
fn a_language_that_cannot_run_is_an_error() {
    let language = |run: &[&str]| Language {
        fences: Vec::new(),
        file: "main".into(),
        compile: None,
        run: run.iter().map(|word| (*word).to_owned()).collect(),
    };
    let of = |name: &str, language: Language| CodeConfig {
        sandbox: SandboxConfig {
            slots: 1,
            languages: [(name.to_owned(), language)].into(),
            ..SandboxConfig::default()
        },
        ..CodeConfig::default()
    };
    let code = start(of("lost", language(&["no-such-program"])));
    let error = score(&code, "```lost\n1\n```", r#"[{"stdin": "", "expected_stdout": "1"}]"#)
        .expect_err("there is no such program");
    assert!(error.reason.contains("no-such-program"), "{}", error.reason);
    let refused = |name: &str, language: Language| {
        Code::start(of(name, language)).map(|_| ()).expect_err("it is refused").to_string()
    };
    assert!(refused("empty", language(&[])).contains("language `empty`, field `run`"));
    assert!(refused("python", language(&["python3"])).contains("languages"));
    let outside = Language { file: "../main".into(), ..language(&["cat"]) };
    assert!(refused("outside", outside).contains("field `file`"));
}

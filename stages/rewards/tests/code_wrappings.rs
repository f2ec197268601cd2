//! The text and markup around a solution in a response neither change its score nor allow a second attempt.

use std::fmt::Write;

use futures::executor::block_on;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_rewards::{Code, CodeConfig};
use rollpacker_stages::reward::{Context, Limits, Reward, Sample};

/// A task in the form of HumanEval.
struct Task {
    prompt: &'static str,
    body: &'static str,
    wrong: &'static str,
    entry_point: &'static str,
    test: &'static str,
}

const TASKS: [Task; 4] = [
    Task {
        prompt: "def running_total(values):\n    \"\"\" Sums so far.\n    >>> running_total([1, 2, 3])\n    [1, 3, 6]\n    \"\"\"\n",
        body: "    total, found = 0, []\n    for value in values:\n        total += value\n        found.append(total)\n\n    return found\n",
        wrong: "    return values\n",
        entry_point: "running_total",
        test: "def check(candidate):\n    assert candidate([1, 2, 3]) == [1, 3, 6]\n    assert candidate([]) == []\n",
    },
    Task {
        prompt: "from typing import List, Optional\nimport math\n\n\ndef nearest(points: List[float], to: float) -> Optional[float]:\n    '''The point that is nearest to `to`; None of no points.'''\n",
        body: "    if not points:\n        return None\n    return min(points, key=lambda point: math.fabs(point - to))\n",
        wrong: "    return math.inf\n",
        entry_point: "nearest",
        test: "def check(candidate):\n    assert candidate([1.0, 4.0], 3.0) == 4.0\n    assert candidate([], 3.0) is None\n",
    },
    Task {
        prompt: "def digits(n):\n    \"\"\"The digits of a number.\"\"\"\n    return [int(digit) for digit in str(abs(n))]\n\n\ndef digit_root(n):\n    \"\"\"\n    Sums digits until one is left:\n\n    ```\n    digit_root(38)  # 3 + 8 = 11, 1 + 1 = 2\n    ```\n    \"\"\"\n",
        body: "    while n > 9:\n        n = sum(digits(n))\n    return n\n",
        wrong: "    return sum(digits(n))\n",
        entry_point: "digit_root",
        test: "def check(candidate):\n    assert candidate(38) == 2\n    assert candidate(0) == 0\n    assert candidate(123) == sum(digits(123))\n",
    },
    Task {
        prompt: "import re\n\ndef mask(text: str) -> str:\n    \"\"\" Digits as #, tabs as \\t kept. Don't touch letters.\n    \"\"\"\n",
        body: "    def one(match):\n        return '#' * len(match.group())\n    return re.sub(r\"\\d+\", one, text)\n",
        wrong: "    return re.sub(r'\\d+', '#', text)\n",
        entry_point: "mask",
        test: "def check(candidate):\n    assert candidate('a12\\t3') == 'a##\\t#'\n    assert candidate(\"it's\") == \"it's\"\n",
    },
];

impl Task {
    fn solution(&self) -> String {
        format!("{}{}", self.prompt, self.body)
    }

    fn wrong(&self) -> String {
        format!("{}{}", self.prompt, self.wrong)
    }

    fn usage(&self) -> String {
        let name = self.entry_point;
        format!(
            "values = [1, 2, 3]\nfound = {name}(values)\nprint(f'{{found}} of {{values}}')\nassert {name}(values) == 'never'\n"
        )
    }

    /// Returns the lines of the prompt before its function, and the function.
    fn split(&self) -> (String, String) {
        let at = self.prompt.find(&format!("def {}", self.entry_point)).expect("a function");
        (self.prompt[..at].to_owned(), format!("{}{}", &self.prompt[at..], self.body))
    }
}

fn fenced(info: &str, code: &str) -> String {
    format!("```{info}\n{code}```\n")
}

/// Returns the text with `prefix` before each line. Before a blank line, the end of the prefix is trimmed.
fn prefixed(prefix: &str, text: &str) -> String {
    let mut found = String::new();
    for line in text.lines() {
        let prefix = if line.is_empty() { prefix.trim_end() } else { prefix };
        let _ = writeln!(found, "{prefix}{line}");
    }
    found
}

/// A way in which a response presents a solution.
type Wrapping = (&'static str, fn(&Task) -> String);

const WRAPPINGS: [Wrapping; 38] = [
    ("a fence", |task| format!("Here it is:\n{}Done.", fenced("python", &task.solution()))),
    ("no fence", Task::solution),
    ("no fence, within prose", |task| {
        format!(
            "Here's how (in O(n)):\n\n{}\nIt goes through the input once.\nTime complexity: O(n).",
            task.solution()
        )
    }),
    ("an indented block of Markdown", |task| {
        format!("Here:\n\n{}\nThat's it.", prefixed("    ", &task.solution()))
    }),
    ("the body alone", |task| task.body.to_owned()),
    ("the body alone, in a fence", |task| fenced("python", task.body)),
    ("the body alone, trimmed", |task| task.body.trim().to_owned()),
    ("the body alone, and a usage example", |task| {
        format!("{}{}", fenced("python", task.body), fenced("python", &task.usage()))
    }),
    ("a fence in a list item", |task| {
        format!(
            "1. Think.\n2. Write:\n\n{}\n3. Done.",
            prefixed("   ", &fenced("python", &task.solution()))
        )
    }),
    ("a fence in a nested list item", |task| {
        format!(
            "- Plan\n  - Code:\n{}- End",
            prefixed("      ", &fenced("python", &task.solution()))
        )
    }),
    ("a fence that is a list item", |task| {
        let item = prefixed("   ", &fenced("python", &task.solution()));
        format!("1. {}", item.trim_start())
    }),
    ("a fence in a list item, by tabs", |task| {
        format!("*\tCode:\n\n{}", prefixed("\t", &fenced("python", &task.solution())))
    }),
    ("a fence in a block quote", |task| {
        format!("> Code:\n{}\nThat's it.", prefixed("> ", &fenced("py", &task.solution())))
    }),
    ("a fence in a list item, and a usage example", |task| {
        let item = prefixed("   ", &fenced("python", &task.solution()));
        format!("1. Code:\n{item}2. Usage:\n{}", prefixed("   ", &fenced("python", &task.usage())))
    }),
    ("{python}", |task| fenced("{python}", &task.solution())),
    ("{.python .numberLines}", |task| fenced(" {.python .numberLines}", &task.solution())),
    ("Python with a title", |task| fenced("Python title=\"solution.py\"", &task.solution())),
    ("python3", |task| fenced("python3", &task.solution())),
    ("tildes", |task| format!("~~~python\n{}~~~\n", task.solution())),
    ("a longer fence", |task| format!("`````python\n{}`````\n", task.solution())),
    ("no language", |task| fenced("", &task.solution())),
    ("no language, and its output", |task| {
        format!("{}Output:\n{}", fenced("", &task.solution()), fenced("", "[1, 3, 6]\n"))
    }),
    ("a fence that is not closed", |task| format!("```python\n{}", task.solution())),
    ("a usage example", |task| {
        format!(
            "{}Use it so:\n{}",
            fenced("python", &task.solution()),
            fenced("python", &task.usage())
        )
    }),
    ("a usage example and its output", |task| {
        let usage = fenced(
            "python",
            &format!("from solution import {}\n{}", task.entry_point, task.usage()),
        );
        format!(
            "{}{usage}prints\n{}",
            fenced("python", &task.solution()),
            fenced("text", "[1, 3, 6]\n")
        )
    }),
    ("a console and a shell", |task| {
        let console = fenced("pycon", &format!(">>> {}([1, 2])\n[1, 3]\n", task.entry_point));
        format!(
            "{}{console}{}",
            fenced("python", &task.solution()),
            fenced("bash", "python solution.py\n")
        )
    }),
    ("tests after it", |task| {
        let tests = format!(
            "import unittest\n\nclass Test(unittest.TestCase):\n    def test_it(self):\n        {}\n",
            task.entry_point
        );
        format!("{}{}", fenced("python", &task.solution()), fenced("python", &tests))
    }),
    ("imports in a block of their own", |task| {
        let (before, function) = task.split();
        let before = if before.is_empty() { "import sys\n".to_owned() } else { before };
        format!("First:\n{}then:\n{}", fenced("python", &before), fenced("python", &function))
    }),
    ("the function alone", |task| fenced("python", &task.split().1)),
    ("a draft before it", |task| {
        format!(
            "{}No, rather:\n{}",
            fenced("python", &task.wrong()),
            fenced("python", &task.solution())
        )
    }),
    ("a draft in the thinking", |task| {
        format!(
            "<think>\n{}Hmm, no.\n</think>\n\n{}",
            fenced("python", &task.wrong()),
            fenced("python", &task.solution())
        )
    }),
    ("the answer twice", |task| format!("{0}To sum up:\n{0}", fenced("python", &task.solution()))),
    ("the prompt once more", |task| {
        format!("{}for\n{}", fenced("python", &task.solution()), fenced("python", task.prompt))
    }),
    ("tags of an answer", |task| {
        format!("<answer>{}</answer>", fenced("python", &task.solution()).trim_end())
    }),
    ("a fence at the end of a line", |task| {
        format!("The code: {}", fenced("python", &task.solution()))
    }),
    ("the fence is in the prompt", |task| format!("{}```\nThis is how it works.", task.solution())),
    ("a fence around a fence", |task| {
        format!("````markdown\nCode:\n{}````\n", fenced("python", &task.solution()))
    }),
    ("line ends of DOS", |task| fenced("python", &task.solution()).replace('\n', "\r\n")),
];

fn start() -> Code {
    let mut config = CodeConfig::default();
    config.sandbox.slots = 2;
    Code::start(config).expect("there is a sandbox")
}

fn score(code: &Code, task: &Task, response: &str) -> (f64, String) {
    let truth = serde_json::json!({ "test": task.test, "entry_point": task.entry_point, "prompt": task.prompt });
    let limits = Limits::fixed(Nanos::from_secs_f64(5.0));
    let sample = Sample::of("s", response, Some(&truth.to_string()));
    let score = block_on(code.score(&sample, &Context::detached().with_limits(limits)))
        .expect("it is scored");
    (score.value, format!("{:?}", score.labels))
}

#[test]
fn a_right_solution_passes_in_any_surrounding_text() {
    let code = start();
    let mut failed = Vec::new();
    for (name, wrap) in WRAPPINGS {
        for task in &TASKS {
            let response = wrap(task);
            let (value, labels) = score(&code, task, &response);
            if value < 1.0 {
                failed.push(format!("{name}: {} {labels}\n{response}", task.entry_point));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_wrong_solution_fails_in_any_surrounding_text() {
    let code = start();
    for (name, wrap) in WRAPPINGS {
        for task in &TASKS {
            let wrong = Task { body: task.wrong, ..*task };
            let (value, labels) = score(&code, task, &wrap(&wrong));
            assert!(value < 1.0, "{name}: {} {labels}", task.entry_point);
        }
    }
}

/// Only the last of several candidates is judged.
#[test]
fn only_the_last_candidate_is_scored() {
    let code = start();
    for task in &TASKS {
        let (right, wrong) = (fenced("python", &task.solution()), fenced("python", &task.wrong()));
        assert_eq!(score(&code, task, &format!("{wrong}{right}{wrong}")).0, 0.0);
        assert_eq!(score(&code, task, &format!("{right}Or:\n{wrong}")).0, 0.0);
        assert_eq!(score(&code, task, &format!("{wrong}Or:\n{right}")).0, 1.0);
    }
}

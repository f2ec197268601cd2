"""A second judgment of tests that the strict checker did not pass, for reasons that lie in the tests.

The strict checker runs tests in a separate process, where a copy of an object is not the object itself; `rollpacker_reasons` lists the
properties that it cannot reproduce. Such tests are run once more in the process of the solution (see `rollpacker_in_process`). There,
`rollpacker_decoys` detects objects that impersonate values. `rollpacker_probes` detects processes that only claim to have passed, or that
look up the expected values: the same tests with a changed expectation must fail.
"""

import ast
import base64
import marshal
import random

import rollpacker_wire as wire
from rollpacker_case_runner import clean
from rollpacker_decoys import instrumented
from rollpacker_probes import changed, probes
from rollpacker_reasons import COPY, reasons, veto

NOT_DETECTED = "the tests pass in the process of the solution, but also with a changed expectation"
BY_CLAIM = "an equality holds only because the solution claims it"
NO_REQUESTS = "no test asks the solution for anything"
# The maximum number of lines of one run's report.
MAX_LINES = 10_000


class TestText:
    """A text of tests that runs together with a solution.

    `form` determines the cases: test functions by name, a case for each group of statements, or HumanEval's `check`. `min_cases` is the
    minimum number of cases. `names` are the names of all cases, once the strict checker has collected them.
    """

    def __init__(self, tree, file, form, used, imported, min_cases, groups=(), helpers=None, entry_point=None):
        self.tree, self.file, self.form, self.min_cases = tree, file, form, min_cases
        self.used, self.imported = sorted(used), sorted(imported)
        self.groups, self.helpers, self.entry_point = groups, helpers, entry_point
        self.names = None if form == "functions" else [str(number) for number in range(len(groups))] or ["check"]

    def job(self, tree):
        """Returns the description of the tests for a run: their compiled code without the source."""
        tree = instrumented(tree)
        if self.form == "statements":
            parts = [ast.Module(tree.body[begin:end], []) for begin, end in self.groups]
        else:
            parts = [part for part in (self.helpers, tree) if part is not None]
        code = [marshal.dumps(compile(part, self.file, "exec", dont_inherit=True)) for part in parts]
        return {"form": self.form, "file": self.file, "used": self.used, "imported": self.imported, "entry_point": self.entry_point,
                "parts": [base64.b64encode(part).decode() for part in code]}

    def node(self, number, name):
        """Returns the statement that defines a case, or None if there is none of this name."""
        if self.form == "statements":
            begin, end = self.groups[number]
            return ast.Module(self.tree.body[begin:end], [])
        found = self.tree
        for part in name.split("."):
            found = next((node for node in found.body if getattr(node, "name", None) == part), None)
            if found is None:
                return None
        return found

    def cases(self, lines):
        """Returns the reported cases in the order of the text, or None if they are not those of the text."""
        if self.names is not None:
            return lines if [line["case"] for line in lines] == self.names else None
        # Tests that could not be collected without the solution count once by name, however often they are reported.
        merged = {}
        for line in lines:
            known = merged.setdefault(line["case"], line)
            if line["outcome"] not in ("passed", "skipped"):
                merged[line["case"]] = line if known["outcome"] in ("passed", "skipped") else known
        found = [line for name, line in merged.items() if self.node(0, name) is not None]
        return found if len(found) >= self.min_cases else None


class Recheck:
    """Judges the cases of one text again if the strict checker cannot decide them."""

    def __init__(self, runner, text):
        self.runner, self.session, self.text = runner, runner.session, text
        self.first = len(runner.cases)
        self.complete_before = runner.complete

    def apply(self):
        """Drops cases that pass without a solution, and judges cases again that may have failed for a reason that lies in the tests."""
        self.drop_independent()
        strict = self.runner.cases[self.first:]
        by_claim = [number for number in self.runner.passed_by_claim if number >= self.first]
        if not by_claim and all(case["outcome"] in ("passed", "compile_error") for case in strict):
            return
        found = self.run(self.text.tree, self.session.solution) if self.is_applicable(by_claim) else None
        judged = without_skipped(found)
        # A solution must not skip the cases that the strict checker left out after a failure.
        left_out = self.runner.complete != self.complete_before
        if not judged or len(judged) < (len(found) if left_out else len(strict)):
            for number in by_claim:
                self.runner.cases[number].update(outcome="failed", message=BY_CLAIM)
            return
        # All cases of this text were judged, also those after a failure.
        self.runner.complete = self.complete_before
        has_failure = self.runner.stop and any(case["outcome"] != "passed" for case in judged)
        self.runner.cases[self.first:] = [self.judge(number, case, has_failure) for number, case in enumerate(judged)]

    def drop_independent(self):
        """Drops cases that also pass with an empty solution, because they do not depend on the solution."""
        if not self.runner.passed_without_requests:
            return
        found = without_skipped(self.run(self.text.tree, ""))
        for number in sorted(self.runner.passed_without_requests, reverse=True):
            at = number - self.first
            if at < len(found) and found[at]["outcome"] == "passed":
                del self.runner.cases[number]
                self.runner.dropped += 1
        self.runner.passed_without_requests.clear()

    def is_applicable(self, by_claim):
        """Returns true if the strict checker may be wrong about these tests and the solution may run together with them."""
        found = reasons(self.text.tree)
        if self.runner.undecided:
            found.add(COPY)
        return bool(found or by_claim) and veto(self.session.solution, found) is None

    def judge(self, number, found, has_failure):
        """Returns the result of a reported case. `has_failure` if its probes no longer matter."""
        at = self.first + number
        strict = self.runner.cases[at] if at < len(self.runner.cases) else None
        if strict is not None and strict["outcome"] == "passed" and at not in self.runner.passed_by_claim:
            return strict
        if found["outcome"] != "passed":
            known = strict is not None and strict["outcome"] != "passed" and not self.runner.undecided
            return strict if known else dict(outcome="failed", seconds=found["seconds"], message=found["message"])
        if not has_failure and not self.detects_changes(found["at"], found["case"]):
            return dict(outcome="failed", seconds=found["seconds"], message=NOT_DETECTED)
        return dict(outcome="passed", seconds=found["seconds"], message="")

    def detects_changes(self, number, name):
        """Returns true if a case that passed detects changed expectations."""
        node = self.text.node(number, name)
        return node is not None and all(
            any(self.detects(changes, number) for changes in groups) for groups in probes(self.text.tree, node))

    def detects(self, changes, number):
        """Returns true if a case fails with every change and passes without one. The order is random, so that a run cannot know which text
        it has.
        """
        runs = [(changed(self.text.tree, change), "failed") for change in changes] + [(self.text.tree, "passed")]
        random.shuffle(runs)
        return all(self.outcome(tree, number) == expected for tree, expected in runs)

    def outcome(self, tree, number):
        found = self.run(tree, self.session.solution)
        return found[number]["outcome"] if found and self.runner.recheck_seconds > 0 else None

    def run(self, tree, solution):
        """Runs the tests together with a solution. Returns None if they did not run to the end, or the reported cases are not those of the
        text.
        """
        count = max(1, self.text.min_cases, len(self.runner.cases) - self.first)
        seconds = min(self.runner.time_limit() * count, max(self.runner.recheck_seconds, 0.1))
        self.runner.progress.begin(seconds)
        lines = []

        def on_line(line):
            lines.append(line)
            if len(lines) > MAX_LINES:
                raise wire.Broken("a report of too many cases")

        error = self.runner.run_within(seconds, lambda: self.session.run_tests(self.text.job(tree), solution, seconds, on_line))
        self.session.stop()
        took = self.runner.clock.charged()
        self.runner.recheck_seconds -= took
        if error is not None or not lines or lines.pop() != {"end": True}:
            return None
        cases = self.text.cases([line for line in lines if is_case(line)])
        for at, case in enumerate(cases or ()):
            case.update(at=at, seconds=took / len(cases), message=clean(case["message"]))
        return cases


def without_skipped(cases):
    return [case for case in cases or () if case["outcome"] != "skipped"]


def is_case(line):
    return all(type(line.get(key)) is str for key in ("case", "outcome", "message"))

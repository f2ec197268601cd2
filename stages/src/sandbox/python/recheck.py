"""A second judgement of tests that the strict checker did not pass, for reasons that lie in the tests.

The strict checker runs tests in a process of its own, where a copy of an object is not the object: `rollpacker_reasons` lists what it
cannot show. Such tests run once more beside the solution (see `rollpacker_beside`). A case counts as passed if it passes there and the
same tests with changed expectations do not (see `rollpacker_probes`).
"""

import ast
import base64
import marshal
import time

import rollpacker_wire as wire
from rollpacker_probes import changed, probes
from rollpacker_reasons import CALLS, COPY, MANY_CALLS, reasons, veto

# The runs of all probes of a job may take so many times the limit of a case.
PATIENCE = 20
UNNOTICED = "the tests pass beside the solution, but they do with another expectation too"
NEEDLESS = "no test asks the solution for anything"


class Text:
    """A text of tests as it runs beside a solution.

    `form` says how the cases are found: test functions by name, a case for each group of statements, or HumanEval's `check`.
    """

    def __init__(self, tree, file, form, used, imported, groups=(), prompt=None, entry_point=None):
        self.tree, self.file, self.form = tree, file, form
        self.used, self.imported = sorted(used), sorted(imported)
        self.groups, self.prompt, self.entry_point = groups, prompt, entry_point

    def job(self, tree, last):
        """Returns what a run needs to know of the tests: their code, not their text."""
        if self.form == "statements":
            parts = [ast.Module(tree.body[begin:end], []) for begin, end in self.groups]
        else:
            parts = [part for part in (self.prompt, tree) if part is not None]
        code = [marshal.dumps(compile(part, self.file, "exec", dont_inherit=True)) for part in parts]
        return {"form": self.form, "file": self.file, "used": self.used, "imported": self.imported, "last": last,
                "entry_point": self.entry_point, "parts": [base64.b64encode(part).decode() for part in code]}

    def node(self, number, name):
        """Returns the statement that defines a case; None if there is none of that name."""
        if self.form == "statements":
            begin, end = self.groups[number]
            return ast.Module(self.tree.body[begin:end], [])
        found = self.tree
        for part in name.split("."):
            found = next((node for node in found.body if getattr(node, "name", None) == part), None)
            if found is None:
                return None
        return found


class Recheck:
    """Judges the cases of one text again where the strict checker cannot."""

    def __init__(self, bench, text):
        self.bench, self.session, self.text = bench, bench.session, text
        self.first = len(bench.cases)
        self.left = PATIENCE * bench.allowed()

    def settle(self):
        """Drops cases that pass without a solution, and judges those again that may have failed for a reason of the tests' own."""
        self.drop_needless()
        strict = self.bench.cases[self.first:]
        sound = all(case["outcome"] == "passed" for case in strict) and not self.bench.vouched
        if sound or any(case["outcome"] == "compile_error" for case in strict) or not self.is_open():
            return
        found = self.run(self.text.tree, self.session.solution, None)
        if found is None or len(found) < len(strict):
            return
        failed = any(case["outcome"] == "failed" for case in found)
        judged = [self.judge(number, case, failed and self.bench.stop) for number, case in enumerate(found)]
        self.bench.cases[self.first:] = judged

    def drop_needless(self):
        """A case that passes with an empty solution says nothing about this one."""
        if not self.bench.unasked:
            return
        found = self.run(self.text.tree, "", None) or []
        for number in sorted(self.bench.unasked, reverse=True):
            at = number - self.first
            if at < len(found) and found[at]["outcome"] == "passed":
                del self.bench.cases[number]
                self.bench.dropped += 1

    def is_open(self):
        """Whether the strict checker may be wrong about these tests, and the solution may be judged beside them."""
        found = reasons(self.text.tree)
        if self.bench.undecided:
            found.add(COPY)
        if self.session.peer.asked > MANY_CALLS and any(case["outcome"] == "timeout" for case in self.bench.cases):
            found.add(CALLS)
        return bool(found) and veto(self.session.solution, found) is None

    def judge(self, number, found, hopeless):
        """Returns the case that a report makes; `hopeless` if its probes no longer matter."""
        strict = self.bench.cases[self.first + number] if self.first + number < len(self.bench.cases) else None
        if strict is not None and strict["outcome"] == "passed" and self.first + number not in self.bench.vouched:
            return strict
        if strict is not None and found["outcome"] == "failed" and not self.bench.undecided:
            return strict
        if found["outcome"] == "passed" and not hopeless and not self.is_proven(number, found["case"]):
            return {"outcome": "failed", "seconds": found["seconds"], "message": UNNOTICED}
        return {key: found[key] for key in ("outcome", "seconds", "message")}

    def is_proven(self, number, name):
        """Whether a case that passed notices changed expectations."""
        node = self.text.node(number, name)
        return node is not None and all(self.notices(probe, number) for probe in probes(self.text.tree, node))

    def notices(self, probe, number):
        outcomes = (self.fails(change, number) for change in probe.changes)
        return all(outcomes) if probe.every else any(outcomes)

    def fails(self, change, number):
        """Whether a case fails with a change. A run that takes too long proves nothing."""
        found = self.run(changed(self.text.tree, change), self.session.solution, number + 1)
        return self.left > 0 and (found is None or len(found) <= number or found[number]["outcome"] == "failed")

    def run(self, tree, solution, last):
        """Runs the tests beside a solution; None if they did not get to their end."""
        found, began = [], time.monotonic()
        seconds = min(self.bench.allowed() * max(1, last or len(self.bench.cases) - self.first), max(self.left, 0.1))
        self.bench.progress.begin(seconds)
        error = self.bench.within(seconds, lambda: self.session.run_tests(self.text.job(tree, last), solution, seconds, found.append))
        self.session.stop()
        took = time.monotonic() - began
        self.left -= took
        if error is not None and not isinstance(error, wire.Stop):
            raise error
        cases = [case for case in found if case.get("outcome") in ("passed", "failed")]
        for case in cases:
            case.update(seconds=took / len(cases), message=str(case.get("message", "")))
        return cases if error is None and found and "end" in found[-1] else None

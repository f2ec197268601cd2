"""Runs test cases within their time limits and records the results."""

import linecache
import mmap
import signal
import sys
import types
import unittest

import rollpacker_wire as wire
from rollpacker_pytest_shim import Skipped
from rollpacker_session import MESSAGE_CHARACTERS, Unloadable, brief

# After this number of timeouts, the remaining cases are not run and count as timeouts too.
MAX_TIMEOUTS = 3
# The total time of all runs that judge cases again, as a multiple of a case's limit.
RECHECK_FACTOR = 10
# Memory reserved for the cleanup after the checker has run out of memory.
RESERVE_BYTES = 8 << 20
# The total number of characters of all messages. Messages beyond it are truncated to the second number.
ALL_CHARACTERS, SHORT_CHARACTERS = 100_000, 100


class Deadline(wire.Stop):
    """The time limit of a case was reached."""


class BrokenTests(BaseException):
    """The tests themselves cannot be run. This is not the fault of the solution."""


def where(error):
    """Returns the line of the tests at which an error was raised."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        file, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if file.startswith("test_solution"):
            found = "%s:%d: %s" % (file, number, linecache.getline(file, number).strip())
        trace = trace.tb_next
    return found


def describe_end(end):
    """Returns the outcome and the message for the end of a run."""
    number, code = end.get("signal"), end.get("code")
    if number == signal.SIGSYS:
        return "forbidden", "the solution made a system call that is forbidden"
    if number == signal.SIGXCPU or number == signal.SIGKILL and end.get("exhausted"):
        return "timeout", "the solution used up its processor time"
    if number == signal.SIGKILL and not end.get("killed"):
        return "memory", "the solution was killed, most likely for its memory"
    if number is not None:
        return "runtime_error", "the solution was killed by signal %d" % number
    return "runtime_error", "the solution exited with code %s before its tests were over" % code


class CaseRunner:
    """Runs cases one by one, each within its time limit, and records their results."""

    def __init__(self, session, job, progress):
        self.session, self.progress = session, progress
        self.language, self.seconds = job.get("language", "python"), job["seconds"]
        self.stop = job["check"].get("stop_at_failure", False)
        self.cases = []
        # The indexes of cases that passed only because the solution claimed an equality, and of those that passed without calling the
        # solution.
        self.passed_by_claim, self.passed_without_requests = set(), set()
        # `undecided`: the tests did something that a copy cannot reproduce. `dropped`: the number of cases that do not depend on the
        # solution. `skipped`: the number of tests that skipped themselves. `without_tests`: the number of texts without a collected test.
        # `complete`: no case was left out because an earlier case failed.
        self.undecided, self.dropped, self.skipped, self.without_tests, self.complete = False, 0, 0, 0, True
        # The remaining seconds for judging cases again.
        self.recheck_seconds = RECHECK_FACTOR * max(float(seconds) for seconds in self.seconds)
        self.fatal_result = None
        self.timeouts = self.characters = 0
        # This reserves address space, which is what the limit counts. Its pages are never touched.
        self.reserve = mmap.mmap(-1, RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.clock = session.clock

    def time_limit(self):
        return float(self.seconds[min(len(self.cases), len(self.seconds) - 1)])

    def case(self, body):
        """Runs one case. `body` raises an error if the case fails. If all further cases would fail in the same way, they are not run."""
        if self.stop and any(case["outcome"] != "passed" for case in self.cases):
            self.complete = False
            return
        if self.fatal_result:
            self.add(self.fatal_result[0], 0.0, self.fatal_result[1])
            return
        peer, allowed = self.session.peer, self.time_limit()
        peer.decided_by_claim, asked, peer.calls_before = False, peer.asked, peer.calls
        self.progress.begin(allowed)
        try:
            outcome, message = self.attempt(body, allowed)
        except Skipped:
            self.skip()
            return
        if outcome == "passed" and peer.decided_by_claim:
            self.passed_by_claim.add(len(self.cases))
        if outcome == "passed" and peer.asked == asked:
            self.passed_without_requests.add(len(self.cases))
        self.add(outcome, self.clock.charged(), message)

    def skip(self):
        """Leaves out tests that skip themselves. They fail if they asked for a name that the solution lacks, which may be why they skip."""
        if self.session.missing:
            self.add("failed", self.clock.charged(), "skipped, and the solution has no `%s`" % min(self.session.missing))
        else:
            self.skipped += 1

    def add(self, outcome, seconds, message):
        message = clean(message, MESSAGE_CHARACTERS if self.characters < ALL_CHARACTERS else SHORT_CHARACTERS)
        self.characters += len(message)
        case = {"outcome": outcome, "seconds": seconds, "message": message}
        self.cases.append(case)
        self.progress.case(case)

    def run_uncounted(self, body):
        """Runs code that belongs to no case. If it fails, returns the result that all cases get."""
        allowed = self.time_limit()
        self.progress.begin(allowed)
        outcome, message = self.attempt(body, allowed)
        return None if outcome == "passed" else (outcome, self.clock.charged(), message)

    def attempt(self, body, allowed):
        """Runs `body` and returns its outcome and message. A `Stop` counts even if the test caught it and continued."""
        found = self.run_within(allowed, lambda: body(allowed))
        if isinstance(found, unittest.SkipTest):
            # Only the tests raise this: an exception of the solution is a copy of another class.
            raise Skipped(str(found))
        if isinstance(found, (BrokenTests, Skipped)):
            raise found
        if found is None:
            return "passed", ""
        self.undecided = self.undecided or self.session.peer.is_stale()
        # Messages may contain objects of the solution, which must no longer be called.
        self.session.peer.muted = True
        outcome, message = self.explain(found, allowed)
        self.session.peer.muted = False
        self.timeouts += outcome == "timeout"
        if self.session.importing or outcome == "compile_error" or self.reserve is None or self.timeouts == MAX_TIMEOUTS:
            self.fatal_result = outcome, message
        return outcome, message

    def run_within(self, seconds, body):
        """Runs `body` for at most this number of charged seconds. Returns the error that ended it early, or None."""
        wire.Stop.raised = found = None
        self.clock.begin(seconds)
        try:
            signal.signal(signal.SIGALRM, self.on_alarm)
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
            try:
                body()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except MemoryError as error:
            found = error
            if not has_crossed(error):
                self.give_up_memory()
        except BaseException as error:
            found = error
        return wire.Stop.raised or found

    def on_alarm(self, _signal, _frame):
        """Handles the alarm at the time limit of a case. The case continues for as long as it was kept waiting for a processor."""
        left = self.clock.left()
        if not left:
            raise Deadline()
        self.progress.begin(left)
        signal.setitimer(signal.ITIMER_REAL, left, 0.05)

    def give_up_memory(self):
        """Drops the objects of the tests, which fill the memory of this process. No further test is run."""
        self.reserve.close()
        self.reserve = None
        self.session.stop()
        vars(sys.modules.get("test_solution", types.ModuleType("none"))).clear()

    def explain(self, error, allowed):
        if isinstance(error, wire.Undecided):
            self.undecided = True
            return "failed", str(error)
        if is_missing_module(error, self.session.modules):
            raise BrokenTests("%s: %s" % (where(error), error))
        if not isinstance(error, wire.Stop):
            return judge(error)
        self.session.stop()
        if isinstance(error, Deadline):
            return "timeout", "not done within %g s" % allowed
        if isinstance(error, Unloadable):
            return error.outcome, error.message
        if isinstance(error, wire.Broken):
            return "runtime_error", "the solution broke the protocol: %s" % error
        return describe_end(self.session.end)


def is_missing_module(error, modules):
    """Returns true if the tests import a module that is missing. The module `solution` always exists."""
    return isinstance(error, ModuleNotFoundError) and not has_crossed(error) and str(error.name).partition(".")[0] in set(modules) - {"solution"}


def has_crossed(error):
    """Returns true if the solution raised the error, rather than the tests."""
    return "_rp_crossed" in error.__dict__ or "_rp" in error.__dict__


def clean(message, characters=MESSAGE_CHARACTERS):
    return str(message)[:characters].encode("utf-8", "replace").decode()


def judge(error):
    """Returns the outcome and the message for an error that a test did not catch."""
    message = "\n".join(part for part in (where(error), brief(error)) if part)
    if isinstance(error, MemoryError):
        return "memory", message
    return ("runtime_error" if has_crossed(error) else "failed"), message

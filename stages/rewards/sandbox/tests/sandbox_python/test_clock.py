"""Tests of the time that is charged to a case."""

import os
import socket
import time
import unittest

import harness

clock, solution = harness.modules["clock"], harness.modules["solution"]


class FixedTimes:
    """Times that a test sets."""

    def __init__(self, computed, waited):
        self.computed, self.waited = computed, waited

    def seconds(self):
        return self.computed, self.waited

    def end(self, computed, waited):
        self.computed, self.waited = computed, waited

    def close(self):
        pass


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.monotonic, time.monotonic = time.monotonic, lambda: self.now
        self.own, self.run = FixedTimes(9.0, 7.0), FixedTimes(2.0, 3.0)
        self.clock = clock.Clock(self.own)
        self.clock.begin(2.0)
        self.clock.watch(self.run)

    def tearDown(self):
        time.monotonic = self.monotonic

    def test_computing_and_sleeping_are_charged(self):
        self.now += 1.5
        self.assertAlmostEqual(self.clock.charged(), 1.5)
        self.assertAlmostEqual(self.clock.left(), 0.5)
        self.now += 0.5
        self.assertEqual(self.clock.left(), 0.0)

    def test_waiting_is_not_charged(self):
        self.now += 6.0
        self.own.waited += 1.0
        self.run.waited += 3.5
        self.assertAlmostEqual(self.clock.charged(), 1.5)
        self.assertAlmostEqual(self.clock.left(), 0.5)

    def test_what_a_run_computed_while_the_checker_waited_is_charged(self):
        self.now += 3.0
        self.own.waited += 2.0
        self.run.waited += 0.5
        self.run.computed += 1.25
        self.assertAlmostEqual(self.clock.charged(), 1.25)
        self.clock.watch(FixedTimes(60.0, 50.0))
        self.assertAlmostEqual(self.clock.charged(), 1.25)

    def test_what_a_run_computed_before_its_end_is_charged(self):
        self.now += 3.0
        self.own.waited += 2.9
        self.clock.end(4.25, 3.0)
        self.assertAlmostEqual(self.clock.charged(), 2.25)
        self.clock.watch(FixedTimes(60.0, 50.0))
        self.assertAlmostEqual(self.clock.charged(), 2.25)

    def test_threads_are_charged_no_more_than_the_elapsed_time(self):
        self.now += 3.0
        self.clock.end(7.0, 3.0)
        self.assertAlmostEqual(self.clock.charged(), 3.0)

    def test_the_clock_ends_a_case_that_waits_for_ever(self):
        self.now += 9.5
        self.run.waited += 9.5
        self.assertAlmostEqual(self.clock.left(), 0.5)
        self.now += 0.5
        self.run.waited += 0.5
        self.assertEqual(self.clock.left(), 0.0)

    def test_runs_one_after_another_wait_for_themselves(self):
        self.now += 4.0
        self.run.waited += 3.0
        self.clock.watch(FixedTimes(60.0, 50.0))
        self.assertAlmostEqual(self.clock.charged(), 1.0)
        self.clock.begin(2.0)
        self.assertAlmostEqual(self.clock.charged(), 0.0)

    def test_where_the_kernel_says_nothing_the_clock_counts(self):
        silent = clock.Times(None)
        self.assertEqual(silent.seconds(), (0.0, 0.0))
        self.clock.watch(silent)
        self.now += 1.0
        self.assertAlmostEqual(self.clock.charged(), 1.0)


class TimesTest(unittest.TestCase):
    def test_a_process_computes_and_waits(self):
        fd = clock.open_times()
        if fd is None:
            self.skipTest("the kernel does not count waits")
        times = clock.Times(fd)
        first = times.seconds()
        compute(0.05)
        computed, waited = times.seconds()
        # The kernel adds up the time on a processor at least once in a scheduler tick, which is at most 10 ms.
        self.assertGreaterEqual(computed, first[0] + 0.03)
        self.assertGreaterEqual(waited, first[1])
        times.close()
        self.assertEqual(times.seconds(), (computed, waited))


class ForkingConfinement:
    """A confinement whose runs compute for 50 ms."""

    def fork(self, _body):
        pid = os.fork()
        if pid == 0:
            compute(0.05)
            os._exit(0)
        return pid

    def sweep(self):
        pass


def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class EndedRunTest(unittest.TestCase):
    def test_the_times_of_a_run_outlive_it(self):
        requests, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(requests.close)
        self.addCleanup(ours.close)
        runs = solution.Runs(requests, ForkingConfinement())
        runs.start()
        _, fds, _, _ = socket.recv_fds(ours, 16, 4)
        self.addCleanup(lambda: [os.close(fd) for fd in fds])
        os.waitid(os.P_PID, runs.pid, os.WEXITED | os.WNOWAIT)
        shown = clock.Times(runs.times.fd).seconds()
        runs.report_end()
        status, killed, computed, waited = solution.ENDED.unpack(ours.recv(solution.ENDED.size))
        self.assertEqual((status, killed, waited), (0, False, shown[1]))
        self.assertGreaterEqual(computed, 0.05)
        self.assertIsNone(runs.times.fd)


if __name__ == "__main__":
    unittest.main()

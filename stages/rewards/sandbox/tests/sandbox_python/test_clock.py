"""Tests of the time that is charged to a case."""

import time
import unittest

import harness

clock = harness.modules["clock"]


class Told:
    """Times that a test sets."""

    def __init__(self, computed, waited):
        self.computed, self.waited = computed, waited

    def seconds(self):
        return self.computed, self.waited

    def close(self):
        pass


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.monotonic, time.monotonic = time.monotonic, lambda: self.now
        self.own, self.run = Told(9.0, 7.0), Told(2.0, 3.0)
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
        self.clock.watch(Told(60.0, 50.0))
        self.assertAlmostEqual(self.clock.charged(), 1.25)

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
        self.clock.watch(Told(60.0, 50.0))
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
        computes_until = time.process_time() + 0.05
        while time.process_time() < computes_until:
            pass
        computed, waited = times.seconds()
        # The kernel adds up the time on a processor at least once in a scheduler tick, which is at most 10 ms.
        self.assertGreaterEqual(computed, first[0] + 0.03)
        self.assertGreaterEqual(waited, first[1])
        times.close()
        self.assertEqual(times.seconds(), times.last)


if __name__ == "__main__":
    unittest.main()

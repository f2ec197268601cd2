"""Tests of the time that is charged to a case."""

import time
import unittest

import harness

clock = harness.modules["clock"]


class Told:
    """Waiting times that a test sets."""

    def __init__(self, now=0.0):
        self.now = now

    def seconds(self):
        return self.now

    def close(self):
        pass


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.monotonic, time.monotonic = time.monotonic, lambda: self.now
        self.own, self.run_waits = Told(7.0), Told(3.0)
        self.clock = clock.Clock(self.own)
        self.clock.begin(2.0)
        self.clock.watch(self.run_waits)

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
        self.own.now += 1.0
        self.run_waits.now += 3.5
        self.assertAlmostEqual(self.clock.charged(), 1.5)
        self.assertAlmostEqual(self.clock.left(), 0.5)

    def test_the_clock_ends_a_case_that_waits_for_ever(self):
        self.now += 9.5
        self.run_waits.now += 9.5
        self.assertAlmostEqual(self.clock.left(), 0.5)
        self.now += 0.5
        self.run_waits.now += 0.5
        self.assertEqual(self.clock.left(), 0.0)

    def test_runs_one_after_another_wait_for_themselves(self):
        self.now += 4.0
        self.run_waits.now += 3.0
        self.clock.watch(Told(50.0))
        self.assertAlmostEqual(self.clock.charged(), 1.0)
        self.clock.begin(2.0)
        self.assertAlmostEqual(self.clock.charged(), 0.0)

    def test_where_the_kernel_says_nothing_the_clock_counts(self):
        silent = clock.Waits(None)
        self.assertEqual(silent.seconds(), 0.0)
        self.clock.watch(silent)
        self.now += 1.0
        self.assertAlmostEqual(self.clock.charged(), 1.0)


class WaitsTest(unittest.TestCase):
    def test_a_process_waits(self):
        fd = clock.open_waits()
        if fd is None:
            self.skipTest("the kernel does not count waits")
        waits = clock.Waits(fd)
        first = waits.seconds()
        self.assertGreaterEqual(first, 0.0)
        self.assertGreaterEqual(waits.seconds(), first)
        waits.close()
        self.assertEqual(waits.seconds(), waits.last)


if __name__ == "__main__":
    unittest.main()

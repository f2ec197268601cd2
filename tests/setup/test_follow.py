"""Tests of `python/rollpacker_follow.py` with a sink that records what it receives."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "python" / "rollpacker_follow.py"

spec = importlib.util.spec_from_file_location("rollpacker_follow", SCRIPT)
follow = importlib.util.module_from_spec(spec)
spec.loader.exec_module(follow)


class Sink:
    def __init__(self):
        self.sent = []
        self.finished = False

    def log(self, step, values):
        self.sent.append((step, values))

    def finish(self):
        self.finished = True


def line(step, score, unix_s=0.0):
    data = {"score": score, "missing": None}
    return json.dumps({"step": step, "round": "full", "unix_s": unix_s, "data": data}) + "\n"


class FollowTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_folder = Path(folder.name)
        self.metrics = self.run_folder / "metrics.jsonl"
        self.sinks = []
        self.follower = follow.Follower(self.run_folder, self.start)
        self.addCleanup(self.follower.reader.close)

    def start(self, number):
        self.assertEqual(number, len(self.sinks))
        self.sinks.append(Sink())
        return self.sinks[-1]

    def append(self, text):
        with open(self.metrics, "a") as file:
            file.write(text)

    def replace(self, text):
        """Replaces the file as a resumed run does: by a new one that is renamed to its place."""
        new = self.run_folder / "metrics.jsonl.new"
        new.write_text(text)
        os.replace(new, self.metrics)

    def sent(self, sink=0):
        return [(step, values["score"]) for step, values in self.sinks[sink].sent]

    def test_lines_are_sent_once_and_only_when_complete(self):
        self.assertEqual(self.follower.send(), 0)
        whole = line(1, 0.5)
        self.append(whole[:20])
        self.follower.send()
        self.assertEqual(self.sinks, [])
        self.append(whole[20:] + line(2, 0.25)[:-1])
        self.follower.send()
        self.assertEqual(self.sinks[0].sent, [(1, {"score": 0.5})])
        self.append("\n")
        self.follower.send()
        self.follower.send()
        self.assertEqual(self.sent(), [(1, 0.5), (2, 0.25)])

    def test_a_resumed_run_sends_the_repeated_steps_again(self):
        self.append(line(1, 0.1) + line(2, 0.2) + line(3, 0.3)[:9])
        self.follower.send()
        self.replace(line(1, 0.1))
        self.follower.send()
        self.append(line(2, 0.7))
        self.follower.send()
        self.append(line(3, 0.8))
        self.follower.send()
        self.assertEqual(self.sent(), [(1, 0.1), (2, 0.2), (2, 0.7), (3, 0.8)])
        self.assertEqual(len(self.sinks), 1)

    def test_a_resumed_run_that_has_grown_before_the_next_look_is_noticed(self):
        self.append(line(1, 0.1) + line(2, 0.2))
        self.follower.send()
        self.replace(line(1, 0.1) + line(2, 0.2) + line(3, 0.3))
        self.follower.send()
        self.assertEqual(self.sent(), [(1, 0.1), (2, 0.2), (3, 0.3)])

    def test_a_truncated_file_is_read_anew(self):
        self.append(line(1, 0.1) + line(2, 0.2))
        self.follower.send()
        self.metrics.write_text(line(1, 0.1))
        self.follower.send()
        self.append(line(2, 0.9))
        self.follower.send()
        self.assertEqual(self.sent(), [(1, 0.1), (2, 0.2), (2, 0.9)])

    def test_another_run_in_the_folder_is_another_run(self):
        self.append(line(1, 0.1, unix_s=1.0) + line(2, 0.2, unix_s=2.0))
        self.follower.send()
        self.replace(line(1, 0.1, unix_s=9.0))
        self.follower.send()
        self.assertTrue(self.sinks[0].finished)
        self.assertEqual((self.sent(0), self.sent(1)), ([(1, 0.1), (2, 0.2)], [(1, 0.1)]))

    def test_a_file_that_is_gone_for_a_while_is_waited_for(self):
        self.append(line(1, 0.1))
        self.follower.send()
        self.metrics.unlink()
        self.follower.send()
        self.replace(line(1, 0.1) + line(2, 0.2))
        self.follower.send()
        self.assertEqual(self.sent(), [(1, 0.1), (2, 0.2)])

    def test_a_stopped_run_is_waited_for_and_a_finished_one_is_not(self):
        summary = self.run_folder / "summary.json"
        self.append(line(1, 0.1))
        summary.write_text('{"ended": "stopped"}')
        events = [
            lambda: summary.unlink(),
            lambda: self.append(line(2, 0.2)),
            lambda: (self.append(line(3, 0.3)), summary.write_text('{"ended": "finished"}')),
        ]
        said = []
        self.follower.follow(0.0, wait=lambda _: events.pop(0)(), say=said.append)
        self.assertEqual(self.sent(), [(1, 0.1), (2, 0.2), (3, 0.3)])
        self.assertEqual((len(said), events), (1, []))

    def test_once_ends_while_the_run_goes_on(self):
        self.append(line(1, 0.1))
        self.follower.follow(0.0, once=True, wait=lambda _: self.fail("it must not wait"))
        self.assertEqual(self.sent(), [(1, 0.1)])

    def test_a_broken_line_is_named(self):
        self.append(line(1, 0.1) + "broken\n")
        with self.assertRaisesRegex(SystemExit, "metrics.jsonl, line 2"):
            self.follower.send()

    def test_the_configuration_has_dotted_names(self):
        self.assertEqual(follow.configuration(self.run_folder), {})
        (self.run_folder / "recipe.toml").write_text('[actor]\nlr = 1e-3\n[actor.optim]\nname = "adam"\nbetas = [0.9, 0.99]\n')
        expected = {"actor.lr": 1e-3, "actor.optim.name": "adam", "actor.optim.betas": "[0.9, 0.99]"}
        self.assertEqual(follow.configuration(self.run_folder), expected)

    def test_infinite_values_are_left_out(self):
        data = {"a": 1, "b": float("inf"), "c": None, "d": float("nan"), "e": -2.5}
        self.assertEqual(follow.scalars({"data": data}), {"a": 1.0, "e": -2.5})

    def test_bad_options_are_refused(self):
        for options in (["--interval", "0"], ["--interval", "nan"], ["--once"]):
            error = io.StringIO()
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(error):
                follow.arguments([str(self.run_folder), "--to", "wandb", *options])
            self.assertEqual(ended.exception.code, 2)
            self.assertIn("expected", error.getvalue())

    def test_a_package_that_is_not_installed_is_named(self):
        self.append(line(1, 0.1))
        command = [sys.executable, "-S", str(SCRIPT), str(self.run_folder), "--to", "trackio", "--once"]
        end = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
        self.assertEqual(end.returncode, 1, end.stderr)
        self.assertIn("pip install trackio", end.stderr)


if __name__ == "__main__":
    unittest.main()

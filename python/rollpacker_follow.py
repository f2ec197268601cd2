#!/usr/bin/env python3
"""Follows the metrics of a run and sends them to wandb or trackio, while the run is written and afterwards.

    python3 rollpacker_follow.py runs/chain --to wandb --project chain
    python3 rollpacker_follow.py runs/chain --to trackio --project chain --once

Needs Python 3.11 and the package `wandb` or `trackio`, and nothing else. Only files of the run folder are read, so the run is not
affected. The scalars of each line of `metrics.jsonl` are sent with their step; `recipe.toml` becomes the configuration of the run.

The script ends when the run has finished (`ended` is `finished` in `summary.json`), or at Ctrl-C. A run that was stopped or killed may be
resumed, so the script waits for more; `--once` sends the existing lines and ends. A resumed run repeats the steps after its last snapshot, and
these are sent again. A new run in the same folder begins a new run there.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import time
import tomllib
from pathlib import Path

METRICS, RECIPE, SUMMARY = "metrics.jsonl", "recipe.toml", "summary.json"


class MetricsReader:
    """Reads the complete lines of a file that is written, truncated or replaced meanwhile.

    A resumed run replaces `metrics.jsonl` by a copy of its beginning and appends to it. So the file is read anew when it is another one
    or has become shorter, and lines that were returned before are left out as long as they are the same.
    """

    def __init__(self, path):
        self.path = path
        self.file = None
        self.digests = []  # of the lines returned so far
        self.read = 0  # lines of this file
        self.rest = b""  # the beginning of a line whose end is not written yet

    def poll(self):
        """Returns the new lines, each with `True` if it begins another run. Returns nothing while there is no file."""
        if self._is_replaced():
            self.close()
            try:
                self.file = open(self.path, "rb")
            except FileNotFoundError:
                return []
        if self.file is None:
            return []
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [line for line in map(self._take, lines) if line is not None]

    def _is_replaced(self):
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        if self.file is None:
            return True
        opened = os.fstat(self.file.fileno())
        same = (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)
        return not same or found.st_size < self.file.tell()

    def close(self):
        if self.file is not None:
            self.file.close()
        self.file, self.read, self.rest = None, 0, b""

    def _take(self, line):
        digest = hashlib.sha256(line).digest()
        index, self.read = self.read, self.read + 1
        if self.digests[index : index + 1] == [digest]:
            return None
        is_new_run = index == 0 and bool(self.digests)
        del self.digests[index:]
        self.digests.append(digest)
        try:
            return json.loads(line), is_new_run
        except ValueError as error:
            raise SystemExit(f"{self.path}, line {index + 1}: expected the metrics of a step as JSON: {error}") from None


def scalars(line):
    """Returns the metrics of a line that are finite numbers."""
    numbers = {name: value for name, value in line["data"].items() if isinstance(value, (int, float))}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def configuration(run):
    """Returns the settings of the recipe by their dotted names; nothing if the recipe is not written yet."""
    try:
        recipe = tomllib.loads((run / RECIPE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    settings = {}

    def flatten(prefix, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            settings[prefix] = value if isinstance(value, (bool, int, float, str)) else str(value)

    flatten("", recipe)
    return settings


class Wandb:
    """Sends to wandb. The horizontal axis is `global_step`: unlike wandb's own step, it may go back when a run is resumed."""

    def __init__(self, project, name, config):
        import wandb

        self.run = wandb.init(project=project, name=name, config=config, reinit="finish_previous")
        self.run.define_metric("global_step")
        self.run.define_metric("*", step_metric="global_step")

    def log(self, step, values):
        self.run.log({"global_step": step, **values})

    def finish(self):
        self.run.finish()


class Trackio:
    """Sends to trackio."""

    def __init__(self, project, name, config):
        import trackio

        self.trackio = trackio
        trackio.init(project=project, name=name, config=config, embed=False)

    def log(self, step, values):
        self.trackio.log(values, step=step)

    def finish(self):
        self.trackio.finish()


SINKS = {"wandb": Wandb, "trackio": Trackio}


class Follower:
    """Sends the lines of a run folder to a sink. `start(number)` begins the run with that number, from 0, at the sink."""

    def __init__(self, run, start):
        self.run = Path(run)
        self.start = start
        self.reader = MetricsReader(self.run / METRICS)
        self.sink = None
        self.runs = 0
        self.sent = 0

    def send(self):
        """Sends the new lines and returns their number."""
        lines = self.reader.poll()
        for line, is_new_run in lines:
            if is_new_run:
                self.finish()
            if self.sink is None:
                self.sink = self.start(self.runs)
                self.runs += 1
            self.sink.log(line["step"], scalars(line))
        self.sent += len(lines)
        return len(lines)

    def ended(self):
        """Returns the reason of the end of the run; `None` if it goes on or was killed."""
        try:
            return json.loads((self.run / SUMMARY).read_text(encoding="utf-8")).get("ended")
        except (FileNotFoundError, ValueError):
            return None

    def finish(self):
        if self.sink is not None:
            self.sink.finish()
        self.sink = None

    def follow(self, interval, once=False, wait=time.sleep, say=lambda text: None):
        """Sends lines until the run has finished."""
        said = None
        while True:
            # The summary is written after the last line, so lines are read after it.
            ended = self.ended()
            while self.send():
                pass
            if once or ended == "finished":
                return
            if ended is not None and ended != said:
                say(f"the run has ended ({ended}) and may be resumed; Ctrl-C ends this script")
            said = ended
            wait(interval)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--to", required=True, choices=sorted(SINKS), help="package that receives the metrics")
    parser.add_argument("--project", default="rollpacker", help="project there (default: rollpacker)")
    parser.add_argument("--name", help="name of the run there (default: name of the run folder)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks at the file, above 0 (default: 1)")
    parser.add_argument("--once", action="store_true", help="send the existing lines, and end")
    args = parser.parse_args(argv)
    if not (math.isfinite(args.interval) and args.interval > 0):
        parser.error(f"--interval: expected seconds above 0, found {args.interval}")
    if args.once and not (args.run / METRICS).is_file():
        parser.error(f"{args.run}: expected the folder of a run, with {METRICS}")
    return args


def main(argv=None):
    args = arguments(argv)
    name = args.name or args.run.resolve().name

    def start(number):
        own = name if number == 0 else f"{name}-{number + 1}"
        try:
            return SINKS[args.to](args.project, own, configuration(args.run))
        except ModuleNotFoundError as error:
            raise SystemExit(f"--to {args.to}: needs the package `{error.name}`: pip install {args.to}") from None

    def say(text):
        print(text, file=sys.stderr, flush=True)

    follower = Follower(args.run, start)
    try:
        follower.follow(args.interval, args.once, say=say)
    except KeyboardInterrupt:
        pass
    finally:
        follower.finish()
        follower.reader.close()
    say(f"{follower.sent} lines of {args.run / METRICS} sent to {args.to}")


if __name__ == "__main__":
    main()

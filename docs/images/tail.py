"""Draws `docs/images/tail.svg` from a trace of `rollpacker simulate --perfetto`: the running responses of five steps with and without
tail batching.

    rollpacker simulate --config configs/sim/14b.toml --sweep schedule.name=sync,tail_batching sim.steps=5 \
        --perfetto trace.json --perfetto-steps 5
    python3 docs/images/tail.py trace.json docs/images/tail.svg
"""

import json
import math
import sys
from collections import defaultdict

ROWS = [("sync", "Synchronous rounds (sync, as in veRL)"), ("tail_batching", "Tail batching (tail_batching)")]
TRAINED, DROPPED, TRAINING, TEXT, AXIS = "#4c78a8", "#e45756", "#8f8f8f", "#767676", "#a0a0a0"
WIDTH, LEFT, RIGHT, TOP, PLOT, GAP, BOTTOM = 900, 58, 14, 66, 120, 70, 56


def read(path):
    """Returns, by configuration, the steps, the training and the responses, each as a list of (start, end, arguments) in seconds."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = defaultdict(lambda: defaultdict(list))
    for event in (event for event in events if event["ph"] == "X"):
        configuration, _, group = names[event["pid"]].partition(": ")
        kind = "slot" if group.startswith("instance") else event["cat"]
        start = event["ts"] / 1e6
        found[configuration][kind].append((start, start + event["dur"] / 1e6, event["args"]))
    return found


def running(responses, end, bins):
    """Returns the mean number of running responses in each of `bins` equal parts of the time to `end`."""
    width = end / bins
    counts = [0.0] * bins
    for start, stop, _ in responses:
        for index in range(int(start / width), min(int(stop / width) + 1, bins)):
            counts[index] += max(min(stop, (index + 1) * width) - max(start, index * width), 0.0) / width
    return counts


class Picture:
    def __init__(self, seconds, most):
        self.seconds, self.most = seconds, most
        self.bins = WIDTH - LEFT - RIGHT
        self.height = TOP + len(ROWS) * PLOT + (len(ROWS) - 1) * GAP + BOTTOM
        self.parts = []

    def x(self, seconds):
        return LEFT + seconds / self.seconds * self.bins

    def text(self, x, y, text, anchor="start", weight="normal", size=13):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="{TEXT}">{text}</text>'
        )

    def box(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>')

    def y(self, base, count):
        """Returns the place of a count on a logarithmic scale above the line at `base`, which stands for half a response."""
        return base - math.log(max(count, 0.5) / 0.5) / math.log(self.most / 0.5) * PLOT

    def area(self, base, counts, color):
        tops = [f"{LEFT + at},{self.y(base, count):.1f}" for at, count in enumerate(counts)]
        path = " ".join([f"{LEFT},{base}", *tops, f"{LEFT + len(counts)},{base}"])
        self.parts.append(f'<polygon points="{path}" fill="{color}"/>')

    def row(self, index, title, found):
        base = TOP + index * (PLOT + GAP) + PLOT
        end = max(stop for _, stop, _ in found["step"])
        self.text(LEFT, base - PLOT - 12, f"{title}: {len(found['step'])} steps in {end:.0f} s", weight="bold")
        kept = [one for one in found["slot"] if one[2]["trained"]]
        self.area(base, running(found["slot"], self.seconds, self.bins), DROPPED)
        self.area(base, running(kept, self.seconds, self.bins), TRAINED)
        for start, stop, _ in found["trainer"]:
            self.box(self.x(start), base + 3, self.x(stop) - self.x(start), 7, TRAINING)
        for start, stop, step in found["step"]:
            self.parts.append(
                f'<line x1="{self.x(stop):.1f}" x2="{self.x(stop):.1f}" y1="{base - PLOT}" y2="{base + 12}" stroke="{AXIS}" stroke-dasharray="3 3"/>'
            )
            self.text(self.x((start + stop) / 2), base + 25, f"{step['step']}: {step['round']}", "middle", size=11)
        self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}" stroke="{AXIS}"/>')
        for count in (1, 10, 100, 1000):
            self.text(LEFT - 6, self.y(base, count) + 4, f"{count}", "end", size=11)

    def legend(self):
        entries = [(TRAINED, "running responses, trained on (logarithmic)"), (DROPPED, "running responses, dropped at the end of the round"), (TRAINING, "trainer busy")]
        for x, (color, label) in zip((0, 290, 640), entries):
            self.box(LEFT + x, 10, 12, 12, color)
            self.text(LEFT + x + 18, 20, label, size=12)

    def axis(self):
        for seconds in range(0, int(self.seconds) + 1, 200):
            self.text(self.x(seconds), self.height - 4, f"{seconds} s", "middle", size=11)

    def svg(self):
        style = "font-family: system-ui, sans-serif"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" style="{style}" role="img">'
        title = "<title>Running responses over time, with synchronous rounds and with tail batching</title>"
        return "\n".join([head, title, *self.parts, "</svg>", ""])


def main(trace, output):
    found = read(trace)
    seconds = max(stop for name, _ in ROWS for _, stop, _ in found[name]["step"])
    peaks = [max(running(found[name]["slot"], seconds, WIDTH - LEFT - RIGHT)) for name, _ in ROWS]
    picture = Picture(seconds, max(peaks))
    picture.legend()
    for index, (name, title) in enumerate(ROWS):
        picture.row(index, title, found[name])
    picture.axis()
    with open(output, "w") as file:
        file.write(picture.svg())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Time as a case is charged for it: that of the clock, less what its processes waited for a processor.

A limit by the clock alone fails whoever has a busy neighbour, and one of processor time alone lets a sleeper go on for ever. So a case is
charged for what it computes and for what it sleeps, and not for the time in which it could have gone on and no processor was free. The
kernel counts that for each thread; the first threads of the checker and of the run are looked at. A solution whose own processes
keep it waiting is not charged for that either, and is ended by the clock after `WALL_FACTOR` times its limit.
"""

import os
import time

# However long its processes wait, a case may take so many times its limit by the clock.
WALL_FACTOR = 5
# Below this there is no point in another look, in seconds.
LEAST = 0.01


def open_waits(process="self"):
    """Opens what tells how long a process waited, for whoever holds the descriptor; None where the kernel or a namespace does not show it."""
    try:
        return os.open("/proc/%s/schedstat" % process, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class Waits:
    """How long the first thread of a process has waited for a processor."""

    def __init__(self, fd):
        self.fd, self.last = fd, 0.0

    def seconds(self):
        """Returns the seconds so far; of a process that is gone, those of the last time it was asked for."""
        try:
            # Time on a processor and time of waiting, in nanoseconds, and how often it got a processor.
            self.last = int(os.pread(self.fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError, TypeError):
            pass
        return self.last

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Clock:
    """What the case at hand is charged."""

    def __init__(self, own):
        self.own, self.run = own, Waits(None)
        self.limit = self.began = self.waited = 0.0

    def begin(self, limit):
        """A case begins that may be charged `limit` seconds."""
        self.limit, self.began = limit, time.monotonic()
        self.waited = -self.own.seconds() - self.run.seconds()

    def watch(self, run):
        """Another run takes part, of which `run` tells the waits; what those before it have waited stays."""
        self.waited += self.run.seconds() - run.seconds()
        self.run.close()
        self.run = run

    def charged(self):
        """Returns the seconds that the case is charged so far."""
        return max(0.0, time.monotonic() - self.began - self.waited - self.own.seconds() - self.run.seconds())

    def left(self):
        """Returns the seconds that the case may go on at least; 0 if it is over."""
        by_clock = WALL_FACTOR * self.limit - (time.monotonic() - self.began)
        left = min(self.limit - self.charged(), by_clock)
        return left if left >= LEAST else 0.0

"""The time that a case is charged: the elapsed time without the time that its processes waited for a processor.

A limit on elapsed time fails solutions on a busy machine, and a limit on processor time alone never ends one that sleeps. A case is
therefore charged for computing and sleeping, but not for waiting while no processor was free. The kernel counts this wait for each thread;
the first threads of the checker and of the run are measured. Waits that the solution's own processes cause are not charged either, but the
case ends after `WALL_FACTOR` times its limit of elapsed time.
"""

import os
import time

# The maximum elapsed time of a case as a multiple of its limit.
WALL_FACTOR = 5
# A remaining time below this number of seconds counts as none.
LEAST = 0.01


def open_waits(process="self"):
    """Opens the file that shows how long a process waited. Returns None if the kernel or a namespace does not provide it. Any process that
    receives the descriptor can read it.
    """
    try:
        return os.open("/proc/%s/schedstat" % process, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class Waits:
    """The time that the first thread of a process waited for a processor."""

    def __init__(self, fd):
        self.fd, self.last = fd, 0.0

    def seconds(self):
        """Returns the seconds so far. For a process that has ended, returns the last known value."""
        try:
            # The fields are the time on a processor and the time of waiting in nanoseconds, and the number of time slices.
            self.last = int(os.pread(self.fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError, TypeError):
            pass
        return self.last

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Clock:
    """The time that the current case is charged."""

    def __init__(self, own):
        self.own, self.run = own, Waits(None)
        self.limit = self.began = self.waited = 0.0

    def begin(self, limit):
        """Starts a case with a limit of `limit` seconds."""
        self.limit, self.began = limit, time.monotonic()
        self.waited = -self.own.seconds() - self.run.seconds()

    def watch(self, run):
        """Adds the waits of another run, `run`. The waits of the previous run remain counted."""
        self.waited += self.run.seconds() - run.seconds()
        self.run.close()
        self.run = run

    def charged(self):
        """Returns the seconds that the case is charged so far."""
        return max(0.0, time.monotonic() - self.began - self.waited - self.own.seconds() - self.run.seconds())

    def left(self):
        """Returns a lower bound of the seconds that the case may still run, or 0 if its time is over."""
        by_clock = WALL_FACTOR * self.limit - (time.monotonic() - self.began)
        left = min(self.limit - self.charged(), by_clock)
        return left if left >= LEAST else 0.0

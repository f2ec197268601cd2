"""The time that a case is charged: the elapsed time without the time that its processes waited for a processor.

A limit on elapsed time fails solutions on a busy machine, and a limit on processor time alone never ends one that sleeps. A case is
therefore charged for computing and sleeping, but not for waiting while no processor was free. The kernel counts this wait for each thread;
the first threads of the checker and of the run are measured. While the checker waits, the run may compute, so a case is charged at least
the processor time of its runs, as far as the time has elapsed: of all their threads and processes once a run has ended, of its first thread
before. Waits that the solution's own processes cause are not charged either, but the case ends after `WALL_FACTOR` times its limit of
elapsed time.
"""

import os
import time

# The maximum elapsed time of a case as a multiple of its limit.
WALL_FACTOR = 5
# A remaining time below this number of seconds counts as none.
MIN_LEFT_SECONDS = 0.01


def open_times(process="self"):
    """Opens the file that shows how long a process computed and waited. Returns None if the kernel or a namespace does not provide it. Any
    process that receives the descriptor can read it.
    """
    try:
        return os.open("/proc/%s/schedstat" % process, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


class Times:
    """The time that the first thread of a process was on a processor, and the time that it waited for one."""

    def __init__(self, fd):
        self.fd, self.last = fd, (0.0, 0.0)

    def seconds(self):
        """Returns the seconds of computing and of waiting so far. For a process that was reaped, returns the last known values."""
        try:
            # The fields are both times in nanoseconds, and the number of time slices.
            computed, waited = os.pread(self.fd, 64, 0).split()[:2]
            self.last = int(computed) / 1e9, int(waited) / 1e9
        except (OSError, ValueError, TypeError):
            pass
        return self.last

    def end(self, computed, waited):
        """Sets the final values. Those of waiting may be less than the last known ones if the kernel does not provide them."""
        self.close()
        self.last = computed, max(waited, self.last[1])

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Clock:
    """The time that the current case is charged."""

    def __init__(self, own):
        self.own, self.run = own, Times(None)
        self.limit = self.began = self.computed = self.waited = 0.0

    def begin(self, limit):
        """Starts a case with a limit of `limit` seconds."""
        self.limit, self.began = limit, time.monotonic()
        computed, waited = self.run.seconds()
        self.computed, self.waited = -computed, -waited - self.own.seconds()[1]

    def watch(self, run):
        """Measures another run, `run`. The times of the previous run remain counted."""
        (last_computed, last_waited), (computed, waited) = self.run.seconds(), run.seconds()
        self.computed += last_computed - computed
        self.waited += last_waited - waited
        self.run.close()
        self.run = run

    def end(self, computed, waited):
        """Sets the final times of the run, which has ended."""
        self.run.end(computed, waited)

    def charged(self):
        """Returns the seconds that the case is charged so far."""
        computed, waited = self.run.seconds()
        elapsed = time.monotonic() - self.began
        return max(min(self.computed + computed, elapsed), elapsed - self.waited - waited - self.own.seconds()[1])

    def left(self):
        """Returns a lower bound of the seconds that the case may still run, or 0 if its time is over."""
        by_clock = WALL_FACTOR * self.limit - (time.monotonic() - self.began)
        left = min(self.limit - self.charged(), by_clock)
        return left if left >= MIN_LEFT_SECONDS else 0.0

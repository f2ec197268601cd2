"""What the solution side does: runs of the solution, on request of the checker side."""

import json
import os
import select
import signal
import socket
import sys
import time


def serve(job, requests, sandbox):
    """Answers one request after another until the checker hangs up."""
    while True:
        data = requests.recv(65536)
        if not data:
            return
        request = json.loads(data)
        requests.sendall(json.dumps(run(job, request, sandbox)).encode())


def run(job, request, sandbox):
    """One run of the solution with an empty standard input, its output dropped."""
    sandbox.sweep()
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.confine([0, 1, 2], request["seconds"])
            exec(compile(job["solution"], "solution.py", "exec"), {"__name__": "__main__"})
        except MemoryError:
            os._exit(102)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 0)
        except BaseException:
            os._exit(1)
        os._exit(0)
    poll = select.poll()
    fd = os.pidfd_open(pid)
    poll.register(fd, select.POLLIN)
    overdue = not poll.poll(request["seconds"] * 1000)
    os.close(fd)
    if overdue:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    sandbox.sweep()
    return {"status": status, "overdue": overdue}

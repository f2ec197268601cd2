"""What the checker side does: the tests, one case after another."""

import json
import os
import signal
import time


def check(job, requests, progress):
    """The verdict, as `Verdict` of the host reads it."""
    cases = []
    for seconds in job["seconds"]:
        progress.begin(seconds)
        start = time.monotonic()
        requests.sendall(json.dumps({"seconds": seconds}).encode())
        end = json.loads(requests.recv(65536))
        cases.append({"outcome": outcome(end), "seconds": time.monotonic() - start, "message": ""})
        progress.case(cases[-1])
    return {"verdict": {"cases": cases, "stdout": "", "stderr": ""}}


def outcome(end):
    status = end["status"]
    if end["overdue"]:
        return "timeout"
    if os.WIFSIGNALED(status):
        return "forbidden" if os.WTERMSIG(status) == signal.SIGSYS else "runtime_error"
    return {0: "passed", 102: "memory"}.get(os.WEXITSTATUS(status), "runtime_error")

"""Children of a capture that start with torch already imported: a script of many captures takes half the time.

A server of each interpreter imports what every child imports before it changes anything, and forks one for each pass.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from fusionaudit.capture.process import Ended

_SERVER = """
import contextlib, json, os, signal, sys, time
if sys.path and sys.path[0] == '': del sys.path[0]
import fusionaudit.capture.recorder, fusionaudit.capture.targets
from fusionaudit.capture.child import main
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        answers.close()
        for target, path in enumerate((os.devnull, job["stdout"], job["stderr"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), target)
        os.environ.clear()
        os.environ.update(job["environment"])
        sys.argv = ["-c", *job["arguments"]]
        main(sys.argv[1])  # leaves by SystemExit
    end, done = time.monotonic() + job["timeout_s"], (0, 0)
    while done[0] == 0 and time.monotonic() < end:
        time.sleep(0.02)
        done = os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    timed_out = done[0] == 0
    code = os.waitstatus_to_exitcode((done if done[0] else os.waitpid(pid, 0))[1])
    answers.write(json.dumps({"returncode": code, "timed_out": timed_out}) + "\\n")
    answers.flush()
"""


class WarmChildren:
    """Stands in for ``fusionaudit.capture.session.run_child``: one interpreter, one hash seed. Close it at the end."""

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        # Inductor's configuration reads these when it is imported; the compiled pass has them, the eager one no use.
        own = {**environment, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
        self._server = subprocess.Popen(
            [python, "-W", "ignore", "-c", _SERVER], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run_child(
        self, command: list[str], *, environment: dict[str, str], stdout: int, stderr: int, timeout_s: float | None,
        **_: Any,
    ) -> Ended:  # fmt: skip
        """As the real one, without its grace: past the time limit the child is killed."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        mine = f"/proc/{os.getpid()}/fd"
        job = {
            "arguments": command[3:], "environment": environment, "stdout": f"{mine}/{stdout}",
            "stderr": f"{mine}/{stderr}", "timeout_s": timeout_s or 1e9,
        }  # fmt: skip
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        return Ended(**json.loads(answer))

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)

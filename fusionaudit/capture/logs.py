"""Inductor's and Dynamo's log artifacts into a file of the capture; what the user sees stays as it is."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError

ARTIFACTS = (
    "output_code", "fusion", "graph_breaks", "recompiles", "cudagraphs", "post_grad_graphs", "schedule",
)  # fmt: skip


class _ToFile(logging.Handler):
    """Writes our artifacts and every warning; a full disk or a fork must not reach the user's program."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.DEBUG)
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._pid = os.getpid()
        self.error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid or self._file.closed or self.error is not None:
            return
        artifact = getattr(logging.getLogger(record.name), "artifact_name", None)
        if artifact not in ARTIFACTS and record.levelno < logging.WARNING:
            return
        try:
            self._file.write(self.format(record) + "\n")
            self._file.flush()
        except OSError as error:
            self.error = error
        except Exception:  # a record that cannot be formatted: the rest of the log is worth more
            self._file.write(f"{record.name}: (unreadable record)\n")

    def close(self) -> None:
        if os.getpid() == self._pid:
            try:
                self._file.close()
            except OSError as error:
                self.error = error
        super().close()


class ArtifactLog:
    """Turns our artifacts on for the process and sends them to ``path``.

    Artifacts that the user's TORCH_LOGS (or set_logs call) names go on to their stderr as before; ours do not.
    """

    def __init__(self, path: Path) -> None:
        from torch._logging import _internal

        needed = ("_init_logs", "log_state", "log_registry", "configure_artifact_log", "TorchLogsFormatter")
        missing = [name for name in needed if not hasattr(_internal, name)]
        if missing:
            raise AuditError(
                f"this torch has no torch._logging._internal.{missing[0]}", remedy="torch 2.9 to 2.14 are supported"
            )
        self._internal: Any = _internal
        self._handler = _ToFile(path)
        self._handler.setFormatter(_internal.TorchLogsFormatter())
        self._users: set[str] = set()
        original = _internal._init_logs

        def init_logs(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self._apply()

        _internal._init_logs = init_logs
        self._apply()

    @property
    def error(self) -> OSError | None:
        """The write that failed, if one did."""
        return self._handler.error

    def _apply(self) -> None:
        internal = self._internal
        known = [a for a in ARTIFACTS if a in internal.log_registry.artifact_names]
        self._users = set(internal.log_state.artifact_names)
        for artifact in known:
            internal.log_state.enable_artifact(artifact)
        for name in internal.log_registry.get_log_qnames():
            logger = logging.getLogger(name)
            for handler in logger.handlers:
                if handler is not self._handler and self._for_user not in handler.filters:
                    handler.addFilter(self._for_user)
            if self._handler not in logger.handlers:
                logger.addHandler(self._handler)
        for name in internal.log_registry.get_artifact_log_qnames():
            internal.configure_artifact_log(logging.getLogger(name))

    def _for_user(self, record: logging.LogRecord) -> bool:
        artifact = getattr(logging.getLogger(record.name), "artifact_name", None)
        return artifact not in ARTIFACTS or artifact in self._users or record.levelno >= logging.WARNING

    def close(self) -> None:
        """Close the file."""
        self._handler.close()

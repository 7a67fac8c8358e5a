"""The one error that users see: what went wrong, what to do, and the exit code."""

from __future__ import annotations

import importlib.metadata
import re

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2


class AuditError(Exception):
    """A problem told to the user in one line, with a remedy; never shown as a traceback.

    ``remedy`` says what to do about it (may be empty); ``exit_code`` is 2 unless the design says otherwise.
    """

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = EXIT_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


DAMAGE = (ArithmeticError, AttributeError, AuditError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a file of the right form with impossible values can raise."""


def damaged(what: str, problem: BaseException) -> AuditError:
    """The AuditError for such a file; an AuditError stays what it is."""
    if isinstance(problem, AuditError):
        return problem
    text = f"{what}: damaged: {type(problem).__name__}: {str(problem)[:120]}"
    return AuditError(text, remedy="make it again; if it was not edited, report it with the file")


def pip_for(extra: str) -> str:
    """The command that installs an extra of this package, by the names in it: this package itself is on no index."""
    try:
        wanted = importlib.metadata.requires("fusionaudit") or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    names = [w.split(";")[0].strip() for w in wanted if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", w)]
    if not names:
        return f"pip install -e '.[{extra}]' in the folder that has fusionaudit's pyproject.toml"
    return "pip install " + " ".join(f"'{name}'" for name in names)

"""What the parent tells the child about one pass, and what the child tells back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PassKind = str
OUTCOME = "outcome.json"
TARGETS = "targets.json"


@dataclass(frozen=True, kw_only=True)
class PassSpec:
    """One pass as the child runs it. All paths are absolute.

    ``name`` is ``eager``, ``compiled``, ``clean`` or ``clean_eager``; ``folder`` holds its files; ``targets`` is the
    eager pass's list of what to compile (read where it exists, written by the eager pass). ``variant`` is what a sweep
    changes (see capture/variant.py). ``parent``: the process whose end is the pass's end too, where that is the direct
    parent.
    """

    name: str
    engine: str
    folder: str
    script: str | None
    module: str | None
    arguments: tuple[str, ...] = ()
    targets: str = ""
    device: dict[str, Any] | None = None
    shapes_only: bool = False
    variant: dict[str, Any] | None = None
    stdout: int | None = None
    stderr: int | None = None
    umask: int | None = None
    parent: int | None = None

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> PassSpec:
        """Back from JSON."""
        data = json.loads(path.read_text())
        data["arguments"] = tuple(data["arguments"])
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class PassOutcome:
    """What the child says at its end: how the script ended and what the capture itself could not do.

    ``problem`` is a failure of the capture (full disk, unsupported torch), not of the script. ``compiled_for_user``
    says what was compiled because the script compiles nothing. ``facts`` are counts for notes.
    """

    exit_code: int
    error: str | None = None
    problem: str | None = None
    compiled_for_user: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """As ``outcome.json`` of the pass."""
        (folder / OUTCOME).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, folder: Path) -> PassOutcome | None:
        """Back; ``None`` where the child died before it could write it."""
        try:
            return cls(**json.loads((folder / OUTCOME).read_text()))
        except (OSError, ValueError, TypeError):
            return None

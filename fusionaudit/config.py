"""What a project wants of its audits: ``[tool.fusionaudit]`` in pyproject.toml."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_CODE = re.compile(r"^FA\d{1,3}$")


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When a finding is worth a warning; below it the finding stays, as information.

    ``min_time_share``: part of the step's GPU time that is saved at least. 0.05: times of a step agree with CUDA events
    within 5 %, so less could not be shown. Findings below it that together save twice as much are warnings too.
    ``min_saving_ns``: what a step saves at least, however short the step. The shortest kernels take 1.1 to 1.3 us on an
    H200, so less than 1 us is not even one of them.
    ``min_bytes`` and ``min_byte_share``: used where no time can be given. 1 MiB moves in 0.25 us on an H200, a tenth of
    one launch.
    ``many_launches``: a step with fewer launches than this is never called launch-bound; 50 launches cost about
    125 us of host time.
    ``loop_repeats``: equal dependent launches from one line that make a loop (FA202).
    ``low_bandwidth``: share of the attainable bandwidth below which FA304 speaks; a plain copy reaches 1.0, ATen's
    reductions and norms in the captures 0.6 and more.
    ``low_occupancy``: warps in flight below which a memory-bound kernel cannot hide latency (FA302): a quarter of the
    threads is what 64 registers x 2 leave on an SM with 65536.
    ``small_kernel_ns``: kernels shorter than this are bound by their launch (one launch costs 2 to 3 us of host time).
    ``expired_recompiles``: recompilations of one function for new sizes that are still normal (first the static, then
    the dynamic graph; Dynamo gives up at 8).
    """

    min_time_share: float = 0.05
    min_saving_ns: int = 1000
    min_bytes: int = 1 << 20
    min_byte_share: float = 0.01
    many_launches: int = 50
    loop_repeats: int = 16
    low_bandwidth: float = 0.4
    low_occupancy: float = 0.25
    small_kernel_ns: int = 5000
    expired_recompiles: int = 3


@dataclass(frozen=True, kw_only=True)
class Config:
    """``select`` (empty: all rules) and ``ignore`` are codes or prefixes (``FA2``); ``per_file`` maps a glob on the
    file that a finding points at to codes that are ignored there; ``check`` is the gate's own table (see
    ``fusionaudit.limits.limits_from``)."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    per_file: dict[str, tuple[str, ...]] = field(default_factory=dict)
    check: dict[str, Any] = field(default_factory=dict)

    def selects(self, code: str) -> bool:
        """True where the rule is to run. What an ignored rule finds is counted as suppressed."""
        return not self.select or any(code.startswith(s) for s in self.select)

    def ignores(self, code: str) -> bool:
        """True where the rule's findings are left out everywhere."""
        return any(code.startswith(s) for s in self.ignore)


def _codes(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) and _CODE.match(v) for v in value):
        raise AuditError(f"{where}: not a list of rule codes: {value!r}", remedy='write ["FA101"] or a prefix, ["FA2"]')
    return tuple(value)


def _thresholds(value: Any, where: str) -> Thresholds:
    if not isinstance(value, dict):
        raise AuditError(f"{where}.thresholds: not a table")
    defaults = Thresholds()
    known = {f.name: getattr(defaults, f.name) for f in fields(Thresholds)}
    for key, given in value.items():
        if key not in known:
            raise AuditError(f"{where}.thresholds: unknown key {key!r}", remedy=f"known: {', '.join(known)}")
        wanted = (int, float) if isinstance(known[key], float) else (int,)
        if isinstance(given, bool) or not isinstance(given, wanted) or given < 0:
            raise AuditError(f"{where}.thresholds.{key}: not a number of the right kind: {given!r}")
    return replace(defaults, **value)


def parse_config(data: Mapping[str, Any], where: str = "[tool.fusionaudit]") -> Config:
    """The Config of a ``[tool.fusionaudit]`` table; AuditError on unknown keys and wrong values."""
    known = ("select", "ignore", "thresholds", "per-file", "check")
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise AuditError(f"{where}: unknown keys {', '.join(unknown)}", remedy=f"known: {', '.join(known)}")
    per_file = data.get("per-file", {})
    if not isinstance(per_file, dict):
        raise AuditError(f"{where}.per-file: not a table of globs")
    if not isinstance(data.get("check", {}), dict):
        raise AuditError(f"{where}.check: not a table")
    return Config(
        select=_codes(data.get("select", []), f"{where}.select"),
        ignore=_codes(data.get("ignore", []), f"{where}.ignore"),
        thresholds=_thresholds(data.get("thresholds", {}), where),
        per_file={glob: _codes(codes, f"{where}.per-file.{glob!r}") for glob, codes in per_file.items()},
        check=dict(data.get("check", {})),
    )


def load_config(folder: Path) -> Config:
    """The Config of the nearest pyproject.toml at or above ``folder``; the defaults where there is none."""
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AuditError(f"{path}: cannot be read: {error}") from None
        tools = data.get("tool", {})
        table = tools.get("fusionaudit", {}) if isinstance(tools, dict) else tools
        if not isinstance(table, dict):
            raise AuditError(f"{path}: [tool.fusionaudit] is not a table")
        return parse_config(table, f"{path.name} [tool.fusionaudit]")
    return Config()

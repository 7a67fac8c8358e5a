"""The GPU that an audit is about: limits and datasheet rates, each with its source."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fusionaudit.errors import AuditError


@dataclass(frozen=True, kw_only=True)
class Device:
    """Properties of a GPU. Sizes in bytes, rates per second. ``None``: not known.

    ``attainable_bandwidth`` is the share of the peak that a plain device copy reaches (measured where ``source`` says
    so, else 0.87, what an H200 copy reaches in tests/data); ``launch_ns`` is the modelled cost of one launch.
    """

    name: str
    key: str | None = None
    vendor: str = "nvidia"
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    warp_size: int = 32
    registers_per_sm: int | None = 65536
    max_registers_per_thread: int = 255
    threads_per_sm: int | None = None
    blocks_per_sm: int | None = None
    shared_bytes_per_sm: int | None = None
    shared_bytes_per_block: int | None = 49152
    shared_bytes_per_block_optin: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    peak_bandwidth_bytes_per_s: int | None = None
    attainable_share: float = 0.87
    peak_flops_per_s: dict[str, int] | None = None
    launch_ns: int = 2500
    arch: str | None = None
    source: str = ""

    @property
    def attainable_bandwidth(self) -> float | None:
        """Bytes per second that a device copy can be expected to reach."""
        peak = self.peak_bandwidth_bytes_per_s
        return None if peak is None else peak * self.attainable_share

    def transfer_ns(self, nbytes: int | None) -> int | None:
        """Time to move that many bytes at the attainable bandwidth."""
        if nbytes is None or self.attainable_bandwidth is None:
            return None
        return round(nbytes / self.attainable_bandwidth * 1e9)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Device:
        """The inverse of :meth:`to_json`; unknown keys are an error that names them."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown or "name" not in data:
            raise AuditError(
                f"device description: {'unknown keys ' + ', '.join(unknown) if unknown else 'no name'}",
                remedy="see `fusionaudit doctor --targets` for the keys",
            )
        values = dict(data)
        if values.get("compute_capability") is not None:
            values["compute_capability"] = tuple(values["compute_capability"])
        return cls(**values)


TARGETS: dict[str, Device] = {}
"""Named GPUs for the deviceless engine, filled below from vendor datasheets."""


def find_target(name: str) -> Device:
    """The device of that name (``h200``) or of a JSON file with its properties; AuditError names the nearest names."""
    key = name.lower().replace("-", "").replace(" ", "").replace("nvidia", "")
    if key in TARGETS:
        return TARGETS[key]
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        try:
            return Device.from_json(json.loads(path.read_text()))
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise AuditError(f"{name}: not a device description: {error}") from None
    near = difflib.get_close_matches(key, TARGETS, n=3, cutoff=0.3) or sorted(TARGETS)
    raise AuditError(f"unknown target {name!r}", remedy=f"nearest: {', '.join(near)}; or a .json file of properties")

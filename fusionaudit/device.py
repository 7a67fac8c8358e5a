"""The GPU that an audit is about: limits and datasheet rates, each with its source."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fusionaudit.errors import DAMAGE, AuditError, damaged


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
        return round(nbytes / self.attainable_bandwidth * 1e9) if nbytes < 2**62 else None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Device:
        """The inverse of :meth:`to_json`; unknown keys are an error that names them."""
        if not isinstance(data, dict):
            raise AuditError("device description: not an object with the keys of a GPU")
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
        for key, value in values.items():
            words = key in ("name", "key", "vendor", "arch", "source")
            if key == "compute_capability":
                fits = value is None or (len(value) == 2 and all(isinstance(v, int) for v in value))
            elif key == "peak_flops_per_s":
                fits = value is None or isinstance(value, dict)
            elif words:
                fits = isinstance(value, str) or (value is None and key in ("key", "arch"))
            else:
                needed = key in ("attainable_share", "launch_ns", "warp_size", "max_registers_per_thread")
                number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**62
                fits = number or (value is None and not needed)
            if not fits:
                raise AuditError(f"device description: {key} cannot be {str(value)[:40]!r}")
        return cls(**values)


_T = 10**12
_GIB = 2**30
_LIMITS = "limits of an SM: CUDA Programming Guide, Compute Capabilities"
"""Where threads, blocks, registers and shared memory of an SM are from."""

TARGETS: dict[str, Device] = {
    device.key: device
    for device in (
        Device(
            name="NVIDIA H200", key="h200", compute_capability=(9, 0), sm_count=132, threads_per_sm=2048,
            blocks_per_sm=32, shared_bytes_per_sm=233472, shared_bytes_per_block_optin=232448, l2_bytes=60 * 2**20,
            memory_bytes=150_109_880_320, peak_bandwidth_bytes_per_s=4_800 * 10**9,
            peak_flops_per_s={"bfloat16": 989 * _T, "float16": 989 * _T, "tf32": 494 * _T, "float32": 67 * _T,
                              "float8": 1979 * _T, "float64": 34 * _T},
            source="NVIDIA H200 Tensor Core GPU datasheet (SXM, dense rates); SMs, L2, memory and the attainable share "
                   "measured on one (copy 4195 GB/s)",
        ),
        Device(
            name="NVIDIA H100 SXM", key="h100", compute_capability=(9, 0), sm_count=132, threads_per_sm=2048,
            blocks_per_sm=32, shared_bytes_per_sm=233472, shared_bytes_per_block_optin=232448, l2_bytes=50 * 2**20,
            memory_bytes=80 * _GIB, peak_bandwidth_bytes_per_s=3_350 * 10**9,
            peak_flops_per_s={"bfloat16": 989 * _T, "float16": 989 * _T, "tf32": 494 * _T, "float32": 67 * _T,
                              "float8": 1979 * _T, "float64": 34 * _T},
            source="NVIDIA H100 Tensor Core GPU datasheet (SXM5 80 GB, dense rates); NVIDIA "
                   f"H100 Tensor Core GPU Architecture (132 SMs, 50 MB L2); {_LIMITS} (9.0)",
        ),
        Device(
            name="NVIDIA A100 SXM 80GB", key="a100", compute_capability=(8, 0), sm_count=108, threads_per_sm=2048,
            blocks_per_sm=32, shared_bytes_per_sm=167936, shared_bytes_per_block_optin=166912, l2_bytes=40 * 2**20,
            memory_bytes=80 * _GIB, peak_bandwidth_bytes_per_s=2_039 * 10**9,
            peak_flops_per_s={"bfloat16": 312 * _T, "float16": 312 * _T, "tf32": 156 * _T, "float32": 19_500 * 10**9,
                              "float64": 9_700 * 10**9},
            source="NVIDIA A100 Tensor Core GPU datasheet (SXM 80 GB, dense rates); NVIDIA A100 Tensor Core GPU "
                   f"Architecture (108 SMs, 40 MB L2); {_LIMITS} (8.0)",
        ),
        Device(
            name="NVIDIA L4", key="l4", compute_capability=(8, 9), sm_count=58, threads_per_sm=1536, blocks_per_sm=24,
            shared_bytes_per_sm=102400, shared_bytes_per_block_optin=101376, l2_bytes=48 * 2**20,
            memory_bytes=24 * _GIB, peak_bandwidth_bytes_per_s=300 * 10**9,
            peak_flops_per_s={"bfloat16": 121 * _T, "float16": 121 * _T, "tf32": 60 * _T, "float32": 30_300 * 10**9,
                              "float8": 242 * _T},
            source="NVIDIA L4 Tensor Core GPU datasheet (dense rates; 7424 CUDA cores are 58 "
                   f"SMs); NVIDIA Ada GPU Architecture (48 MB L2 of AD104); {_LIMITS} (8.9)",
        ),
        Device(
            name="NVIDIA GeForce RTX 4090", key="rtx4090", compute_capability=(8, 9), sm_count=128, threads_per_sm=1536,
            blocks_per_sm=24, shared_bytes_per_sm=102400, shared_bytes_per_block_optin=101376, l2_bytes=72 * 2**20,
            memory_bytes=24 * _GIB, peak_bandwidth_bytes_per_s=1_008 * 10**9,
            peak_flops_per_s={"bfloat16": 165 * _T, "float16": 165 * _T, "tf32": 82_600 * 10**9,
                              "float32": 82_600 * 10**9, "float8": 330 * _T},
            source="NVIDIA Ada GPU Architecture (RTX 4090: 128 SMs, 72 MB L2, 1008 GB/s, dense rates, float32 sums); "
                   f"{_LIMITS} (8.9)",
        ),
        Device(
            name="NVIDIA B200", key="b200", compute_capability=(10, 0), sm_count=148, threads_per_sm=2048,
            blocks_per_sm=32, shared_bytes_per_sm=233472, shared_bytes_per_block_optin=232448, l2_bytes=126 * 2**20,
            memory_bytes=180 * _GIB, peak_bandwidth_bytes_per_s=8_000 * 10**9,
            peak_flops_per_s={"bfloat16": 2250 * _T, "float16": 2250 * _T, "tf32": 1125 * _T, "float32": 75 * _T,
                              "float8": 4500 * _T, "float64": 37 * _T},
            source="NVIDIA Blackwell Architecture brief and HGX B200 datasheet (dense rates); Blackwell Tuning "
                   f"Guide (126 MB L2); 148 SMs and 180 GB as HGX B200 machines report; {_LIMITS} (10.0)",
        ),
        Device(
            name="AMD Instinct MI300X", key="mi300x", vendor="amd", compute_capability=(9, 4), sm_count=304,
            warp_size=64, registers_per_sm=131072, max_registers_per_thread=512, threads_per_sm=2048,
            blocks_per_sm=32, shared_bytes_per_sm=65536, shared_bytes_per_block=65536,
            shared_bytes_per_block_optin=65536, l2_bytes=4 * 2**20, memory_bytes=192 * _GIB,
            peak_bandwidth_bytes_per_s=5_300 * 10**9, arch="gfx942", peak_flops_per_s={"bfloat16": 1307 * _T,
            "float16": 1307 * _T, "tf32": 653 * _T, "float32": 163 * _T, "float8": 2614 * _T, "float64": 81 * _T},
            source="AMD Instinct MI300X data sheet; AMD GPU specifications, ROCm documentation (304 CUs, 512 KiB "
                   "of vector registers and 64 KiB LDS a CU, 4 MiB L2 an XCD); what Inductor makes for it was compared "
                   "with no real MI300X",
        ),
    )
    if device.key is not None
}  # fmt: skip
"""Named GPUs for the deviceless engine, from vendor datasheets."""


def find_target(name: str) -> Device:
    """The device of that name (``h200``) or of a JSON file with its properties; AuditError names the nearest names."""
    key = name.lower().replace("-", "").replace(" ", "").replace("nvidia", "")
    if key in TARGETS:
        return TARGETS[key]
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        try:
            return Device.from_json(json.loads(path.read_text()))
        except DAMAGE as problem:
            raise damaged(f"{name}: not a device description", problem) from None
    near = difflib.get_close_matches(key, TARGETS, n=3, cutoff=0.3) or sorted(TARGETS)
    raise AuditError(f"unknown target {name!r}", remedy=f"nearest: {', '.join(near)}; or a .json file of properties")

"""The comparison table: one pattern as naive eager, hand-fused CUDA, torch.compile, cuda.compute and a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode

from fusionaudit.errors import AuditError
from fusionaudit.inductor.output_code import parse_output_code
from fusionaudit.reference_kernels.reference import Reference, Tensors
from fusionaudit.reference_kernels.registry import REFERENCES
from fusionaudit.tensors import Tensor
from fusionaudit.verify.check import Check, compare
from fusionaudit.verify.cuda_compute import PATTERNS, why_not
from fusionaudit.verify.timing import (
    Run,
    Timing,
    capture_graph,
    copy_bandwidth,
    first_line,
    host_launch_ns,
    interleaved,
)

DECIDES = {
    "naive": "nobody: a kernel an op",
    "reference": "you, in CUDA",
    "compile": "Inductor",
    "cuda_compute": "you, by iterators",
    "cuda_graph": "nobody: launches replayed",
    "persistent": "you, in CUDA",
}
Row = dict[str, Any]


class _Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that the ops of an eager run move, by the byte model: distinct elements read and written."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = _tensors([*args, *(kwargs or {}).values()])
        outputs = _tensors([out])
        if not func.is_view and not str(func).startswith("aten.empty"):
            self.total += sum(_nbytes(t) for t in (*inputs, *outputs))
        return out


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    out: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            out.append(value)
        elif isinstance(value, (list, tuple)):
            out += _tensors(value)
    return out


def _nbytes(t: torch.Tensor) -> int:
    name = str(t.dtype).removeprefix("torch.")
    return Tensor(shape=tuple(t.shape), strides=tuple(t.stride()), dtype=name).nbytes or 0


def naive_bytes(reference: Reference, inputs: Tensors) -> int:
    """Bytes through global memory of the eager form."""
    with _Bytes() as mode, torch.no_grad():
        reference.eager(*inputs)
    total: int = mode.total
    return total


def widened(inputs: Tensors) -> Tensors:
    """Floating inputs in fp64."""
    return tuple(t.double() if t.dtype.is_floating_point else t for t in inputs)


def check_reference(
    reference: Reference, launch: Any, inputs: Tensors, version: Callable[..., Tensors] | None = None
) -> Check:
    """Run a fused form once with poisoned outputs and compare with the eager form in fp64."""
    exact = (reference.precise or reference.eager)(*(t.clone() for t in widened(inputs)))
    # With a form of its own for exactness (random masks) eager's results are no yardstick.
    eager = None if reference.precise is not None else reference.eager(*(t.clone() for t in inputs))
    launch.poison = True
    try:
        outputs = (version or reference.fused)(launch, *(t.clone() for t in inputs))
    finally:
        launch.poison = False
    length = max((t.shape[-1] for t in inputs if t.dim()), default=1)
    check = compare(outputs, exact, eager, length=length, scale=reference.tolerance_scale)
    if check.ok and len(outputs) != len(exact):
        return Check(ok=False, error=float("nan"), tolerance=0.0, text="another number of outputs")
    return check


def count_kernels(run: Run) -> int | None:
    """Kernels that one call launches, by torch.profiler; ``None`` where it cannot see the device."""
    run()
    torch.cuda.synchronize()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        events = profile.events() or []
    except RuntimeError:
        return None
    names = [e.name for e in events if "CUDA" in str(e.device_type)]
    return len([n for n in names if not n.startswith(("Memcpy", "Memset", "cuda", "Command Buffer"))]) or None


def intermediate_bytes(run: Run) -> int:
    """Peak of device memory during a call beyond what was there before and what it returns."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    del result
    return max(peak - max(after, before), 0)


def same_bits(run: Run, repeats: int = 5) -> bool:
    """True where repeated calls give the same bits."""

    def bits() -> list[torch.Tensor]:
        out = run()
        return [t.contiguous().view(torch.uint8).clone() for t in _tensors([out]) if t.dim()] + [
            t.reshape(1).view(torch.uint8).clone() for t in _tensors([out]) if not t.dim()
        ]

    first = bits()
    return all(all(torch.equal(a, b) for a, b in zip(first, bits(), strict=True)) for _ in range(repeats))


def generated_bytes(sources: Sequence[str]) -> int | None:
    """What the kernels of these output codes move, by the byte model; ``None`` where one is not known (also where
    Inductor gave no code)."""
    calls = [c for text in sources for c in parse_output_code(text).calls if c.kind != "cpu"]
    moved = [None if c.read_bytes is None or c.write_bytes is None else c.read_bytes + c.write_bytes for c in calls]
    return sum(filter(None, moved)) if moved and None not in moved else None


def versions_of(
    reference: Reference, launch: Any, inputs: Tensors
) -> tuple[dict[str, Run], int | None, dict[str, str], list[Any]]:
    """The runnable versions of a pattern, bytes of torch.compile's, why others are missing, what has to stay alive."""
    missing: dict[str, str] = {}
    compiled_bytes = None
    kept: list[Any] = []
    out: dict[str, Run] = {"naive": lambda: reference.eager(*inputs)}
    out["reference"] = lambda: reference.fused(launch, *inputs)
    for name, variant in reference.variants.items():
        out["persistent" if name == "persistent" else f"reference:{name}"] = _bound(variant, launch, inputs)
    compiled: Any = torch.compile(reference.eager, dynamic=False)
    try:
        with torch._inductor.config.patch(force_disable_caches=True):  # a graph from the cache shows no code
            _, sources = run_and_get_code(compiled, *inputs)
        compiled_bytes = generated_bytes(sources)
        out["compile"] = lambda: compiled(*inputs)
    except Exception as error:  # whatever dynamo and Inductor raise, the table goes on
        missing["compile"] = f"{type(error).__name__}: {first_line(error)}"
    if reference.name not in PATTERNS:
        missing["cuda_compute"] = why_not(reference.name)
    else:
        try:
            out["cuda_compute"] = PATTERNS[reference.name](*inputs)
            out["cuda_compute"]()
        except Exception as error:  # its own compiler may raise anything, the table goes on
            out.pop("cuda_compute", None)
            missing["cuda_compute"] = first_line(error)
    try:
        out["cuda_graph"], keep = capture_graph(out["naive"])
        kept.append(keep)
    except RuntimeError as error:
        missing["cuda_graph"] = first_line(error)
    return out, compiled_bytes, missing, kept


def _bound(variant: Callable[..., Tensors], launch: Any, inputs: Tensors) -> Run:
    return lambda: variant(launch, *inputs)


def bench_one(
    reference: Reference, launch: Any, elements: int, dtype: torch.dtype, *, bandwidth: float, budget_s: float = 1.0
) -> list[Row]:
    """The rows of one pattern, size and dtype; one row with ``problem`` where it could not be run."""
    name = str(dtype).removeprefix("torch.")
    head = {"pattern": reference.name, "n": elements, "dtype": name}
    try:
        with torch.no_grad():
            return _bench_one(reference, launch, elements, dtype, bandwidth, budget_s, head)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return [{**head, "version": "reference", "problem": "out of memory"}]
    except (AuditError, RuntimeError, ValueError) as error:
        return [{**head, "version": "reference", "problem": first_line(error)}]


def _bench_one(
    reference: Reference, launch: Any, elements: int, dtype: torch.dtype, bandwidth: float, budget_s: float, head: Row
) -> list[Row]:
    inputs = reference.inputs(elements, dtype, launch.device)
    checks = {"reference": check_reference(reference, launch, inputs)}
    for variant, run in reference.variants.items():
        version = "persistent" if variant == "persistent" else f"reference:{variant}"
        checks[version] = check_reference(reference, launch, inputs, run)
    outputs = reference.fused(launch, *inputs)
    ideal = reference.ideal_bytes(inputs, outputs)
    working = ideal
    del outputs
    moved_naive = naive_bytes(reference, inputs)
    versions, compiled_bytes, missing, kept = versions_of(reference, launch, inputs)
    if "cuda_compute" in versions:
        form = PATTERNS[reference.name]
        checks["cuda_compute"] = check_reference(reference, launch, inputs, lambda _, *tensors: form(*tensors)())
    torch.cuda.empty_cache()
    cold = interleaved(versions, cold=True, budget_s=budget_s, rounds=30)
    warm = interleaved(versions, cold=False, budget_s=budget_s / 2) if working < launch.l2_bytes else {}
    rows: list[Row] = []
    for version, run in versions.items():
        kernels = count_kernels(run)
        moved: int | None = moved_naive if version in ("naive", "cuda_graph") else ideal
        if version == "compile":
            moved = compiled_bytes
        row = {**head, "version": version, "kernels": kernels, "intermediate_bytes": intermediate_bytes(run)}
        check = checks.get(version)
        row |= _timed(cold[version], warm.get(version), cold["naive"], moved, ideal, bandwidth)
        row |= {
            "decides": DECIDES.get(version.split(":")[0], ""),
            "deterministic": None if version == "cuda_graph" else same_bits(run),
            "host_ns": host_launch_ns(run),
            "correct": None if check is None else check.ok,
            "error": None if check is None else check.error,
            "problem": "" if check is None or check.ok else check.text,
            "limit": reference.limit if version.startswith("reference") else "",
        }
        rows.append(row)
    del kept
    return rows + [{**head, "version": v, "problem": why} for v, why in missing.items()]


def _timed(cold: Timing, warm: Timing | None, naive: Timing, moved: int | None, ideal: int, bandwidth: float) -> Row:
    rate = None if moved is None else moved / cold.median_ns * 1e9
    return {
        "global_bytes": moved,
        "ideal_bytes": ideal,
        "time_ns": cold.median_ns,
        "time_low_ns": cold.low_ns,
        "time_high_ns": cold.high_ns,
        "count": cold.count,
        "waits": cold.waits,
        "warm_ns": None if warm is None else warm.median_ns,
        "bandwidth_bytes_per_s": None if rate is None else round(rate),
        "copy_share": None if rate is None else round(rate / bandwidth, 4),
        "speedup": round(naive.median_ns / cold.median_ns, 3),
    }


def bench(
    patterns: Sequence[str] | None = None,
    n: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    *,
    launch: Any = None,
    progress: Callable[[str], None] | None = None,
    budget_s: float = 1.0,
) -> dict[str, Any]:
    """The table as JSON values: ``{"device", "torch", "copy_bandwidth_bytes_per_s", "rows"}``.

    ``n`` counts elements of the main tensor (default: 1 MB, 16 MB and 1 GiB of it). AuditError for an unknown pattern
    or dtype, or without a GPU.
    """
    from fusionaudit.verify.launch import GpuLaunch

    unknown = [p for p in patterns or () if p not in REFERENCES]
    if unknown:
        raise AuditError(f"unknown pattern {unknown[0]!r}", remedy=f"one of: {', '.join(REFERENCES)}")
    named = [getattr(torch, d, None) for d in dtypes or ("float32",)]
    chosen = [d for d in named if isinstance(d, torch.dtype)]
    if len(chosen) < len(named):
        raise AuditError(f"unknown dtype in {', '.join(dtypes or ())}", remedy="for example float32, bfloat16, float16")
    launch = GpuLaunch() if launch is None else launch
    bandwidth = statistics.median(copy_bandwidth() for _ in range(3))
    rows: list[Row] = []
    for pattern in patterns or REFERENCES:
        reference = REFERENCES[pattern]
        for dtype in chosen:
            if dtype not in reference.dtypes:
                continue
            for elements in n or [size // dtype.itemsize for size in reference.sizes]:
                if progress is not None:
                    progress(f"{pattern} {dtype} {elements}")
                rows += bench_one(reference, launch, elements, dtype, bandwidth=bandwidth, budget_s=budget_s)
                torch.cuda.empty_cache()
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bandwidth_bytes_per_s": round(bandwidth),
        "rows": rows,
    }

"""Reads a torch.profiler (Kineto) Chrome trace, ``.json`` or ``.json.gz``, into a Trace."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusionaudit.device import Device
from fusionaudit.errors import AuditError
from fusionaudit.findings import Note
from fusionaudit.tensors import Tensor
from fusionaudit.trace.enclosing import Context, OpenRange, Point, range_ops, resolve
from fusionaudit.trace.gpu import describe
from fusionaudit.trace.range_text import Meaning, dotted, is_op_name, understand
from fusionaudit.trace.schema import Activity, RangeOp, Sync, Trace

Event = dict[str, Any]

_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_CALLS = ("cuda_runtime", "cuda_driver")
_RANGES = ("cpu_op", "user_annotation")
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32",
    "long int": "int64", "long": "int64", "short": "int16", "unsigned char": "uint8", "signed char": "int8",
    "char": "int8", "bool": "bool", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2", "unsigned short": "uint16",
    "unsigned int": "uint32", "unsigned long": "uint64",
}  # fmt: skip
"""C++ names of scalar types, as Kineto writes them, to torch's."""

_COPY = re.compile(r"Memcpy (\w)to(\w)")
_SIDES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
          "cuCtxSynchronize", "cuEventSynchronize")  # fmt: skip
_SYNC_COPIES = ("cudaMemcpy", "cudaMemcpy2D", "cuMemcpyDtoH_v2", "cuMemcpyDtoH")


def _ns(microseconds: Any) -> int:
    """Whole ns; a time that no clock gives (negative, not finite, beyond 2^62 ns) makes the trace a damaged one."""
    value = float(microseconds) * 1000
    if not 0 <= value < 2**62:
        raise ValueError(f"time {microseconds} us")
    return round(value)


def _thread(value: Any) -> int:
    """A thread's number; Chrome traces may name threads by text."""
    return value if isinstance(value, int) else zlib.crc32(str(value).encode())


def _load(path: Path) -> dict[str, Any]:
    again = "record it again: profile.export_chrome_trace(PATH) after the profiler has stopped"
    try:
        raw = path.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
        data = json.loads(raw.decode("utf-8-sig", "replace"))
    except json.JSONDecodeError as error:
        raise AuditError(f"{path}: the JSON is cut off or damaged at line {error.lineno}", remedy=again) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise AuditError(f"{path}: the gzip file is cut off or damaged", remedy=again) from None
    except RecursionError:
        raise AuditError(f"{path}: not a profiler trace: nested too deep", remedy=again) from None
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}") from None
    if isinstance(data, list):
        data = {"traceEvents": data}
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise AuditError(f"{path}: JSON, but not a profiler trace (no traceEvents)", remedy=again)
    return data


def _triple(value: Any) -> tuple[int, int, int] | None:
    return (int(value[0]), int(value[1]), int(value[2])) if isinstance(value, list) and len(value) == 3 else None


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in value) if isinstance(value, list) and all(isinstance(n, int) for n in value) else ()


def _inputs(args: Event) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...], tuple[Tensor, ...]]:
    """Shapes and dtypes of each argument (lists of tensors opened up), and the tensors among them."""
    dims, types, strides = args.get("Input Dims") or [], args.get("Input type") or [], args.get("Input Strides") or []
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    tensors: list[Tensor] = []
    for i, dim in enumerate(dims):
        kind = str(types[i]) if i < len(types) else ""
        stride = strides[i] if i < len(strides) else []
        nested = bool(dim) and isinstance(dim, list) and isinstance(dim[0], list)
        for j, one in enumerate(dim if nested else [dim]):
            shape, dtype = _shape(one), _DTYPES.get(kind, "")
            shapes.append(shape)
            dtypes.append(dtype)
            own = stride[j] if nested and isinstance(stride, list) and j < len(stride) else stride
            if not dtype:
                continue
            if isinstance(own, list) and len(own) == len(shape) and all(isinstance(n, int) for n in own):
                tensors.append(Tensor(shape=shape, strides=tuple(own), dtype=dtype))
            else:
                tensors.append(Tensor.contiguous(shape, dtype))
    return tuple(shapes), tuple(dtypes), tuple(tensors)


def _meaning(event: Event, serial: int) -> Meaning | None:
    name, args = str(event.get("name", "")), event.get("args") or {}
    if event.get("cat") == "user_annotation" or name.startswith(("fusionaudit:", "## Call ")):
        return understand(name, serial)
    if not is_op_name(name, numbered=True):
        return None
    found = understand(name, serial)
    number = args.get("External id", args.get("external id"))
    shapes, dtypes, tensors = _inputs(args)
    sequence = args.get("Sequence number")
    fallback = serial if found is None or found.op is None else found.op.op_id
    return Meaning(
        kind="op",
        op=RangeOp(
            name=dotted(name),
            op_id=number if isinstance(number, int) else fallback,
            sequence=sequence if isinstance(sequence, int) else None,
            shapes=shapes,
            dtypes=dtypes,
            inputs=tensors,
        ),
    )


def _ranges(events: Sequence[Event]) -> list[OpenRange]:
    out = []
    for serial, event in enumerate(events):
        if event.get("cat") not in _RANGES:
            continue
        meaning = _meaning(event, serial)
        if meaning is not None:
            start = _ns(event["ts"])
            end = start + _ns(event.get("dur", 0))
            out.append(OpenRange(start_ns=start, end_ns=end, thread=_thread(event.get("tid")), meaning=meaning))
    return out


def _copy_kind(name: str) -> str:
    match = _COPY.match(name)
    if match is None:
        return "Unknown"
    return f"{_SIDES.get(match[1], 'Unknown')}-to-{_SIDES.get(match[2], 'Unknown')}"


def _activity(event: Event, call: Event | None, context: Context, *, node: int | None, leads: bool) -> Activity:
    args = event.get("args") or {}
    kind = _KINDS[event["cat"]]
    start, name = _ns(event["ts"]), str(event.get("name", "?"))
    copy = _copy_kind(name) if kind == "memcpy" else None
    if kind != "kernel":
        name = f"[CUDA memcpy {copy}]" if kind == "memcpy" else "[CUDA memset]"
    launch = None if call is None else _ns(call["ts"])
    return Activity(
        kind=kind, name=name, start_ns=start, end_ns=start + _ns(event.get("dur", 0)),  # type: ignore[arg-type]
        device=int(args.get("device", 0)), stream=int(args.get("stream", 0)), correlation=args.get("correlation"),
        launch_start_ns=launch if leads else None,
        launch_end_ns=None if launch is None or call is None or not leads else launch + _ns(call.get("dur", 0)),
        thread=None if call is None else _thread(call.get("tid")), bytes=args.get("bytes"), copy_kind=copy,
        grid=_triple(args.get("grid")), block=_triple(args.get("block")), registers=args.get("registers per thread"),
        static_shared_bytes=args.get("shared memory"), graph_node=node, op=context.op, graph_call=context.graph_call,
        graph_call_id=context.graph_call_id, region=context.region, step=context.step, compiling=context.compiling,
    )  # fmt: skip


def _device(data: dict[str, Any], activities: Sequence[Activity]) -> tuple[Device | None, tuple[Note, ...]]:
    listed = [p for p in data.get("deviceProperties") or [] if isinstance(p, dict)]
    if not listed:
        return None, ()
    used = Counter(a.device for a in activities).most_common(1)[0][0]
    p = next((p for p in listed if p.get("id") == used), listed[0])
    return describe(
        p.get("name", "GPU"), "torch.profiler deviceProperties",
        compute_capability=(p.get("computeMajor"), p.get("computeMinor")), sm_count=p.get("numSms"),
        warp_size=p.get("warpSize"), registers_per_sm=p.get("regsPerMultiprocessor", p.get("regsPerBlock")),
        threads_per_sm=p.get("maxThreadsPerMultiprocessor"), shared_bytes_per_sm=p.get("sharedMemPerMultiprocessor"),
        shared_bytes_per_block=p.get("sharedMemPerBlock"), shared_bytes_per_block_optin=p.get("sharedMemPerBlockOptin"),
        memory_bytes=p.get("totalGlobalMem"),
    )  # fmt: skip


def _by_external_id(ranges: Sequence[OpenRange]) -> dict[int, RangeOp]:
    return {r.meaning.op.op_id: r.meaning.op for r in ranges if r.meaning.op is not None and not r.meaning.op.recorded}


def _activities(
    device_events: list[Event], calls: dict[int, Event], ranges: list[OpenRange]
) -> tuple[list[Activity], list[Note]]:
    found = [calls.get((e.get("args") or {}).get("correlation", -1)) for e in device_events]
    points = [
        Point(
            time_ns=_ns((e if call is None else call)["ts"]),
            thread=None if call is None else _thread(call.get("tid")),
            kernel=str(e.get("name", "")),
        )
        for e, call in zip(device_events, found, strict=True)
    ]
    numbered = _by_external_id(ranges)
    out: list[Activity] = []
    replays: Counter[int] = Counter()
    opaque = 0
    for event, call, context in zip(device_events, found, resolve(ranges, points), strict=True):
        args = event.get("args") or {}
        node, leads = None, True
        if (call is not None and "GraphLaunch" in str(call.get("name"))) or args.get("graph node id"):
            correlation = args.get("correlation", -1)
            # Older Kineto has no node ids: the place in the replay stands in, the same in each replay of a graph.
            node = args.get("graph node id") or replays[correlation]
            leads = not replays[correlation]
            replays[correlation] += 1
            context = replace(context, op=None)
            opaque += 1
        elif context.op is None and call is None:
            context = replace(context, op=numbered.get(args.get("External id", -1)))
        out.append(_activity(event, call, context, node=node, leads=leads))
    if not opaque:
        return out, []
    return out, [
        Note(
            kind="opaque-graph",
            text=f"{opaque} launches replayed from CUDA graphs have no op: torch.profiler does not record graph nodes",
            remedy="with an Inductor log they are tied to its calls; nsys records the nodes",
        )
    ]


def _syncs(calls: Sequence[Event], device_events: Sequence[Event], ranges: list[OpenRange]) -> tuple[Sync, ...]:
    to_host = {
        (e.get("args") or {}).get("correlation")
        for e in device_events
        if e.get("cat") == "gpu_memcpy" and _copy_kind(str(e.get("name"))) == "Device-to-Host"
    }
    waits = [
        c
        for c in calls
        if c.get("name") in _WAITS
        or (c.get("name") in _SYNC_COPIES and (c.get("args") or {}).get("correlation") in to_host)
    ]
    contexts = resolve(ranges, [Point(time_ns=_ns(c["ts"]), thread=_thread(c.get("tid"))) for c in waits])
    out = []
    for c, x in zip(waits, contexts, strict=True):
        start = _ns(c["ts"])
        if not x.compiling:
            end = start + _ns(c.get("dur", 0))
            out.append(Sync(name=str(c["name"]), start_ns=start, end_ns=end, op=x.op, step=x.step))
    return tuple(out)


def read_kineto(path: Path) -> Trace:
    """The Trace of a torch.profiler trace. AuditError: not one, damaged, or without GPU work.

    Local memory is not in these traces; a device's bandwidth comes from the datasheet of the GPU it names. Shared
    memory is given as one number (static and dynamic together). Launches replayed from a CUDA graph have no op.
    """
    data = _load(path)
    try:
        events = [e for e in data["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X"]
        device_events = sorted((e for e in events if e.get("cat") in _KINDS), key=lambda e: (e["ts"], e.get("dur", 0)))
        if not any(e["cat"] == "kernel" for e in device_events):
            raise AuditError(
                f"{path}: zero kernels: no GPU work in this trace",
                remedy="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on a machine with a GPU",
            )
        calls = sorted((e for e in events if e.get("cat") in _CALLS), key=lambda e: e["ts"])
        by_correlation: dict[int, Event] = {}
        for call in calls:
            number = (call.get("args") or {}).get("correlation")
            if isinstance(number, int):
                by_correlation.setdefault(number, call)
        ranges = _ranges(events)
        activities, notes = _activities(device_events, by_correlation, ranges)
        version = data.get("schemaVersion", "?")
        device, device_notes = _device(data, activities)
        return Trace(
            format=f"kineto {version}",
            activities=tuple(activities),
            device=device,
            syncs=_syncs(calls, device_events, ranges),
            range_ops=range_ops(ranges),
            notes=(*notes, *device_notes),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise AuditError(
            f"{path}: an event of the trace is not as torch.profiler writes it ({type(error).__name__}: {error})",
            remedy="record it again with a current torch",
        ) from None

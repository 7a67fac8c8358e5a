"""torch.compile made it worse than eager: more bytes or more time.

What: over the step (or a region that the script marks) the compiled pass moves more bytes, or takes more GPU time,
than the eager pass on the same inputs.

Why it costs: what was to help hurts; often it is a fallback with copies around it, a recomputation, or atomics where
ATen sorts.

How it is measured: bytes by the byte model where all but a few launches of both passes have them (a tenth more is
reported); time only where both passes were measured (a tenth and 20 us more). More launches alone prove nothing.

A convolution that is predicted, over a layout that is not channels-last, has no bytes to compare: cuDNN may turn its
operands itself, in kernels that cannot be foreseen, where Inductor does it in kernels of its own.

When it is wrong: a recompilation within the measured step; kernels whose bytes are not known on one side (then only
time counts).

What to do: look at the compiled kernels of the region that eager does not have; leave the region out with
torch.compiler.disable; see FA105, FA114, FA305.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusionaudit.config import Config
from fusionaudit.figures import counted
from fusionaudit.findings import NOT_COMPARED, Finding
from fusionaudit.program.expectation import around, named
from fusionaudit.program.model import Kernel, Program
from fusionaudit.rules.judging import human_bytes, human_time

CODE = "FA118"
TITLE = "torch.compile made it worse than eager"

_FACTOR = 1.1
"""A tenth: repeated passes of the H200 captures differ by 1 to 2 %, the byte model by less than 10 % at the 95th
percentile."""
_LEAST_NS = 20_000
_KNOWN_SHARE = 0.9


def check(program: Program, config: Config) -> Iterator[Finding]:
    """At most one finding for the step and one for each region."""
    eager, compiled = program.get("eager"), program.get("compiled")
    if eager is None or compiled is None:
        return
    if not any(k.graph is not None for k in compiled.kernels):
        return
    if not eager.steps or not compiled.steps:
        # No steady step on one side: the two do not hold the same work.
        return
    if any(note.kind in NOT_COMPARED for note in program.notes):
        return
    sides = [[(k, around(named(k.region))) for k in p.kernels] for p in (eager, compiled)]
    in_eager, in_compiled = ({region for _, regions in side for region in regions} for side in sides)
    for region in [None, *sorted(in_eager & in_compiled)]:
        before, after = ([k for k, regions in side if region is None or region in regions] for side in sides)
        finding = _compare(before, after, region, config)
        if finding is not None:
            yield finding


def _bytes(kernels: list[Kernel]) -> int | None:
    # An op's bytes are at its first launch: what goes between its launches (those with none) is not known.
    known = [k.global_bytes for k in kernels if k.global_bytes]
    return sum(known) if len(known) >= _KNOWN_SHARE * len(kernels) and known else None


def _may_turn(kernel: Kernel) -> bool:
    """A predicted convolution whose operands the library may bring into another layout first."""
    if kernel.category != "convolution" or kernel.time_basis == "measured":
        return False
    return any(len(t.shape) > 2 and t.shape[1] > 1 and t.strides[1] != 1 for t in kernel.reads)


def _time(kernels: list[Kernel]) -> int | None:
    if not kernels or any(k.time_basis != "measured" or k.duration_ns is None for k in kernels):
        return None
    return sum(k.duration_ns or 0 for k in kernels)


def _compare(before: list[Kernel], after: list[Kernel], region: str | None, config: Config) -> Finding | None:
    bytes_before, bytes_after = _bytes(before), _bytes(after)
    if any(_may_turn(k) for k in before):
        bytes_before = None
    time_before, time_after = _time(before), _time(after)
    more_bytes = (
        bytes_before is not None
        and bytes_after is not None
        and bytes_after > _FACTOR * bytes_before
        and bytes_after - bytes_before >= config.thresholds.min_bytes
    )
    more_time = (
        time_before is not None
        and time_after is not None
        and time_after > _FACTOR * time_before
        and time_after - time_before >= _LEAST_NS
    )
    if not more_bytes and not more_time:
        return None
    # Measured times decide where there are some: more bytes in less time is not worse.
    if (
        more_bytes
        and not more_time
        and time_before is not None
        and time_after is not None
        and time_after <= time_before
    ):
        return None
    place = f"region {region!r}" if region is not None else "the step"
    parts = []
    if more_bytes:
        parts.append(f"{human_bytes(bytes_after)} against {human_bytes(bytes_before)}")
    if more_time:
        parts.append(f"{human_time(time_after)} against {human_time(time_before)} of GPU time")
    extra = None if bytes_before is None or bytes_after is None else max(0, bytes_after - bytes_before)
    lost = None if time_before is None or time_after is None else max(0, time_after - time_before)
    worst = max(
        (k for k in after if k.graph is not None), key=lambda k: k.duration_ns or k.global_bytes or 0, default=None
    )
    evidence = {
        "eager_bytes": bytes_before,
        "compiled_bytes": bytes_after,
        "eager_ns": time_before,
        "compiled_ns": time_after,
    }
    launches = f"({counted(len(after), 'launch', 'launches')} against {len(before)})"
    return Finding(
        rule=CODE,
        pass_name="compiled",
        severity="warning",
        message=f"compiled, {place} takes more than eager: {'; '.join(parts)} {launches}",
        kernel_ids=tuple(k.id for k in after if k.graph is not None),
        location=None if worst is None else worst.location,
        avoidable_bytes=extra,
        saving_ns=lost,
        basis=None if lost is None else "measured",
        remedy="leave this part out with torch.compiler.disable, or see the findings on its kernels",
        confidence="high" if more_time else "medium",
        evidence=evidence,
        key=region or "",
    )

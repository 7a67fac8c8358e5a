"""Who reads what whom wrote: the ops of a pass that launch something, tied by versions of their storages."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusionaudit.program.chip import Chip, chip_of
from fusionaudit.program.costs import category, op_kind, reads, writes
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Pass
from fusionaudit.program.op_kinds import OpKind
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op

Version = tuple[str, int]
"""A storage and how often it had been written: one value."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One launching op in order. ``uses`` are the values it reads, ``makes`` those it writes, with the views it uses.

    ``epoch`` counts barriers (host reads, calls of compiled graphs) before it: ops of two epochs cannot share a
    kernel. ``kernels`` are the ids of its launches in the pass.
    """

    index: int
    op: Op
    kind: OpKind
    epoch: int
    uses: tuple[tuple[Version, Tensor], ...]
    makes: tuple[tuple[Version, Tensor], ...]
    kernels: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The dataflow of one pass: steps, who made each value (index), who reads it, and which values were there before.

    ``carried`` are storages that existed before the step (read or written in place without being made in it): their
    last value lives on after the step. ``chip`` is what it runs on.
    """

    steps: tuple[Step, ...]
    maker: dict[Version, int]
    readers: dict[Version, tuple[int, ...]]
    last: dict[str, int]
    carried: frozenset[str]
    chip: Chip = Chip()  # noqa: RUF009

    @functools.cached_property
    def overwritten(self) -> frozenset[str]:
        """Storages of which a value is written over an older one."""
        return frozenset(s for s, n in self.last.items() if n > 1 or (n == 1 and s in self.carried))

    def made_by(self, value: Version | None) -> Step | None:
        """The step that made a value; ``None`` where it was there before."""
        index = None if value is None else self.maker.get(value)
        return None if index is None else self.steps[index]

    def leaves(self, value: Version, group: frozenset[int]) -> bool:
        """True where the value is needed outside the group: read by another op, carried to the next step, or never
        read at all (then it is a result)."""
        found = self.readers.get(value, ())
        if any(i not in group for i in found):
            return True
        if value[0] in self.carried and self.last[value[0]] == value[1]:
            return True
        return not found


def _kernels_of(p: Pass) -> dict[int, list[int]]:
    out: dict[int, list[int]] = defaultdict(list)
    for kernel in p.kernels:
        for op in kernel.ops:
            out[op].append(kernel.id)
    return out


def _graph_epochs(p: Pass) -> dict[int, int]:
    """Launches of compiled graphs before each op's first launch."""
    out: dict[int, int] = {}
    passed = 0
    for kernel in p.kernels:
        passed += kernel.graph is not None
        for op in kernel.ops:
            out.setdefault(op, passed)
    return out


def _barrier(op: Op, kind: OpKind) -> bool:
    """The host waits for a value here: what follows may depend on it."""
    to_host = kind == "transfer" and any(t.device.startswith("cpu") for t in op.outputs)
    return kind == "scalar_read" or to_host or op.base_name in ("aten.nonzero", "aten.masked_select")


@kept
def dataflow(p: Pass) -> Flow:
    """The flow of a pass's own ops (not of what runs inside compiled graphs)."""
    kernels, graph_epochs = _kernels_of(p), _graph_epochs(p)
    version: dict[str, int] = defaultdict(int)
    made: set[str] = set()
    carried: set[str] = set()
    maker: dict[Version, int] = {}
    readers: dict[Version, list[int]] = defaultdict(list)
    written: dict[Version, int] = {}
    steps: list[Step] = []
    barriers = graph_epoch = 0
    for op in p.ops:
        kind = op_kind(op)
        if category(op) is None:
            made.update(
                t.storage for t in op.outputs if t.storage and op.name.startswith(("aten.empty", "aten.new_empty"))
            )
            continue
        index = len(steps)
        graph_epoch = graph_epochs.get(op.id, graph_epoch)
        uses, makes = [], []
        # ones_like and its kin look at the shape of their input only.
        for tensor in reads(op) if kind != "fill" or op.mutated else ():
            if tensor.storage is None:
                continue
            if version[tensor.storage] == 0 and tensor.storage not in made:
                carried.add(tensor.storage)
            value = (tensor.storage, version[tensor.storage])
            uses.append((value, tensor))
            readers[value].append(index)
        bumped: set[str] = set()
        for tensor in writes(op):
            if tensor.storage is None:
                continue
            if any(m == tensor.storage for m in (t.storage for t in op.inputs)) and tensor.storage not in made:
                carried.add(tensor.storage)
            if tensor.storage not in bumped:
                bumped.add(tensor.storage)
                old = (tensor.storage, version[tensor.storage])
                if written.get(old, 0) > tensor.stored_elements and index not in readers[old]:
                    # Only a part is overwritten: whoever reads on needs the rest of the old value.
                    readers[old].append(index)
                version[tensor.storage] += 1
            value = (tensor.storage, version[tensor.storage])
            maker[value] = index
            made.add(tensor.storage)
            makes.append((value, tensor))
            written[value] = max(tensor.stored_elements, written.get((value[0], value[1] - 1), 0))
        steps.append(
            Step(
                index=index,
                op=op,
                kind=kind,
                epoch=barriers + graph_epoch,
                uses=tuple(uses),
                makes=tuple(makes),
                kernels=tuple(kernels.get(op.id, ())),
            )
        )
        barriers += _barrier(op, kind)
    return Flow(
        steps=tuple(steps),
        maker=maker,
        readers={v: tuple(r) for v, r in readers.items()},
        last=dict(version),
        carried=frozenset(carried),
        chip=chip_of(p.device),
    )


def ancestors(flow: Flow) -> list[int]:
    """For each step the bit mask of the steps that it depends on."""
    out: list[int] = []
    for step in flow.steps:
        mask = 0
        for value, _ in step.uses:
            maker = flow.maker.get(value)
            if maker is not None:
                mask |= out[maker] | (1 << maker)
        # A write to a storage has to wait for whoever still reads the old value, and for the old writer.
        for (storage, number), _ in step.makes:
            old = (storage, number - 1)
            for reader in flow.readers.get(old, ()):
                if reader < step.index:
                    mask |= out[reader] | (1 << reader)
            before = flow.maker.get(old)
            if before is not None:
                mask |= out[before] | (1 << before)
        out.append(mask)
    return out


def convex(mask: int, members: Iterable[int], upstream: list[int]) -> bool:
    """No step outside depends on a member while a member depends on it."""
    outside = 0
    for member in members:
        outside |= upstream[member]
    outside &= ~mask
    outside >>= (first := (mask & -mask).bit_length() - 1)
    position = first
    while outside:
        skip = (outside & -outside).bit_length() - 1
        position += skip
        if upstream[position] & mask:
            return False
        outside >>= skip + 1
        position += 1
    return True


def regions_bytes(tensors: Sequence[tuple[Version, Tensor]]) -> int | None:
    """Bytes of the distinct regions of values: one view that covers another of the same value counts alone."""
    by_value: dict[Version, dict[tuple[object, ...], Tensor]] = defaultdict(dict)
    for value, tensor in tensors:
        by_value[value][(tensor.offset, tensor.stored_elements, tensor.dtype)] = tensor
    total = 0
    for views in by_value.values():
        sizes = [t.nbytes for t in views.values()]
        if any(s is None for s in sizes):
            return None
        spans = [(t.offset, t.offset + t.stored_elements, t.nbytes or 0) for t in views.values()]
        largest = max(spans, key=lambda s: s[2])
        inside = all(largest[0] <= s[0] and s[1] <= largest[1] for s in spans)
        total += largest[2] if inside else sum(s[2] for s in spans)
    return total

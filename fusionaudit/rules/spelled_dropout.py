"""Dropout by hand: ``x * (rand_like(x) > p) / (1 - p)`` in its forms, told by the share it keeps and its factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusionaudit.program.costs import op_root
from fusionaudit.program.dataflow import Flow, Step
from fusionaudit.rules.row_samples import last_number, number, operands
from fusionaudit.rules.spelled_rows import Spelled, library_step
from fusionaudit.rules.spelled_structures import maker_of, only_reader

_UNIFORM = frozenset({"rand", "rand_like", "uniform"})
_ABOVE, _BELOW = frozenset({"gt", "ge"}), frozenset({"lt", "le"})
_NOT = frozenset({"logical_not", "bitwise_not"})
_PASSED_ON = frozenset({"_to_copy", "to", "clone", "copy"})
_LONGEST = 6


@dataclass(kw_only=True)
class _Mask:
    """``members`` so far; ``kept``: the share that is not zero (``None``: not known), each of it ``factor``
    (``None``: not known) once ``drawn``."""

    members: set[int]
    drawn: bool
    kept: float | None = None
    factor: float | None = 1.0

    def scale(self, step: Step) -> None:
        """Multiplied or divided by a number."""
        by = number((*operands(step.op), None, None)[1])
        if by is None or self.factor is None or by == 0:
            self.factor = None
        else:
            self.factor *= by if op_root(step.op) == "mul" else 1 / by

    @property
    def restores(self) -> bool:
        """What is kept makes up for what is left out, as far as both are known."""
        if self.factor is None or self.kept is None:
            return self.factor != 1.0
        return abs(self.factor * self.kept - 1) < 1e-2 and self.kept < 1


def dropouts(flow: Flow, filled: Mapping[str, float]) -> Iterator[Spelled]:
    """Dropout by hand (a random mask, a product), and dropout, by hand or not, with the residual added to it.

    ``filled``: what tensors of one number hold, by storage.
    """
    for step in flow.steps:
        if step.kind != "random" or step.op.phase != "forward" or library_step(step) or not step.makes:
            continue
        members = {step.index}
        end: Step | None = step
        by_hand = op_root(step.op) != "native_dropout"
        if by_hand:
            end = _masked(flow, step, members, filled)
        if end is None or not end.makes:
            continue
        masks = tuple(v for v, _ in end.makes[1:]) if not by_hand else ()
        after = only_reader(flow, end)
        made = end.makes[0]
        residual = (
            after is not None and op_root(after.op) == "add" and len(after.uses) == 2 and after.makes
            and all(t.stored_elements == made[1].stored_elements for _, t in after.uses)
        )  # fmt: skip
        if residual and after is not None:
            results = (after.makes[0][0], *masks)
            yield Spelled(name="dropout and residual", members=tuple(sorted({*members, after.index})), results=results)
        elif by_hand:
            yield Spelled(name="dropout", members=tuple(sorted(members)), results=(made[0],))


def _masked(flow: Flow, step: Step, members: set[int], filled: Mapping[str, float]) -> Step | None:
    """The last step of a dropout that begins with this noise, ``None`` where it is none; adds to ``members``."""
    mask = _noise(flow, step, members)
    size = step.makes[0][1].numel
    for _ in range(_LONGEST):
        after = None if mask is None else only_reader(flow, step)
        if mask is None or after is None or not after.makes or after.makes[0][1].numel != size or size <= 1:
            return None
        members.add(after.index)
        name, large = op_root(after.op), sum(t.numel > 1 for t in after.op.inputs)
        if large == 2 and mask.drawn and name in ("mul", "masked_fill", "where"):
            zeros = name == "mul" or _leaves_zeros(step, after, filled)
            return _applied(flow, step, after, mask) if zeros else None
        if large != 1:
            return None
        limit = number((*operands(after.op), None, None)[1])
        if name in _ABOVE | _BELOW and not mask.drawn:
            mask.kept = None if limit is None else 1 - limit if name in _ABOVE else limit
            mask.drawn = True
        elif name in _NOT and mask.drawn and mask.factor == 1:
            mask.kept = None if mask.kept is None else 1 - mask.kept
        elif name in ("mul", "div") and mask.drawn:
            mask.scale(after)
        elif name not in _PASSED_ON:
            return None
        step = after
    return None


def _noise(flow: Flow, step: Step, members: set[int]) -> _Mask | None:
    """Numbers between 0 and 1, or zeros and ones with one probability; other noise makes no dropout."""
    name, given = op_root(step.op), operands(step.op)
    numbers = [n for n in map(number, given[1:]) if n is not None]
    if name in _UNIFORM:
        return _Mask(members=members, drawn=False) if name != "uniform" or numbers in ([], [0.0, 1.0]) else None
    if name != "bernoulli":
        return None
    kept = numbers[0] if numbers else None
    if kept is None and step.uses and not step.op.mutated:  # of a tensor of probabilities
        filled = maker_of(flow, step.uses[0][0])
        if filled is None or filled.kind != "fill":
            return None
        kept = last_number(filled.op)
    return _Mask(members=members, drawn=True, kept=kept)


def _leaves_zeros(step: Step, product: Step, filled: Mapping[str, float]) -> bool:
    """``x.masked_fill(mask, 0)``, ``where(mask, x, 0)``: the mask says where, and the rest is zero."""
    given = operands(product.op)
    tensors = [product.op.inputs[a["tensor"]] if isinstance(a, dict) and "tensor" in a else None for a in given]
    if len(given) != 3:
        return False
    mask, other = tensors[1 if op_root(product.op) == "masked_fill" else 0], tensors[2]
    if mask is None or mask.storage != step.makes[0][0][0]:
        return False
    return (number(given[2]) if other is None else filled.get(other.storage or "")) == 0


def _applied(flow: Flow, step: Step, product: Step, mask: _Mask) -> Step | None:
    """The product of data and mask, with the factor before or after it."""
    if op_root(product.op) == "masked_fill":
        if mask.factor != 1:
            return None
        mask.kept = None if mask.kept is None else 1 - mask.kept
    if mask.factor == 1:
        after = only_reader(flow, product)
        if after is not None and op_root(after.op) in ("div", "mul") and sum(t.numel > 1 for t in after.op.inputs) == 1:
            mask.scale(after)
            mask.members.add(after.index)
            return after if mask.restores else None
        operand = next((v for v, _ in product.uses if v != step.makes[0][0]), None)
        before = None if operand is None else maker_of(flow, operand)
        if before is None or op_root(before.op) not in ("div", "mul") or only_reader(flow, before) is not product:
            return None
        if sum(t.numel > 1 for t in before.op.inputs) != 1:
            return None
        mask.scale(before)
        mask.members.add(before.index)
    return product if mask.restores else None

"""Chains with a library's pattern in them: what is left to save around the call once it is made.

``x * torch.sigmoid(x) * 2`` is three kernels. Its finding on SiLU saves what ``silu(x)`` saves, and the product still
reads what that call writes: one kernel for both saves that too. So such a chain counts the pattern as the call, and the
savings of both findings add up to what one kernel for the whole chain saves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from fusionaudit.program.chains import Chain, chains, narrowed
from fusionaudit.program.costs import op_bytes, sum_known
from fusionaudit.program.dataflow import Flow, dataflow, regions_bytes
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Pass
from fusionaudit.program.rows import second_pass
from fusionaudit.rules.spelled_out import Pattern, patterns


@kept
def undivided(p: Pass) -> tuple[Chain, ...]:
    """The chains of all ops, whatever patterns they are part of."""
    return chains(p)


def with_calls(p: Pass, others: Sequence[Chain], without: Set[int]) -> list[Chain]:
    """``others`` (the chains beside the patterns), where one kernel could take patterns in: one chain with them.

    ``without``: ids of ops that something else speaks for. A matmul and what is its epilogue without the pattern stay
    apart from it.
    """
    whole = undivided(p)
    of_op = {s.op.id: s.index for s in dataflow(p).steps}
    holds = {i: number for number, chain in enumerate(whole) for i in chain.op_ids}
    heads = {s.op.id for s in dataflow(p).steps if s.kind in ("matmul", "convolution")}
    held: dict[int, list[Pattern]] = defaultdict(list)
    for pattern in patterns(p):
        own = set(pattern.chain.op_ids)
        homes = {n for i in own if (n := holds.get(i)) is not None and not own.issuperset(whole[n].op_ids)}
        if len(homes) == 1 and heads.isdisjoint(own):  # no kernel takes attention in
            held[homes.pop()].append(pattern)
    out = list(others)
    for number, inner in held.items():
        wanted = set(whole[number].op_ids)
        apart = {i for c in out if c.kind == "matmul_epilogue" or not wanted.issuperset(c.op_ids) for i in c.op_ids}
        mine = [c for c in out if wanted.issuperset(c.op_ids) and apart.isdisjoint(c.op_ids)]
        core = narrowed(p, whole[number], heads | apart | without)
        around = None if core is None else _around(dataflow(p), of_op, core, inner)
        if around is not None and (around.avoidable_bytes or 0) > (sum_known(c.avoidable_bytes for c in mine) or 0):
            out = [c for c in out if c not in mine] + [around]
    return out


def _around(flow: Flow, of_op: Mapping[int, int], core: Chain, inner: Sequence[Pattern]) -> Chain | None:
    """``core`` with the patterns as calls; ``None`` where it has nothing but them."""
    calls = [pattern.chain for pattern in inner]

    def indices(ids: Iterable[int]) -> frozenset[int]:
        return frozenset(of_op[i] for i in ids)

    spelled = indices(i for c in calls for i in c.op_ids)
    inside = indices(core.op_ids) | spelled
    rest = [flow.steps[i] for i in sorted(inside - spelled)]
    if not rest:
        return None
    uses = [u for s in rest for u in s.uses] + [u for pattern in inner for u in pattern.uses]
    makes = [m for s in rest for m in s.makes] + [m for pattern in inner for m in pattern.makes]
    made = {v for v, _ in makes}
    entering = regions_bytes([(v, t) for v, t in uses if v not in made])
    leaving = regions_bytes([(v, t) for v, t in makes if flow.leaves(v, inside)])
    # What a call moves beside its operands and results (rows that it reads twice) it moves in any kernel.
    beside = [sum_known((q.chain.minimum_bytes, *(-b for b in _own(q)))) for q in inner]
    again = [second_pass(flow, members) for members in (inside, *(indices(c.op_ids) for c in calls))]
    more = [0 if found is None else found.again_bytes or 0 for found in again]
    return replace(
        core,
        global_bytes=sum_known((*(b for s in rest for b in op_bytes(s.op)), *(c.minimum_bytes for c in calls))),
        minimum_bytes=sum_known((entering, leaving, *beside, max(0, more[0] - sum(more[1:])))),
        calls=tuple(calls),
    )


def _own(pattern: Pattern) -> list[int]:
    return [regions_bytes(list(values)) or 0 for values in (pattern.uses, pattern.makes)]

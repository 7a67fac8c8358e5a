"""What a pass spells out that a library has as one call: the groups, what they move, and what the call would.

A group is taken only where the call can take its place: nothing outside reads what lies in between, but for autograd,
which keeps values for the group's own backward that the call's backward does not need. The call moves what goes in and
what comes out, each once: queries, keys, values and the result for attention, not the scores. The backward ops of a
group are a group of their own, on the line of the forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from fusionaudit.program.chains import Chain, ChainKind, LibraryCall
from fusionaudit.program.costs import op_bytes, op_root, sum_known
from fusionaudit.program.dataflow import Flow, Step, Version, dataflow, regions_bytes
from fusionaudit.program.kept import kept
from fusionaudit.program.model import Pass
from fusionaudit.program.rows import second_pass
from fusionaudit.rules.constants import constant_steps
from fusionaudit.rules.spelled_dropout import dropouts
from fusionaudit.rules.spelled_rows import Spelled, spelled_rows
from fusionaudit.rules.spelled_structures import attention, fills, forward_readers, gated, rotary
from fusionaudit.tensors import Tensor

_F = "torch.nn.functional"
_COMPILE = "torch.compile makes it"
_QUICK = (
    f"{_F}.gelu(x) where results may change by up to 0.02 (this is its approximation by a sigmoid); or torch.compile"
)
_FORMS: dict[str, str] = {
    "scaled": f"{_F}.scaled_dot_product_attention(q * scale, k, v, scale=1)",
    "flex": "torch.nn.attention.flex_attention.flex_attention(q, k, v, score_mod), under torch.compile",
}
"""Of attention that takes more than SDPA's own scale and mask."""
CALLS: dict[str, tuple[str, ChainKind]] = {
    "softmax": ("torch.softmax(x, dim)", "reduction_epilogue"),
    "log_softmax": ("torch.log_softmax(x, dim)", "reduction_epilogue"),
    "layer norm": (f"{_F}.layer_norm(x, shape, weight, bias)", "reduction_epilogue"),
    "RMS norm": (f"{_F}.rms_norm(x, shape, weight, eps)", "reduction_epilogue"),
    "cross entropy": (f"{_F}.cross_entropy(logits, target)", "reduction_epilogue"),
    "attention": (f"{_F}.scaled_dot_product_attention(q, k, v)", "reduction_epilogue"),
    "GELU (exact)": (f"{_F}.gelu(x)", "elementwise"),
    "GELU (tanh)": (f'{_F}.gelu(x, approximate="tanh")', "elementwise"),
    "quick GELU": (_QUICK, "elementwise"),
    "SiLU": (f"{_F}.silu(x)", "elementwise"),
    "Mish": (f"{_F}.mish(x)", "elementwise"),
    "hardswish": (f"{_F}.hardswish(x)", "elementwise"),
    "sigmoid": ("torch.sigmoid(x)", "elementwise"),
    "softplus": (f"{_F}.softplus(x)", "elementwise"),
    "log sigmoid": (f"{_F}.logsigmoid(x)", "elementwise"),
    "GLU": (f"{_F}.glu(x, dim)", "elementwise"),
    "SwiGLU": (f"one fused silu-and-mul ({_COMPILE}; Liger and vLLM ship it)", "elementwise"),
    "GeGLU": (f"one fused gelu-and-mul ({_COMPILE}; Liger and vLLM ship it)", "elementwise"),
    "rotary embedding": (f"one fused rotary kernel ({_COMPILE}; flash-attn and Liger ship it)", "elementwise"),
    "dropout": (f"{_F}.dropout(x, p)", "elementwise"),
    "dropout and residual": (
        f"one fused dropout-add ({_COMPILE} of both lines; flash-attn ships it)", "elementwise",
    ),
}  # fmt: skip
"""Each pattern with the call that takes its place."""

_BACKWARD_OF: dict[str, frozenset[str]] = {
    "attention": frozenset({"pointwise", "cast", "copy", "softmax", "reduction", "matmul", "random"}),
    "cross entropy": frozenset({"pointwise", "cast", "copy", "softmax", "reduction", "scatter", "fill"}),
}
_OF_ROWS = frozenset({"pointwise", "cast", "copy", "softmax", "reduction"})
_OF_ELEMENTS = frozenset({"pointwise", "cast", "copy", "join", "fill"})

_LEAST_SHARE = 0.05
"""Of a backward's bytes; below, the call's backward does the same."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A group as a chain, and the values that the call in its place would read and make."""

    chain: Chain
    uses: tuple[tuple[Version, Tensor], ...]
    makes: tuple[tuple[Version, Tensor], ...]


def spelled_out(p: Pass) -> tuple[Chain, ...]:
    """The chains of :func:`patterns`."""
    return tuple(pattern.chain for pattern in patterns(p))


@kept
def patterns(p: Pass) -> tuple[Pattern, ...]:
    """The groups of a pass, none of which share an op, in order of execution."""
    flow = dataflow(p)
    constant = {s.index for s in constant_steps(p)}
    rows = [s for s in spelled_rows(flow) if s.trailing or "norm" not in s.name]
    filled = fills(p.ops)
    dropped = list(dropouts(flow, filled))
    found = [*attention(flow, rows, filled, dropped), *gated(flow, rows), *dropped, *rotary(flow), *rows]
    taken: set[int] = set()
    out: list[Pattern] = []
    for spelled in sorted(found, key=_weight):
        members = frozenset(spelled.members)
        if members & (taken | constant) or not _replaceable(flow, spelled):
            continue
        forward = _forward(flow, spelled)
        if forward is None or forward.chain.avoidable_bytes == 0:
            continue
        taken |= members
        out.append(forward)
        behind = _backward_steps(flow, spelled, taken)
        back = _backward(flow, spelled, behind) if behind else None
        moved = 0 if back is None else _LEAST_SHARE * (back.chain.global_bytes or 0)
        if back is not None and (back.chain.avoidable_bytes or 0) > moved:
            taken |= {s.index for s in behind}
            out.append(back)
    return tuple(sorted(out, key=lambda pattern: pattern.chain.op_ids[0]))


def _weight(spelled: Spelled) -> tuple[int, int, int]:
    """Attention takes its softmax in, a loss its log_softmax; else the larger group comes first."""
    return (spelled.name != "attention", -len(spelled.members), spelled.members[0])


def _entering(flow: Flow, members: Iterable[int]) -> list[tuple[Version, Tensor]]:
    inside = set(members)
    return [(v, t) for i in sorted(inside) for v, t in flow.steps[i].uses if flow.maker.get(v) not in inside]


def _replaceable(flow: Flow, spelled: Spelled) -> bool:
    """No forward op outside reads what lies in between, and the group is one stretch of one stream and epoch."""
    inside = frozenset(spelled.members)
    steps = [flow.steps[i] for i in spelled.members]
    if len({(s.epoch, s.op.stream, s.op.phase) for s in steps}) > 1:
        return False
    made = [(v, t) for s in steps for v, t in s.makes if v not in spelled.results]
    if any(r.index not in inside for v, _ in made for r in forward_readers(flow, v)):
        return False
    # An update in place of what was there before the step is more than the call's result.
    if any(v[0] in flow.carried for v, _ in made) or any(v[0] in flow.carried for v in spelled.results):
        return False
    found = second_pass(flow, spelled.members)
    return spelled.name == "attention" or found is None or found.kernels == 1


def _moved(flow: Flow, members: Sequence[int]) -> int | None:
    return sum_known(b for i in members for b in op_bytes(flow.steps[i].op))


def _call(spelled: Spelled) -> LibraryCall:
    call = _FORMS.get(spelled.form, CALLS[spelled.name][0])
    if spelled.smoothing > 0:
        call = call[:-1] + f", label_smoothing={spelled.smoothing:g})"
    return LibraryCall(name=spelled.name, call=call)


def _pattern(
    flow: Flow, spelled: Spelled, steps: Sequence[Step], inputs: list[tuple[Version, Tensor]],
    outputs: list[tuple[Version, Tensor]], more: Sequence[int | None],
) -> Pattern:  # fmt: skip
    first = next((s.op.location for s in (flow.steps[i] for i in spelled.members) if s.op.location is not None), None)
    minimum = sum_known((regions_bytes(inputs), regions_bytes(outputs), *more))
    chain = Chain(
        kind=CALLS[spelled.name][1],
        op_ids=tuple(s.op.id for s in steps),
        ops=tuple(s.op.name for s in steps),
        kernel_ids=tuple(k for s in steps for k in s.kernels),
        inputs=tuple(dict(inputs).values()),
        outputs=tuple(dict(outputs).values()),
        global_bytes=_moved(flow, [s.index for s in steps]),
        minimum_bytes=minimum,
        location=first,
        phase=steps[0].op.phase,
        largest_bytes=max((t.nbytes or 0 for s in steps for _, t in (*s.uses, *s.makes)), default=0),
        library=_call(spelled),
    )
    return Pattern(chain=chain, uses=tuple(inputs), makes=tuple(outputs))


def _forward(flow: Flow, spelled: Spelled) -> Pattern | None:
    steps = [flow.steps[i] for i in spelled.members]
    outputs = [(v, t) for s in steps for v, t in s.makes if v in spelled.results]
    inputs = _entering(flow, spelled.members)
    again = None if spelled.name == "attention" else second_pass(flow, spelled.members)
    more = [0 if again is None else again.again_bytes]
    if spelled.name == "cross entropy":
        # The library's own is log_softmax, which keeps its rows for backward, and nll_loss.
        more.append(max((t.nbytes or 0 for _, t in inputs), default=0))
    if spelled.form == "scaled":  # the queries, which are as large as the result, read and written once more
        more.append(2 * sum(t.nbytes or 0 for _, t in outputs))
    return _pattern(flow, spelled, steps, inputs, outputs, more) if outputs else None


def _places(flow: Flow, members: Iterable[int]) -> set[tuple[str, int]]:
    found = (flow.steps[i].op.location for i in members)
    return {(at.file, at.line) for at in found if at is not None}


def _backward_steps(flow: Flow, spelled: Spelled, taken: Set[int]) -> list[Step]:
    """The backward ops on the group's lines that are tied to it: they read what it kept, or what such an op made."""
    kinds = _BACKWARD_OF.get(spelled.name, _OF_ROWS if CALLS[spelled.name][1] != "elementwise" else _OF_ELEMENTS)
    places = _places(flow, spelled.members)
    products = {op_root(flow.steps[i].op) for i in spelled.members}
    possible = [
        s for s in flow.steps
        if s.op.phase == "backward" and s.index not in taken and s.kind in kinds and s.op.location is not None
        and (s.op.location.file, s.op.location.line) in places
        and (s.kind != "matmul" or op_root(s.op) in products)
    ]  # fmt: skip
    # The other runs of these lines have backward ops of their own, tied to these by what gradients flow through.
    others = [s for s in flow.steps if s.op.phase == "forward" and s.index not in spelled.members and s.kind in kinds]
    foreign = {
        v for s in others if s.op.location is not None and (s.op.location.file, s.op.location.line) in places
        for v, _ in (*s.uses, *s.makes)
    } - {v for i in spelled.members for v, _ in (*flow.steps[i].makes, *flow.steps[i].uses)}  # fmt: skip
    possible = [s for s in possible if not any(v in foreign for v, _ in s.uses)]
    if not possible:
        return []
    own = {v for i in spelled.members for v, _ in (*flow.steps[i].makes, *flow.steps[i].uses)}
    reach = [s for s in possible if any(v in own for v, _ in s.uses)]
    indices = {s.index for s in possible}
    home = {s.index for s in reach}
    pending = list(reach)
    while pending:
        step = pending.pop()
        near = [flow.maker[v] for v, _ in step.uses if v in flow.maker]
        near += [r for v, _ in step.makes for r in flow.readers.get(v, ())]
        for index in near:
            if index in indices and index not in home:
                home.add(index)
                pending.append(flow.steps[index])
    found = [flow.steps[i] for i in sorted(home)]
    return found if len(found) > 1 else []


def _backward(flow: Flow, spelled: Spelled, steps: Sequence[Step]) -> Pattern:
    inside = frozenset(s.index for s in steps)
    kept_values = {v for i in spelled.members for v, _ in flow.steps[i].makes}
    entering = [(v, t) for v, t in _entering(flow, inside) if v not in kept_values]
    have = {v for v, _ in entering}
    entering += [(v, t) for v, t in _entering(flow, spelled.members) if v not in have]
    leaving = [(v, t) for s in steps for v, t in s.makes if flow.leaves(v, inside)]
    more: list[int | None] = []
    if spelled.name == "cross entropy":
        # nll_loss's backward fills a gradient of all classes, which log_softmax's reads; a gather's is no worse: its
        # scatter is in place where nobody watches.
        logits = max((t.nbytes or 0 for _, t in _entering(flow, spelled.members)), default=0)
        more = [2 * logits, *(b for s in steps if s.kind == "scatter" for b in op_bytes(s.op))]
    return _pattern(flow, spelled, steps, entering, leaving, more)

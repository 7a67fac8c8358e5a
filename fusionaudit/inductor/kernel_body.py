"""Walks the body of a generated Triton kernel and notes each load, store and atomic with the addresses it reaches.

The body is read as a syntax tree and never run. Index variables (``xindex``, ``r0_index``) range over the kernel's
numels; every other value is followed as far as it is a sum of their digits (see ``index_space``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusionaudit.inductor.expressions import dotted
from fusionaudit.inductor.index_space import Atom, Region, Space, Value, add, mix

_INDEX = re.compile(r"^([xyz]|r\d*_|r)index$")
_NUMEL = re.compile(r"^([xyz]|r\d*_|r)numel$")

_THROUGH = {"to", "broadcast_to", "reshape", "expand_dims", "view", "trans"}
"""Functions that change the shape or type of a block but not which numbers are in it."""

_POINTERLESS = {
    "device_assert", "static_assert", "assume", "debug_barrier", "multiple_of", "max_contiguous", "max_constancy",
}  # fmt: skip

MOST_LINES = 10_000
"""The longest body that is walked: 6 seconds of loads. What Inductor writes for the cases and captures has under 400
lines."""


@dataclass(frozen=True)
class Condition:
    """A conjunction of ``low <= value <= high`` over linear values; ``parts`` empty: nothing known (or always true)."""

    parts: tuple[tuple[Value, int | None, int | None], ...] = ()
    atoms: frozenset[Atom] = frozenset()
    loaded: bool = False


_ZERO = Value()


@dataclass(frozen=True)
class Pointer:
    """A pointer argument plus an index; ``block`` is the region of a block pointer or tensor descriptor."""

    arg: str
    index: Value = _ZERO
    block: Region | None = None


Known = Value | Condition | Pointer


@dataclass(frozen=True)
class RawAccess:
    """One load, store or atomic statement. ``region`` ``None``: cannot be told. ``loop`` numbers the outermost loop.

    ``index`` is where it goes, as a function of the kernel's own indices.
    """

    arg: str
    kind: Literal["load", "store", "atomic", "unknown"]
    region: Region | None
    loop: int | None
    indirect: bool = False
    index: Value | None = None


class _Walk:
    """State of the walk over one kernel body."""

    def __init__(self, pointers: set[str], scalars: Mapping[str, int]) -> None:
        self.space = Space()
        self.known: dict[str, Known] = {n: Value(const=v) for n, v in scalars.items()}
        self.known.update({p: Pointer(p) for p in pointers})
        for name, value in scalars.items():
            self._numel(name, value)
        self.loop: int | None = None
        self.loops = 0
        self.accesses: list[RawAccess] = []

    def _numel(self, name: str, value: int) -> None:
        found = _NUMEL.match(name)
        if found:
            self.space.extents[found.group(1)] = value

    # Statements -----------------------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            value = self.evaluate(node.value)
            if isinstance(node.target, ast.Name) and not _INDEX.match(node.target.id):
                self.known[node.target.id] = mix(self._value(self.known.get(node.target.id)), self._value(value))
        elif isinstance(node, ast.Expr):
            self.evaluate(node.value)
        elif isinstance(node, ast.For | ast.While):
            outermost = self.loop is None
            if outermost:
                self.loop, self.loops = self.loops, self.loops + 1
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self.known[node.target.id] = Value(opaque=True, blocked=True)
            self.block(node.body)
            if outermost:
                self.loop = None
        elif isinstance(node, ast.If):
            before, extents = dict(self.known), dict(self.space.extents)
            self.block(node.body)
            self.known, self.space.extents = before, extents
            self.block(node.orelse)
        elif isinstance(node, ast.With):
            self.block(node.body)

    def _assign(self, target: ast.expr, source: ast.expr) -> None:
        value = self.evaluate(source)
        if isinstance(target, ast.Tuple):
            for element in target.elts:
                if isinstance(element, ast.Name):
                    self.known[element.id] = mix(self._value(value))
            return
        if not isinstance(target, ast.Name):
            return
        name = target.id
        index = _INDEX.match(name)
        if index and index.group(1) != "r":
            self.known[name] = self._base(index.group(1))
            return
        constant = value.constant if isinstance(value, Value) else None
        if constant is not None:
            self._numel(name, constant)
        elif _NUMEL.match(name) and name in self.known:
            return
        self.known[name] = value

    # Expressions ----------------------------------------------------------------------------------------------

    def _base(self, base: str) -> Value:
        if base not in self.space.extents:
            return Value(opaque=True, blocked=True)
        return Value() if self.space.extents[base] <= 1 else Value(terms=(((base, 1, None), 1),))

    def _value(self, known: Known | None) -> Value:
        if known is None:
            return Value(opaque=True, blocked=True)
        if isinstance(known, Condition):
            return Value(opaque=True, deps=known.atoms, loaded=known.loaded)
        return known.index if isinstance(known, Pointer) else known

    def evaluate(self, node: ast.expr) -> Known:
        """What is known of an expression; notes the loads and stores in it."""
        if isinstance(node, ast.Name):
            if node.id not in self.known:
                index = _INDEX.match(node.id)
                return self._base(index.group(1)) if index else Value(opaque=True, blocked=True)
            return self.known[node.id]
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool) or node.value is None:
                return Condition()
            if isinstance(node.value, int) or (isinstance(node.value, float) and node.value == node.value // 1):
                return Value(const=int(node.value))
            return Value(opaque=True)
        if isinstance(node, ast.Subscript):
            return self.evaluate(node.value)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BoolOp):
            values = [self.evaluate(v) for v in node.values]
            return self._both(values) if isinstance(node.op, ast.And) else self._unclear(values)
        if isinstance(node, ast.IfExp):
            return mix(*(self._value(self.evaluate(n)) for n in (node.test, node.body, node.orelse)))
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Tuple | ast.List):
            return mix(*(self._value(self.evaluate(e)) for e in node.elts)) if node.elts else Value(opaque=True)
        return Value(opaque=True, blocked=True)

    def _unary(self, node: ast.UnaryOp) -> Known:
        inner = self.evaluate(node.operand)
        if isinstance(inner, Condition):
            if len(inner.parts) == 1 and isinstance(node.op, ast.Invert | ast.Not):
                value, low, high = inner.parts[0]
                if low is None and high is not None:
                    return Condition(parts=((value, high + 1, None),), atoms=inner.atoms)
                if high is None and low is not None:
                    return Condition(parts=((value, None, low - 1),), atoms=inner.atoms)
            return Condition(atoms=inner.atoms, loaded=inner.loaded)
        value = self._value(inner)
        return add(Value(), value, -1) if isinstance(node.op, ast.USub) else value

    def _both(self, values: list[Known]) -> Condition:
        parts = [p for v in values if isinstance(v, Condition) for p in v.parts]
        atoms = frozenset().union(*(self._value(v).atoms for v in values))
        return Condition(parts=tuple(parts), atoms=atoms, loaded=any(self._value(v).loaded for v in values))

    def _unclear(self, values: list[Known]) -> Condition:
        mixed = mix(*(self._value(v) for v in values))
        return Condition(atoms=mixed.atoms, loaded=mixed.loaded)

    def _binary(self, node: ast.BinOp) -> Known:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(left, Pointer) and left.block is None and isinstance(node.op, ast.Add):
            return Pointer(left.arg, add(left.index, self._value(right)))
        if isinstance(right, Pointer) and right.block is None and isinstance(node.op, ast.Add):
            return Pointer(right.arg, add(right.index, self._value(left)))
        if isinstance(node.op, ast.BitAnd) and (isinstance(left, Condition) or isinstance(right, Condition)):
            return self._both([left, right])
        if isinstance(node.op, ast.BitOr) and (isinstance(left, Condition) or isinstance(right, Condition)):
            return self._unclear([left, right])
        a, b = self._value(left), self._value(right)
        if isinstance(node.op, ast.Add):
            return add(a, b)
        if isinstance(node.op, ast.Sub):
            return add(a, b, -1)
        if isinstance(node.op, ast.Mult):
            for one, other in ((a, b), (b, a)):
                if one.constant is not None:
                    return add(Value(), other, one.constant)
        if b.constant is not None and b.constant > 0 and not a.loaded:
            if isinstance(node.op, ast.FloorDiv):
                return self.space.floordiv(a, b.constant)
            if isinstance(node.op, ast.Mod):
                return self.space.modulo(a, b.constant)
        return mix(a, b)

    def _compare(self, node: ast.Compare) -> Condition:
        values = [self._value(self.evaluate(v)) for v in (node.left, *node.comparators)]
        mixed = mix(*values)
        parts: list[tuple[Value, int | None, int | None]] = []
        for op, a, b in zip(node.ops, values, values[1:], strict=False):
            if a.opaque or b.opaque:
                continue
            difference = add(a, b, -1)
            if isinstance(op, ast.Lt):
                parts.append((difference, None, -1))
            elif isinstance(op, ast.LtE):
                parts.append((difference, None, 0))
            elif isinstance(op, ast.Gt):
                parts.append((difference, 1, None))
            elif isinstance(op, ast.GtE):
                parts.append((difference, 0, None))
            elif isinstance(op, ast.Eq):
                parts.append((difference, 0, 0))
        return Condition(parts=tuple(parts), atoms=mixed.atoms, loaded=mixed.loaded)

    def _call(self, node: ast.Call) -> Known:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        full = dotted(node.func)
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if full in ("tl.load", "tl.store") or full.startswith("tl.atomic_"):
            return self._memory(name, node, keywords)
        if name in ("make_block_ptr", "make_tensor_descriptor"):
            return self._block_pointer(node, keywords)
        modules = ("tl", "libdevice", "tl_math", "triton_helpers")
        method = isinstance(node.func, ast.Attribute) and full.split(".")[0] not in modules
        if method and isinstance(node.func, ast.Attribute):
            owner = self.evaluate(node.func.value)
            if isinstance(owner, Pointer) and name in ("load", "store"):
                for argument in node.args:
                    self.evaluate(argument)
                self._note(owner, name, Condition())
                return Value(opaque=True, deps=owner.index.atoms, loaded=True)
            if name in _THROUGH:
                return owner
            return mix(self._value(owner), *(self._value(self.evaluate(a)) for a in node.args))
        if name in ("full", "full_like", "zeros", "advance"):
            if name == "zeros":
                return Value()
            return self.evaluate(
                keywords.get("value", node.args[1] if name == "full" and len(node.args) > 1 else node.args[0])
            )
        given = [self.evaluate(a) for a in (*node.args, *keywords.values())]
        if name in _THROUGH and given:
            return given[0]
        if name not in _POINTERLESS:
            for one in given:
                if isinstance(one, Pointer):
                    # A helper gets the pointer itself (look-back scans, bucketize): what it touches is not told here.
                    self.accesses.append(RawAccess(one.arg, "unknown", None, self.loop, indirect=True))
        if name in ("program_id", "num_programs", "arange", "cdiv"):
            return Value(opaque=True, blocked=True)
        if name == "where" and len(given) == 3 and given[1] == given[2]:
            return given[1]
        return mix(*(self._value(a) for a in given)) if given else Value(opaque=True)

    # Memory ---------------------------------------------------------------------------------------------------

    def _memory(self, name: str, node: ast.Call, keywords: Mapping[str, ast.expr]) -> Known:
        if not node.args:
            return Value(opaque=True)
        target = self.evaluate(node.args[0])
        rest = list(node.args[1:])
        values = [self.evaluate(v) for v in rest]
        mask_at = 0 if name == "load" else 1
        mask: Known = values[mask_at] if len(values) > mask_at else Condition()
        if "mask" in keywords:
            mask = self.evaluate(keywords["mask"])
        if not isinstance(target, Pointer):
            return Value(opaque=True, loaded=True)
        kind = name if name in ("load", "store") else "atomic"
        self._note(target, kind, mask)
        return Value(opaque=True, deps=target.index.atoms, loaded=True)

    def _note(self, target: Pointer, kind: str, mask: Known) -> None:
        region = target.block
        if region is None:
            bounds = self._bounds(mask)
            region = self.space.region(target.index, bounds)
        if region is not None and region.indirect:
            region = Region(
                offset=0,
                dims=(),
                count=region.count,
                exact=False,
                indirect=True,
                key=repr((target.index, region.count)),
            )
        checked: Literal["load", "store", "atomic"] = (
            "load" if kind == "load" else "store" if kind == "store" else "atomic"
        )
        index = None if target.block is not None else target.index
        self.accesses.append(
            RawAccess(target.arg, checked, region, self.loop, indirect=target.index.loaded, index=index)
        )

    def _bounds(self, mask: Known) -> dict[Atom, tuple[int, int]]:
        """Bounds on single atoms that follow from a mask; what cannot be turned into such bounds is left out."""
        out: dict[Atom, tuple[int, int]] = {}
        for value, low, high in mask.parts if isinstance(mask, Condition) else ():
            if not value.terms:
                continue
            atom, coefficient = max(value.terms, key=lambda t: abs(t[1]))
            others = [(c, self.space.size(a) - 1) for a, c in value.terms if a != atom]
            least = value.const + sum(min(0, c * n) for c, n in others)
            most = value.const + sum(max(0, c * n) for c, n in others)
            size = self.space.size(atom)
            first, last = out.get(atom, (0, size - 1))
            # coefficient * atom lies between low - most and high - least
            under = None if low is None else low - most
            over = None if high is None else high - least
            if coefficient < 0:
                under, over = (None if over is None else -over), (None if under is None else -under)
            scale = abs(coefficient)
            if under is not None:
                first = max(first, -(-under // scale))
            if over is not None:
                last = min(last, over // scale)
            if (first, last) != (0, size - 1):
                out[atom] = (first, last)
        return out

    def _block_pointer(self, node: ast.Call, keywords: Mapping[str, ast.expr]) -> Known:
        base = self.evaluate(node.args[0] if node.args else keywords.get("base", ast.Constant(value=0)))
        if not isinstance(base, Pointer):
            return Value(opaque=True)
        lists = {}
        for position, key in ((1, "shape"), (2, "strides")):
            listed: ast.expr | None = keywords.get(key, node.args[position] if len(node.args) > position else None)
            elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
            lists[key] = [self._value(self.evaluate(e)).constant for e in elements]
        dims = [(s, n) for n, s in zip(lists["shape"], lists["strides"], strict=False)]
        if not dims or any(n is None or s is None for s, n in dims):
            return Pointer(base.arg, Value(opaque=True, blocked=True))
        kept = tuple(sorted((abs(s), n) for s, n in dims if s and n and n > 1))
        count = 1
        for _, n in kept:
            count *= n
        offset = base.index.constant or 0
        return Pointer(base.arg, base.index, Region(offset=offset, dims=kept, count=count))


def walk(
    function: ast.FunctionDef, pointers: set[str], scalars: Mapping[str, int]
) -> tuple[list[RawAccess] | None, dict[str, int]]:
    """The accesses of a kernel in order, and the numels found (by prefix ``x``, ``y``, ``r0_``).

    ``None``: the body is too long or too deeply nested to be followed.
    ``scalars`` are the integer arguments that the call passes (``xnumel``, ``ks0``).
    """
    if (function.end_lineno or function.lineno) - function.lineno > MOST_LINES:
        return None, {}
    state = _Walk(pointers, scalars)
    try:
        state.block(function.body)
    except RecursionError:
        return None, {}
    return state.accesses, state.space.extents

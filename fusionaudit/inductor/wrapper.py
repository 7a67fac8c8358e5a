"""Follows the buffers through a graph's ``call`` function, statement by statement, without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fusionaudit.inductor.expressions import dotted, evaluate, integer, integers
from fusionaudit.inductor.extern_ops import is_view
from fusionaudit.inductor.fragments import tensor_type
from fusionaudit.inductor.wrapper_definitions import Definitions, dtype_name
from fusionaudit.inductor.wrapper_values import Buffer, PendingCall, Result, WrapperValue

_COMPLEX = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
_VIEWED = {"view_as_complex": _COMPLEX, "view_as_real": {c: real for real, c in _COMPLEX.items()}}
"""Views whose elements are of another dtype than their storage's."""
_IGNORED = {
    "assert_alignment", "get_raw_stream", "set_device", "synchronize", "clear", "start_graph", "end_graph", "print",
    "record_stream", "wait_stream", "wait", "check_memory_step", "debug_barrier", "append", "RuntimeError", "device",
    "mark_dynamic", "run_intermediate_hooks", "_DeviceGuard", "stream", "Stream", "current_stream", "maybe_profile",
}  # fmt: skip
_DEPTH = 8  # partitions and subgraphs call each other only a few levels deep


class Interpreter:
    """One reading of the call function; ``calls``, ``inputs`` and ``outputs`` are filled in execution order."""

    def __init__(self, definitions: Definitions, symbols: Mapping[str, int], types: Mapping[str, str]) -> None:
        self.definitions = definitions
        self.symbols = dict(symbols)
        self.types = types
        self.names: dict[str, WrapperValue] = {}
        self.sizes: dict[str, int] = {}
        self.calls: list[PendingCall] = []
        self.inputs: list[WrapperValue] = []
        self.outputs: list[WrapperValue] = []
        self.depth = 0
        self.arguments: list[WrapperValue] | None = None
        self.returned: list[WrapperValue] = []

    def run(self) -> None:
        """Reads ``call``."""
        if self.definitions.call is not None:
            self.outputs = self._function(self.definitions.call, None)

    def _function(self, function: ast.FunctionDef, arguments: list[WrapperValue] | None) -> list[WrapperValue]:
        saved = self.names, self.arguments, self.returned
        self.names, self.arguments, self.returned = ({} if self.depth else self.names), arguments, []
        self.depth += 1
        if self.depth <= _DEPTH:
            self._block(function.body)
        self.depth -= 1
        result = self.returned
        self.names, self.arguments, self.returned = saved
        return result

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.With | ast.For | ast.While):
                self._block(node.body)
            elif isinstance(node, ast.If):
                self._block(node.body)
                self._block(node.orelse)
            elif isinstance(node, ast.Assign):
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.Expr):
                self._expression(node.value, None)
            elif isinstance(node, ast.Return) and node.value is not None:
                values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
                self.returned = [self._expression(v, None) for v in values]

    def _assign(self, target: ast.expr, source: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(source, ast.Name) and source.id == "args":
                self._bind_arguments([e.id for e in target.elts if isinstance(e, ast.Name)])
                return
            value = self._expression(source, None)
            for position, element in enumerate(target.elts):
                if isinstance(element, ast.Name):
                    self._set(element.id, self._part(value, position, element.id))
            return
        if isinstance(target, ast.Name):
            self._set(target.id, self._expression(source, target.id))

    def _set(self, name: str, value: WrapperValue) -> None:
        if (value is None or isinstance(value, int | float)) and name in self.symbols:
            value = self.symbols[name]
        self.names[name] = value
        if isinstance(value, int) and not isinstance(value, bool) and name not in self.sizes:
            self.sizes[name] = value

    def _bind_arguments(self, names: list[str]) -> None:
        for position, name in enumerate(names):
            if self.arguments is not None:
                value = self.arguments[position] if position < len(self.arguments) else None
            else:
                value = self._input(name)
                self.inputs.append(value)
            self._set(name, value)

    def _input(self, name: str) -> WrapperValue:
        hint = self.definitions.hints.get(name)
        if isinstance(hint, int | float):
            return hint
        if isinstance(hint, Buffer):
            return Buffer(name, name, hint.shape, hint.strides, hint.dtype, device=hint.device)
        typed = tensor_type(self.types.get(name))
        return Buffer(name, name, dtype=typed[0] if typed else None, device=typed[3] if typed else "cuda")

    # Expressions ----------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr, target: str | None) -> WrapperValue:
        """The value of an expression; records the launches in it. ``target`` is the name it is assigned to."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Tuple | ast.List):
            return [self._expression(e, None) for e in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node, target)
        if isinstance(node, ast.Subscript):
            value = self._expression(node.value, None)
            position = integer(node.slice, self.names)
            if position is not None and isinstance(value, Result | list):
                return self._part(value, position, target or f"{getattr(value, 'name', 'value')}_{position}")
            return value if isinstance(value, Buffer | Result) else None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, int | float | str) else None
        return evaluate(node, self.names)

    def _part(self, value: WrapperValue, position: int, name: str) -> WrapperValue:
        if isinstance(value, Result):
            if position not in value.parts:
                value.parts[position] = Buffer(name, name)
            return value.parts[position]
        if isinstance(value, list):
            return value[position] if -len(value) <= position < len(value) else None
        return value

    def buffer(self, value: WrapperValue) -> Buffer | None:
        """The tensor behind a value, if it is one."""
        if isinstance(value, Result):
            if value.whole is None:
                value.whole = Buffer(value.name, value.name)
            return value.whole
        return value if isinstance(value, Buffer) else None

    def _call(self, node: ast.Call, target: str | None) -> WrapperValue:
        function = dotted(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else function
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if last.startswith("empty_strided") or last in ("_empty_strided_cuda", "_empty_strided_cpu"):
            return self._allocation(node, last, target, keywords)
        if last in ("reinterpret_tensor", "_reinterpret_tensor", "as_strided") and len(node.args) >= 3:
            return self._view(node, target)
        if last in ("alloc_from_pool", "_alloc_from_pool") and len(node.args) >= 5:
            shape, strides = integers(node.args[3], self.names), integers(node.args[4], self.names)
            name = target or f"pool_{node.lineno}"
            return Buffer(name, name, shape, strides, dtype_name(node.args[2]))
        if last == "copy_if_misaligned" and node.args:
            return self._expression(node.args[0], None)  # torch 2.13: the same buffer, but for unaligned inputs
        if last in ("assert_size_stride", "assert_tensor_metadata") and len(node.args) >= 3:
            self._learn(node)
            return None
        if last in _IGNORED or function.startswith(("torch.cuda.", "AsyncCompile")):
            return None
        if last in ("size", "stride") and isinstance(node.func, ast.Attribute):
            return self._size(node, last)
        if last in ("item", "int", "float", "bool"):
            return self.symbols.get(target) if target is not None else None
        arguments = [self._expression(a, None) for a in node.args]
        kernel = self._kernel(node.func)
        if kernel is not None:
            names = [a.id if isinstance(a, ast.Name) else "" for a in node.args]
            self.calls.append(
                PendingCall(target=kernel, kernel=kernel, line=node.lineno, operands=arguments, names=names)
            )
            return None
        head = function.split(".")[0]
        if function in self.definitions.host or head in self.definitions.host:
            self.calls.append(PendingCall(target=head, line=node.lineno, operands=arguments, on_host=True))
            return None
        inner = self._inner(node.func)
        if inner is not None:
            given = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
            return self._function(inner, given)
        return self._extern(node, function, last, target, arguments, keywords)

    def _inner(self, function: ast.expr) -> ast.FunctionDef | None:
        """The function behind ``self.partitions[0]`` or a subgraph's name."""
        if isinstance(function, ast.Subscript) and dotted(function.value).endswith("partitions"):
            position = integer(function.slice, {})
            return self.definitions.functions.get(f"partition_{position}")
        if isinstance(function, ast.Name) and function.id not in ("call", "get_args", "benchmark_compiled_module"):
            return self.definitions.functions.get(function.id)
        return None

    def _kernel(self, function: ast.expr) -> str | None:
        """The kernel's variable for ``name.run(...)`` and ``name[grid](...)``."""
        name = ""
        if (isinstance(function, ast.Attribute) and function.attr == "run") or isinstance(function, ast.Subscript):
            name = dotted(function.value)
        name = self.definitions.multi.get(name, [name])[0]
        return name if name in self.definitions.triton else None

    def _allocation(
        self, node: ast.Call, function: str, target: str | None, keywords: Mapping[str, ast.expr]
    ) -> Buffer:
        name = target or f"{function}_{node.lineno}"
        dtype = keywords.get("dtype", node.args[2] if len(node.args) > 2 else None)
        shape = integers(node.args[0], self.names) if node.args else None
        strides = integers(node.args[1], self.names) if len(node.args) > 1 else None
        return Buffer(name, name, shape, strides, dtype_name(dtype), device="cpu" if "cpu" in function else "cuda")

    def _view(self, node: ast.Call, target: str | None) -> WrapperValue:
        base = self.buffer(self._expression(node.args[0], None))
        if base is None:
            return None
        shape, strides = integers(node.args[1], self.names), integers(node.args[2], self.names)
        offset = integer(node.args[3], self.names) if len(node.args) > 3 else 0
        return Buffer(
            target or base.name, base.storage, shape, strides, base.dtype, offset=base.offset + (offset or 0),
            device=base.device,
        )  # fmt: skip

    def _learn(self, node: ast.Call) -> None:
        """``assert_size_stride(buf5, (4096, 2), (2, 1), 'op')`` says what an input or a result looks like; from torch
        2.14 on ``assert_tensor_metadata(buf5, (4096, 2), (2, 1), torch.float32, 'op')`` says it of results."""
        value = self.buffer(self._expression(node.args[0], None))
        shape, strides = integers(node.args[1], self.names), integers(node.args[2], self.names)
        if value is not None and shape is not None and strides is not None:
            value.shape, value.strides = shape, strides
            if dotted(node.func).endswith("metadata") and len(node.args) > 3:
                value.dtype = dtype_name(node.args[3]) or value.dtype

    def _size(self, node: ast.Call, which: str) -> WrapperValue:
        value = self.buffer(self._expression(node.func.value, None)) if isinstance(node.func, ast.Attribute) else None
        sizes = None if value is None else (value.shape if which == "size" else value.strides)
        if sizes is None:
            return None
        if not node.args:
            return list(sizes)
        position = integer(node.args[0], self.names)
        return None if position is None or not -len(sizes) <= position < len(sizes) else sizes[position]

    def _extern(
        self,
        node: ast.Call,
        function: str,
        last: str,
        target: str | None,
        arguments: list[WrapperValue],
        keywords: Mapping[str, ast.expr],
    ) -> WrapperValue:
        named = {k: self._expression(v, None) for k, v in keywords.items()}
        library = function.startswith(
            ("torch.ops.", "extern_kernels.", "aten.", "inductor_ops.", "_quantized.", "prims.")
        )
        if not library and isinstance(node.func, ast.Attribute):
            return self._method(node, last, target, arguments)
        if not library:
            if function not in self.definitions.other:
                return None
            self.calls.append(PendingCall(target=function, line=node.lineno, operands=arguments))
            return None
        operands = [*arguments, *(v for k, v in named.items() if k not in ("out", "out0", "out1"))]
        if is_view(function) and arguments:
            base = self.buffer(arguments[0])
            view = (
                None
                if base is None
                else Buffer(target or base.name, base.storage, dtype=base.dtype, device=base.device)
            )
            kind = next((k for k in _VIEWED if f".{k}." in function), None)
            if view is not None and base is not None and kind is not None:
                view.dtype, view.retyped = _VIEWED[kind].get(base.dtype or ""), True
            pending = PendingCall(target=function, line=node.lineno, operands=operands, on_host=True)
            if view is not None:
                pending.outputs.append(view)
            self.calls.append(pending)
            return view
        outputs = [b for k, v in named.items() if k.startswith("out") and (b := self.buffer(v)) is not None]
        pending = PendingCall(target=function, line=node.lineno, operands=operands, outputs=outputs)
        overload = function.rsplit(".", 1)[-1]
        op = function.removeprefix("torch.ops.").split(".")
        in_place = len(op) > 1 and op[0] in ("aten", "prims") and op[1].endswith("_") and not op[1].endswith("__")
        if in_place and arguments and (mutated := self.buffer(arguments[0])) is not None:
            pending.mutated.append(mutated)
        if not outputs and not in_place and overload != "out":
            name = target or f"result_{len(self.calls)}"
            pending.result = Result(name=name, source=function)
        self.calls.append(pending)
        if pending.result is not None:
            return pending.result
        return outputs[0] if outputs else (pending.mutated[0] if pending.mutated else None)

    def _method(self, node: ast.Call, last: str, target: str | None, arguments: list[WrapperValue]) -> WrapperValue:
        """Tensor methods in the wrapper: copies, fills, and the sum of a mixed-order reduction's workspace."""
        assert isinstance(node.func, ast.Attribute)
        owner = self.buffer(self._expression(node.func.value, None))
        if owner is None:
            return None
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if last in ("copy_", "zero_", "fill_"):
            sources = [a for a in arguments if isinstance(a, Buffer | Result)]
            pending = PendingCall(target=last, line=node.lineno, operands=list(sources), outputs=[owner])
            self.calls.append(pending)
            return owner
        if last == "view" and isinstance(node.func.value, ast.Subscript | ast.Name):
            sizes = [v for a in node.args if (v := integer(a, self.names)) is not None]
            view = Buffer(owner.name, owner.storage, dtype=owner.dtype, device=owner.device, offset=owner.offset)
            if len(sizes) == len(node.args):
                strides, step = [], 1
                for size in reversed(sizes):
                    strides.append(step)
                    step *= size
                view.shape, view.strides = tuple(sizes), tuple(reversed(strides))
            if isinstance(node.func.value, ast.Subscript) and isinstance(node.func.value.slice, ast.Slice):
                start = node.func.value.slice.lower
                view.offset += (integer(start, self.names) or 0) if start is not None else 0
            return view
        if last == "sum" and owner.shape is not None:
            axis = integer(keywords["dim"], self.names) if "dim" in keywords else 0
            shape = tuple(n for i, n in enumerate(owner.shape) if i != (axis or 0) % len(owner.shape))
            return self._made("aten.sum.dim_IntList", node, owner, shape, owner.dtype, target)
        if last == "to" and node.args:
            dtype = dtype_name(node.args[0])
            if dtype is None or dtype == owner.dtype or owner.shape is None:
                return owner
            return self._made("aten._to_copy.default", node, owner, owner.shape, dtype, target)
        return owner if last in ("view", "detach", "contiguous", "reshape") else None

    def _made(
        self, op: str, node: ast.Call, owner: Buffer, shape: tuple[int, ...], dtype: str | None, target: str | None
    ) -> Buffer:
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step)
            step *= size
        name = target or f"{owner.name}_{op.split('.')[1]}_{node.lineno}"
        out = Buffer(name, name, shape, tuple(reversed(strides)), dtype, device=owner.device)
        self.calls.append(PendingCall(target=op, line=node.lineno, operands=[owner], outputs=[out]))
        return out

"""What to compile in a script that never calls torch.compile: found while it runs eagerly, then applied.

Found are functions of the script that take tensors and return tensors and do nothing that a graph must not hold
(backward, optimizer step, step mark, a host sync in a function that they call), and modules that are called from
outside any other module. A host sync of the function itself (a branch on data) is a graph break: it is compiled all the
same, unless it calls modules or drives others. The outermost call wins at run time. It is wrong where a script's
function is a driver loop around its real work: such functions are left out where they call one inner function many
times and do nothing else.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from fusionaudit.capture.calls import HOST_SYNC, tensors_of
from fusionaudit.capture.compiled_modules import compile_module
from fusionaudit.capture.no_arithmetic import NeedsValue

HOOK = "__fusionaudit_target__"
MAX_OPS = 3000
"""Ops of one call above which a function is left to its inner functions: compile time grows faster than the graph."""

DRIVER_CALLS = 3
"""Calls of one inner function, holding all ops, that make the outer one a driver loop."""


NO_OP = "no op runs in it"


@dataclass(kw_only=True)
class Candidate:
    """What was seen of one function of the script over all its calls.

    ``syncs``: it waited for the device itself. ``drives``: it called modules, or a function time and again.
    """

    key: str
    name: str
    line: int
    calls: int = 0
    ops: int = 0
    syncs: bool = False
    drives: bool = False
    reasons: list[str] = field(default_factory=list)

    def reject(self, reason: str) -> None:
        """Remember why it cannot be compiled."""
        if reason not in self.reasons:
            self.reasons.append(reason)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """``functions`` are keys of functions to compile; ``modules`` says that root modules are compiled.

    ``uses_compile``: the script calls torch.compile itself, so nothing is compiled for it.
    """

    uses_compile: bool = False
    functions: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    rejected: dict[str, list[str]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Targets:
        """Back from JSON; no file means that nothing is known, so nothing is compiled."""
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError):
            return cls()
        return cls(
            uses_compile=bool(data["uses_compile"]), functions=tuple(data["functions"]),
            modules=tuple(data["modules"]), rejected=dict(data["rejected"]),
        )  # fmt: skip

    def describe(self) -> str:
        """One line for the user; empty where nothing is compiled for the script."""
        if self.uses_compile:
            return ""
        names = [key.rsplit(":", 1)[0] for key in self.functions] + list(self.modules)
        if not names:
            return f"the script never calls torch.compile; nothing was compiled for it: {self._why_nothing()}"
        return f"the script never calls torch.compile; compiled for it: {', '.join(names)}"

    def _why_nothing(self) -> str:
        told = [
            f"{name} (line {line}): {', '.join(reasons)}"
            for (name, line), reasons in ((key.rsplit(":", 1), reasons) for key, reasons in self.rejected.items())
            if reasons != [NO_OP]
        ]
        more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
        return "; ".join(told[:3]) + more if told else "no module was called, and no function of it computes"


class _Instrument(ast.NodeTransformer):
    """Wraps functions and lambdas of the script in the hook, keeping every line number."""

    def _decorate(self, node: Any) -> Any:
        self.generic_visit(node)
        if not (node.name.startswith("__") and node.name.endswith("__")):
            first = node.decorator_list[0] if node.decorator_list else node
            hook = ast.copy_location(ast.Name(id=HOOK, ctx=ast.Load()), first)
            hook.end_lineno, hook.end_col_offset = first.lineno, first.col_offset
            node.decorator_list.insert(0, hook)
        return node

    visit_FunctionDef = _decorate  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self.generic_visit(node)
        hook = ast.copy_location(ast.Name(id=HOOK, ctx=ast.Load()), node)
        return ast.copy_location(ast.Call(func=hook, args=[node], keywords=[]), node)


def compile_script(source: bytes | str, filename: str, *, instrument: bool) -> CodeType:
    """The code of a script, its functions wrapped in the hook where asked for."""
    if not instrument:
        return compile(source, filename, "exec", dont_inherit=True)
    tree = _Instrument().visit(ast.parse(source, filename))
    return compile(tree, filename, "exec", dont_inherit=True)


def key_of(function: FunctionType) -> str:
    """``main.<locals>.step:12``: stable over the passes of one script."""
    return f"{function.__qualname__}:{function.__code__.co_firstlineno}"


@dataclass
class _Call:
    candidate: Candidate | None
    ops: int = 0
    own_ops: int = 0
    mutates: bool = False
    modules: bool = False
    inner: dict[str, int] = field(default_factory=dict)


class Finder:
    """Watches the eager pass (an ``Observer`` of the recorder) and says in the end what to compile."""

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._local = threading.local()
        self._main_calls: list[_Call] = []
        self._modules: dict[str, int] = {}
        self._uses_compile = False
        self._local.calls = self._main_calls

    def _calls(self) -> list[_Call]:
        # Backward runs on autograd's threads while the calling thread waits: its ops belong to the main thread's call.
        calls: list[_Call] = getattr(self._local, "calls", self._main_calls)
        return calls

    def saw_op(self, *, mutates: bool) -> None:
        """An op ran."""
        calls = self._calls()
        if calls:
            calls[-1].own_ops += 1
            calls[-1].ops += 1
            calls[-1].mutates |= mutates

    def saw_barrier(self, reason: str) -> None:
        """All functions that are running do something that a graph must not hold; the innermost may have a sync."""
        calls = self._calls()
        for call in calls:
            if call.candidate is None:
                continue
            if reason == HOST_SYNC and call is calls[-1]:
                call.candidate.syncs = True
            else:
                call.candidate.reject(reason)

    def hook(self, function: Any) -> Any:
        """The decorator of the eager pass: counts calls; anything but a plain function stays as it is."""
        if not isinstance(function, FunctionType) or function.__code__.co_flags & _NOT_PLAIN:
            return function
        key = key_of(function)
        candidate = self._candidates.setdefault(
            key, Candidate(key=key, name=function.__qualname__, line=function.__code__.co_firstlineno)
        )

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            calls = self._calls()
            call = _Call(candidate)
            calls.append(call)
            try:
                result = function(*args, **kwargs)
            except NeedsValue:
                candidate.reject("--shapes-only ended the script in it")
                raise
            except BaseException:
                candidate.reject("it raises")
                raise
            finally:
                if calls and calls[-1] is call:
                    calls.pop()
                self._leave(call, calls[-1] if calls else None)
            if args and isinstance(args[0], torch.nn.Module) and function.__name__ in ("forward", "training_step"):
                candidate.reject("a module's method; the module is compiled")
            elif not tensors_of([args, kwargs]):
                candidate.reject("no tensor goes in")
            elif not (tensors_of(result) or (result is None and call.mutates)):
                candidate.reject("no tensor comes out")
            return result

        return watched

    def _leave(self, call: _Call, outer: _Call | None) -> None:
        candidate = call.candidate
        if candidate is None:
            return
        candidate.calls += 1
        candidate.ops = max(candidate.ops, call.ops)
        candidate.drives |= call.modules or any(times >= DRIVER_CALLS for times in call.inner.values())
        if call.own_ops == 0 and len(call.inner) == 1 and next(iter(call.inner.values())) >= DRIVER_CALLS:
            candidate.reject("a loop around one function")
        if call.ops > MAX_OPS:
            candidate.reject(f"more than {MAX_OPS} ops in one call")
        if outer is not None:
            outer.ops += call.ops
            outer.mutates |= call.mutates
            outer.modules |= call.modules
            if call.ops:
                outer.inner[candidate.key] = outer.inner.get(candidate.key, 0) + 1

    def module_called(self, module: torch.nn.Module) -> None:
        """A module was called from outside any other module."""
        for call in self._calls()[-1:]:
            call.modules = True
        name = type(module).__name__
        self._modules[name] = self._modules.get(name, 0) + 1

    @contextmanager
    def watching(self, recorder: Any) -> Iterator[None]:
        """Install the hook for the script, watch torch.compile and root module calls, until the end of the block."""
        compile_function, call = torch.compile, torch.nn.Module.__call__
        depth = threading.local()

        @functools.wraps(compile_function)
        def watched_compile(*args: Any, **kwargs: Any) -> Any:
            self._uses_compile = True
            return compile_function(*args, **kwargs)

        @functools.wraps(call)
        def watched_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            for buffer in module._buffers.values():
                if buffer is not None:
                    recorder.declare_parameter(buffer)
            level = getattr(depth, "level", 0)
            if level == 0 and not isinstance(module, torch.jit.ScriptModule):
                self.module_called(module)
            depth.level = level + 1
            try:
                return call(module, *args, **kwargs)
            finally:
                depth.level = level

        torch.compile = watched_compile
        _set_call(watched_call)
        setattr(builtins, HOOK, self.hook)
        try:
            yield
        finally:
            torch.compile = compile_function
            _set_call(call)

    def targets(self) -> Targets:
        """The verdict over the whole pass."""
        seen = [c for c in self._candidates.values() if c.calls]
        if self._uses_compile:
            return Targets(uses_compile=True)
        for candidate in seen:
            if not candidate.ops:
                candidate.reject(NO_OP)
            if candidate.syncs and candidate.drives:
                candidate.reject(HOST_SYNC)
        return Targets(
            functions=tuple(c.key for c in seen if not c.reasons),
            modules=tuple(sorted(self._modules)),
            rejected={c.key: c.reasons for c in seen if c.reasons},
        )


_NOT_PLAIN = 0x20 | 0x80 | 0x100 | 0x200
"""Code flags of generators, coroutines and async generators."""


class Applier:
    """Compiles the targets in the compiled pass: functions by key, modules by being outermost."""

    def __init__(self, targets: Targets, *, device_types: tuple[str, ...]) -> None:
        self._functions = frozenset(targets.functions)
        self._modules = bool(targets.modules)
        self._device_types = device_types

    def hook(self, function: Any) -> Any:
        """The decorator of the compiled pass: targets are compiled, all else stays as it is."""
        if not isinstance(function, FunctionType) or key_of(function) not in self._functions:
            return function
        return self._compiled(function)

    def _compiled(self, function: FunctionType) -> Any:
        made: list[Callable[..., Any]] = []

        @functools.wraps(function)
        def target(*args: Any, **kwargs: Any) -> Any:
            if _tracing() or not self._on_device([args, kwargs]):
                return function(*args, **kwargs)
            if not made:
                made.append(torch.compile(function))
            with self._outermost():
                return made[0](*args, **kwargs)

        return target

    def _on_device(self, value: Any) -> bool:
        return any(t.device.type in self._device_types for t in tensors_of(value))

    def _is_ours(self, module: torch.nn.Module, args: Any) -> bool:
        if isinstance(module, (torch.jit.ScriptModule, torch.nn.DataParallel)):
            return False
        first = next(module.parameters(), None)
        return self._on_device([args]) or (first is not None and first.device.type in self._device_types)

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        """Inside the outermost call modules are called as ever, so Dynamo sees torch's own code."""
        current = torch.nn.Module.__call__
        _set_call(_PLAIN_CALL)
        try:
            yield
        finally:
            _set_call(current)

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Install both until the end of the block."""
        setattr(builtins, HOOK, self.hook)
        applier = self

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if _tracing() or not applier._is_ours(module, [args, kwargs]):
                return _PLAIN_CALL(module, *args, **kwargs)
            if module._compiled_call_impl is None:
                compile_module(module)
            with applier._outermost():
                return _PLAIN_CALL(module, *args, **kwargs)

        if self._modules:
            _set_call(call)
        try:
            yield
        finally:
            _set_call(_PLAIN_CALL)


def _tracing() -> bool:
    """True inside torch.compile and torch.jit.trace: what they trace is to be compiled by neither of us."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


_PLAIN_CALL: Any = torch.nn.Module.__call__


def _set_call(function: Any) -> None:
    owner: Any = torch.nn.Module
    owner.__call__ = function

"""Inductor lowers each graph for the target, and the graph runs on the CPU instead of what was generated.

Everything up to the generated source is Inductor's own doing, on fake CUDA tensors: Dynamo, AOTAutograd,
decompositions, fusion, code generation, its checks for CUDA graphs, and its logs. Only the last step is replaced:
the source is not loaded; a copy of the ATen graph, taken before Inductor's passes, runs on the CPU tensors that
stand for the GPU's.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusionaudit.capture.attention import cpu_equivalents
from fusionaudit.capture.compiling import graph_id
from fusionaudit.capture.gpu_tensors import CUDA, GpuTensors
from fusionaudit.capture.no_arithmetic import WithoutValues
from fusionaudit.capture.patches import Patches, moved
from fusionaudit.capture.unmeasured import Unmeasured

CPU = torch.device("cpu")

CallGraph = Callable[[str, dict[str, int], Sequence[Any], Sequence[Any]], None]
"""Told of each call of a compiled graph: id, values of symbols, inputs and outputs (tensors)."""


@dataclasses.dataclass
class Lowered:
    """One graph as Inductor generated it: id as in the log, and the source of its output code."""

    id: str
    source: str


@dataclasses.dataclass
class _Pending:
    graph: torch.fx.GraphModule
    id: str


class Lowering:
    """Replaces the end of Inductor's compilation while its patches are in place."""

    def __init__(self, tensors: GpuTensors, on_call: CallGraph, *, without_values: WithoutValues | None = None) -> None:
        self.tensors = tensors
        self.lowered: list[Lowered] = []
        self.unmeasured = Unmeasured()
        self._on_call = on_call
        self._run: RunGraph = _interpret if without_values is None else _only_shapes(without_values)
        self._pending = threading.local()
        self._ids: dict[str, int] = {}
        self._running = threading.local()

    @property
    def running(self) -> bool:
        """True on a thread that is inside a compiled graph."""
        return bool(getattr(self._running, "depth", 0))

    def install(self, patches: Patches) -> None:
        """Patch Inductor, Dynamo's view of the tensors and the caches; AuditError where a name has moved."""
        self._describe_as_cuda(patches)
        self._place_optimizer_state(patches)
        self._stop_before_loading(patches)
        self.unmeasured.install(patches)
        self._configure(patches)
        _unseen_by_dynamo()

    def _describe_as_cuda(self, patches: Patches) -> None:
        """Dynamo sees a CUDA tensor in each CPU tensor that stands for one; guards still check the real tensor."""
        from torch._subclasses import meta_utils

        describer = getattr(meta_utils, "MetaTensorDescriber", None)
        if describer is None or not hasattr(describer, "describe_tensor"):
            raise moved("torch._subclasses.meta_utils.MetaTensorDescriber.describe_tensor")
        describe, holds = describer.describe_tensor, self.tensors.holds

        @functools.wraps(describe)
        def describe_tensor(self: Any, t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            described = describe(self, t, *args, **kwargs)
            if described.device.type == "cpu" and type(t) in (torch.Tensor, torch.nn.Parameter) and holds(t):
                described = dataclasses.replace(described, device=CUDA)
            return described

        patches.set(describer, "describe_tensor", describe_tensor)
        self._make_on_cuda(patches)

    def _make_on_cuda(self, patches: Patches) -> None:
        """In a script that never names a GPU, what a graph makes without saying where is on it too."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        dispatch, tensors = FakeTensorMode.dispatch, self.tensors

        @functools.wraps(dispatch)
        def dispatch_on_cuda(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            position = None if tensors.tracking else _device_of_factory(func)
            if position is not None and position < len(args):
                if str(args[position]) == "cpu":  # inductor_seeds(2, cpu), of dropout
                    args = (*args[:position], CUDA, *args[position + 1 :])
            elif position is not None and str((kwargs or {}).get("device") or CPU) == "cpu":
                kwargs = {**(kwargs or {}), "device": CUDA}
            return dispatch(mode, func, types, args, kwargs)

        patches.set(FakeTensorMode, "dispatch", dispatch_on_cuda)

    def _place_optimizer_state(self, patches: Patches) -> None:
        """Dynamo makes an optimizer's state while it traces, unseen by the redirect: it lies beside its parameter."""
        from torch._dynamo.variables.optimizer import OptimizerVariable

        map_sources = OptimizerVariable.map_sources_and_install_guards
        tensors = self.tensors

        @functools.wraps(map_sources)
        def map_sources_and_install_guards(variable: Any, *args: Any, **kwargs: Any) -> Any:
            for parameter, state in variable.value.state.items():
                if isinstance(parameter, torch.Tensor) and tensors.holds(parameter):
                    for value in state.values():
                        if isinstance(value, torch.Tensor) and value.dim():
                            tensors.place(value)
            return map_sources(variable, *args, **kwargs)

        patches.set(OptimizerVariable, "map_sources_and_install_guards", map_sources_and_install_guards)

    def _stop_before_loading(self, patches: Patches) -> None:
        from torch._inductor import compile_fx, cudagraph_utils, output_code
        from torch._inductor.codecache import PyCodeCache
        from torch._inductor.graph import GraphLowering

        if not hasattr(compile_fx, "_InProcessFxCompile"):
            raise moved("torch._inductor.compile_fx._InProcessFxCompile")
        compiler = compile_fx._InProcessFxCompile
        generate, load, to_module = (
            compiler.codegen_and_compile,
            PyCodeCache.load_by_key_path,
            GraphLowering.compile_to_module,
        )
        pending = self._pending

        @functools.wraps(generate)
        def codegen_and_compile(
            compiling: Any, gm: Any, example_inputs: Any, inputs_to_check: Any, graph_kwargs: Any
        ) -> Any:
            unify_devices(gm)
            before = getattr(pending, "graph", None)
            pending.graph = _Pending(graph=on_cpu(gm), id=self._name(graph_kwargs))
            try:
                with self.unmeasured.no_autotuning():
                    return generate(compiling, gm, example_inputs, inputs_to_check, graph_kwargs)
            finally:
                pending.graph = before

        @functools.wraps(to_module)
        def compile_to_module(lowering: Any) -> Any:
            before = getattr(pending, "loading", False)
            pending.loading = True
            try:
                return to_module(lowering)
            finally:
                pending.loading = before

        @functools.wraps(load)
        def load_by_key_path(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
            graph = getattr(pending, "graph", None)
            if graph is None or not getattr(pending, "loading", False):
                return load(key, path, *args, **kwargs)
            with open(path) as file:
                self.lowered.append(Lowered(id=graph.id, source=file.read()))
            return self._module(graph, path)

        patches.set(compiler, "codegen_and_compile", codegen_and_compile)
        patches.set(GraphLowering, "compile_to_module", compile_to_module)
        patches.set(PyCodeCache, "load_by_key_path", classmethod(load_by_key_path))

        def not_recorded(model: Any, *args: Any, **kwargs: Any) -> Any:
            return model

        # Inductor's checks have run and logged their reasons by then; what is left would record a real CUDA graph.
        for module in (compile_fx, output_code, cudagraph_utils):
            patches.set(module, "cudagraphify", not_recorded, optional=True)

    def _configure(self, patches: Patches) -> None:
        import torch._dynamo.config as dynamo
        import torch._functorch.config as functorch
        import torch._inductor.config as inductor

        wanted: list[tuple[Any, dict[str, Any]]] = [
            (inductor, {"fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1,
                        "cpp_wrapper": False}),
            (functorch, {"enable_autograd_cache": False, "strict_autograd_cache": False}),
            (dynamo, {"inline_torch_dispatch_torch_compile": False}),
        ]  # fmt: skip
        for module, values in wanted:
            known = {k: v for k, v in values.items() if hasattr(module, k)}
            patches.enter(module.patch(known))

    def _name(self, graph_kwargs: Any) -> str:
        from torch._guards import CompileContext

        name = graph_id(
            CompileContext.current_compile_id(),
            is_backward=bool(graph_kwargs.get("is_backward")),
            is_inference=bool(graph_kwargs.get("is_inference")),
        )
        number = self._ids[name] = self._ids.get(name, 0) + 1
        return name if number == 1 else f"{name}#{number}"

    def _module(self, pending: _Pending, path: str) -> Any:
        graph, name = pending.graph, pending.id
        placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        symbols = [_symbol(n) for n in placeholders]
        on_gpu = _outputs_on_gpu(graph)
        tensors, on_call, run, running = self.tensors, self._on_call, self._run, self._running

        def call(args: list[Any]) -> Any:
            inputs = list(args)
            args.clear()
            running.depth = getattr(running, "depth", 0) + 1
            try:
                outputs = run(graph, inputs)
            finally:
                running.depth -= 1
            for output, gpu in zip(outputs, on_gpu, strict=True):
                if isinstance(output, torch.Tensor):
                    tensors.place(output, on_gpu=gpu)
            values = {s: v for s, v in zip(symbols, inputs, strict=False) if s is not None and isinstance(v, int)}
            on_call(name, values, inputs, outputs)
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]
        runner = types.SimpleNamespace(partitions=[], recursively_apply_fns=lambda functions: None, call=call)
        return types.SimpleNamespace(call=call, runner=runner, __file__=path)


@functools.cache
def _unseen_by_dynamo() -> None:
    """After a graph break Dynamo looks at every Python frame that runs: it must not trace this package's kernels."""
    from torch._dynamo import trace_rules

    for name in ("attention", "cuda_composites", "eager_autocast", "library_kernels"):
        trace_rules.add(f"fusionaudit.capture.{name}")


@functools.cache
def _device_of_factory(func: Any) -> int | None:
    """Where the device stands among the arguments of an op that makes a tensor from no tensor; ``None`` for others."""
    schema = getattr(func, "_schema", None)
    if schema is None or any("Tensor" in str(a.type) for a in schema.arguments):
        return None
    return next((i for i, a in enumerate(schema.arguments) if a.name == "device"), None)


RunGraph = Callable[[torch.fx.GraphModule, list[Any]], Sequence[Any]]
"""Runs a graph on its inputs and gives its outputs."""


def _interpret(graph: torch.fx.GraphModule, inputs: list[Any]) -> Sequence[Any]:
    """The graph on the CPU, unseen by the recorder."""
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        outputs: Sequence[Any] = graph.forward(*inputs)
    return outputs


def _only_shapes(without_values: WithoutValues) -> RunGraph:
    """Gives a graph's outputs without their values: views of inputs are views, mutations do nothing."""

    class Interpreter(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            self.on_host = _is_host_work(n)
            return super().run_node(n)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            target = originals.get(target, target)
            if isinstance(target, torch._ops.OpOverload):
                return without_values.run(compute, target, args, kwargs, on_host=self.on_host)
            return super().call_function(target, args, kwargs)

    def compute(op: Any, args: Any, kwargs: Any) -> Any:
        return equivalents.get(op, op)(*args, **kwargs)

    equivalents = cpu_equivalents()
    originals = {run: op for op, run in equivalents.items()}

    def run(graph: torch.fx.GraphModule, inputs: list[Any]) -> Sequence[Any]:
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            outputs: Sequence[Any] = Interpreter(graph).run(*inputs)
        return outputs

    return run


def _is_host_work(node: torch.fx.Node) -> bool:
    """True where the op reads and makes CPU tensors only: those have values also in a ``shapes_only`` audit."""
    fakes = [_value(n) for n in (node, *node.all_input_nodes)]
    tensors = [f for f in fakes if isinstance(f, torch.Tensor)]
    return bool(tensors) and all(t.device.type == "cpu" for t in tensors)


def _value(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def _symbol(node: torch.fx.Node) -> str | None:
    """The name of the symbol that a placeholder brings (``s0``)."""
    value = _value(node)
    return str(value) if isinstance(value, torch.SymInt) else None


def _outputs_on_gpu(graph: torch.fx.GraphModule) -> list[bool]:
    output = next(n for n in reversed(list(graph.graph.nodes)) if n.op == "output")
    flags = []
    for value in output.args[0]:
        fake = _value(value) if isinstance(value, torch.fx.Node) else None
        flags.append(not isinstance(fake, torch.Tensor) or fake.device.type != "cpu")
    return flags


def unify_devices(gm: torch.fx.GraphModule) -> None:
    """Make the ``device`` arguments of factory calls say what their fake result says (a plain CPU script: CUDA)."""
    for node in gm.graph.nodes:
        fake = _value(node)
        named = node.kwargs.get("device") if node.op == "call_function" else None
        if named is not None and isinstance(fake, torch.Tensor) and fake.device.type != torch.device(named).type:
            node.kwargs = {**node.kwargs, "device": fake.device}


def on_cpu(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of the graph whose devices are the CPU and whose GPU-only ops have been replaced."""
    graph = copy.deepcopy(gm)
    replacements = cpu_equivalents()
    for module in graph.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            node.args = torch.fx.node.map_aggregate(node.args, _host)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _host)
            if node.op == "call_function" and node.target in replacements:
                node.target = replacements[node.target]
        module.recompile()
    return graph


def _host(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) else value

"""What the output code's module defines besides its ``call`` function: kernels, partitions, hints of the inputs."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fusionaudit.inductor.expressions import dotted, evaluate, integers
from fusionaudit.inductor.wrapper_values import Buffer, WrapperValue


@dataclass
class Definitions:
    """What the module defines besides ``call``: kernels by variable name, C++ kernels, functions, input hints."""

    triton: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    multi: dict[str, list[str]] = field(default_factory=dict)
    host: set[str] = field(default_factory=set)
    other: set[str] = field(default_factory=set)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    call: ast.FunctionDef | None = None
    hints: dict[str, WrapperValue] = field(default_factory=dict)


def read_definitions(tree: ast.Module) -> Definitions:
    """Everything that the wrapper module defines at its top level."""
    found = Definitions()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
            _kernel_definition(found, node.targets[0].id, node.value)
        elif isinstance(node, ast.FunctionDef):
            found.functions[node.name] = node
            if node.name == "call":
                found.call = node
            elif node.name == "get_args" or (node.name == "benchmark_compiled_module" and not found.hints):
                found.hints = _hints(node) or found.hints
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "call":
                    found.call = inner
    return found


def _kernel_definition(found: Definitions, name: str, value: ast.Call) -> None:
    function = dotted(value.func)
    if not function.startswith("async_compile."):
        return
    how = function.split(".", 1)[1]
    texts = [a.value for a in value.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if how == "triton" and len(texts) >= 2:
        found.triton[name] = (texts[0], texts[1], value.lineno)
    elif how == "multi_kernel" and len(value.args) > 1 and isinstance(value.args[1], ast.List):
        found.multi[name] = [e.id for e in value.args[1].elts if isinstance(e, ast.Name)]
    elif how.startswith("cpp"):
        found.host.add(name)
    else:
        found.other.add(name)


def _hints(function: ast.FunctionDef) -> dict[str, WrapperValue]:
    """Inputs with the sizes that Inductor saw, from ``get_args``.

    ``rand_strided(shape, strides, ...)``, or since torch 2.13 ``torch.as_strided(_shared_storage_9, shape, strides)``.
    """
    out: dict[str, WrapperValue] = {}
    for node in function.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        made = dotted(value.func).rsplit(".", 1)[-1] if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Call) and made in ("rand_strided", "as_strided") and len(value.args) > 1:
            keywords = {k.arg: k.value for k in value.keywords}
            sizes = value.args[:2] if made == "rand_strided" else value.args[1:3]
            base = out.get(dotted(value.args[0]))
            device = keywords.get("device")
            text = str(device.value) if isinstance(device, ast.Constant) else "cuda"
            out[name] = Buffer(
                name=name,
                storage=name,
                shape=integers(sizes[0], {}),
                strides=integers(sizes[-1], {}),
                dtype=base.dtype if isinstance(base, Buffer) else dtype_name(keywords.get("dtype")),
                device=base.device if isinstance(base, Buffer) else text.split(":")[0],
            )
        else:
            out[name] = evaluate(value, {})
    return out


def dtype_name(node: ast.expr | None) -> str | None:
    """``float32`` for the expression ``torch.float32``; ``None`` for anything else."""
    text = dotted(node) if node is not None else ""
    return text.removeprefix("torch.") if text.startswith("torch.") else None

"""The layout holds: imports go one way, light commands stay light, nothing parsed is ever executed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fusionaudit"
LAYERS = [
    {"errors", "tensors", "figures", "files", "findings", "device", "__init__"},
    {"capture"},
    {"trace", "inductor"},
    {"program"},
    {"config", "rules", "suppressions"},
    {"report", "reference_kernels", "verify", "store"}
    | {"data_sizes", "groups", "grouping", "compiled_by", "baseline", "matching", "lost_edges", "diff", "diff_formats"}
    | {"explain", "limits", "outcomes", "check", "expectations"},
    {"pipeline", "gate", "sweep"},
    {"cli", "cli_errors", "cli_guard", "cli_options", "pytest_plugin"},
    {"__main__"},
]


def layer(module: str) -> int:
    head = module.split(".")[1] if "." in module else "__init__"
    return next(i for i, names in enumerate(LAYERS) if head in names)


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """(module, at top level) of every fusionaudit import in the file."""
    tree = ast.parse(path.read_text())
    top = {id(n) for n in tree.body}
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fusionaudit"):
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("fusionaudit")]
        found += [(n, id(node) in top) for n in names]
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    module = "fusionaudit." + str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".")
    own = layer(module)
    if own == 0 and path.name == "__init__.py":
        return
    for imported, _ in imports_of(path):
        assert layer(imported) <= own, f"{module} imports {imported}, which is above it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.relative_to(PACKAGE).parts[0] in ("trace", "inductor", "program", "rules", "report")]
)
def test_readers_execute_nothing_and_need_no_torch(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"exec", "eval", "compile", "__import__"}, f"{path}:{node.lineno}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not {n.split(".")[0] for n in names} & {"torch", "pickle", "marshal", "importlib", "runpy"}, path


@pytest.mark.parametrize("command", ["import fusionaudit; fusionaudit.step", "import fusionaudit.cli"])
def test_light_imports_load_neither_torch_nor_pandas(command: str) -> None:
    check = f"import sys; {command}; print([m for m in ('torch', 'pandas', 'triton') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

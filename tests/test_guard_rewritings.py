"""Rewritings of a small program that change no kernel pass the gate, whichever of the two was locked; the twin of each
that does change one fails, whatever else was rewritten beside it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionaudit.baseline import read_lock, write_lock
from fusionaudit.check import CheckResult, check

PROGRAM = """\
import torch
import torch.nn.functional as F


def first(x, b):
    h = x * 2 + b
    h = F.gelu(h)
    return h


def second(h, b):
    left = h.sin() * b
    right = h.cos() * b
    return left + right


def step(x, w, b):
    h = first(x, b)
    y = second(h @ w, b)
    y = y - b
    return F.relu(y).sum(-1)
"""

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, at its import

TWICE = (
    "def times(h, b):\n    return h * b\n\n\n"
    "def second(h, b):\n    left = times(h.sin(), b)\n    right = times(h.cos(), b)\n"
)
SECOND = "def second(h, b):\n    left = h.sin() * b\n    right = h.cos() * b\n"
GELU = "    h = F.gelu(h)\n"

REWRITINGS: dict[str, tuple[str, str, str | tuple[str, str]]] = {
    "operands swapped": ("x * 2 + b", "b + x * 2", "b + x * 2 * x"),
    "operator as a function": ("x * 2 + b", "torch.add(torch.mul(x, 2), b)", "torch.add(torch.mul(x, 2), b).clone()"),
    "sum of the negative": ("y = y - b", "y = torch.add(y, b, alpha=-1)", "y = torch.add(y, -b)"),
    "function as a method": ("F.relu(y).sum(-1)", "y.relu().sum(-1)", "y.relu().cumsum(0).sum(-1)"),
    "method as a function": ("h.sin()", "torch.sin(h)", "torch.sin(h.t().contiguous()).t()"),
    "one line as two": (
        "    h = x * 2 + b\n", "    h = x * 2\n    h = h + b\n", ("    h = h + b\n", "    print(1)\n    h += b\n"),
    ),
    "two lines as one": (
        "    h = x * 2 + b\n" + GELU, "    h = F.gelu(x * 2 + b)\n", "    h = F.gelu(F.relu(x * 2 + b))\n",
    ),
    "a line as three": (
        "x * 2 + b", "(\n        x * 2\n        + b\n    )", ("        + b\n", "        + b\n        + b\n"),
    ),
    "variables renamed": (
        GELU + "    return h\n", "    hot = F.gelu(h)\n    return hot\n", "    hot = F.gelu(h)\n    return hot + h\n",
    ),
    "function renamed": ("second(", "mixed(", ("left + right", "left + right + b")),
    "two lines as calls of one function": (SECOND, TWICE, ("return h * b", "return h * b * b")),
    "a line in a loop": (
        GELU, "    for f in (F.gelu,):\n        h = f(h)\n", "    for f in (F.gelu, F.gelu):\n        h = f(h)\n",
    ),
    "a view that nothing reads": (
        GELU, "    flat = h.view(-1)\n" + GELU, "    flat = h.t().reshape(-1)\n    h = F.gelu(h) + flat[0]\n",
    ),
    "computed on a flat view": ("F.gelu(h)", "F.gelu(h.view(-1)).view_as(h)", "F.gelu(h.t().reshape(-1)).view_as(h)"),
    "spread by hand": ("x * 2 + b", "x * 2 + b.expand_as(x)", "x * 2 + b.expand_as(x).contiguous()"),
    "a view of the result": (GELU, GELU + "    h = h.view(h.shape)\n", GELU + "    h.mul_(3)\n"),
    "in place": ("y = y - b", "y -= b", "y -= b.sum().item()"),
    "lines in another order": (
        "    left = h.sin() * b\n    right = h.cos() * b\n", "    right = h.cos() * b\n    left = h.sin() * b\n",
        "    right = h.cos() * b\n    torch._dynamo.graph_break()\n    left = h.sin() * b\n",
    ),
    "another activation": ("F.relu(y)", "torch.tanh(y)", "torch.tanh(torch.tanh(y))"),
    "comments and blank lines": (
        GELU, "\n    # hot\n    h = F.gelu(h)  # as in the paper\n\n", GELU + "    h = h * 1.5\n",
    ),
}  # fmt: skip
"""What stands there, the same in other words, and more than that: in its place, or an edit of the rewritten program."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    import torch

    from fusionaudit.capture.function import capture_function
    from fusionaudit.pipeline import audit

    @functools.cache
    def of(text: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("program")
        file = Path(folder / "block.py")
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(folder.name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        given = torch.randn(64, 256), torch.randn(256, 256), torch.randn(256)
        capture_function(module.step, given, {}, target="h100", folder=folder / "capture")
        return audit(folder / "capture").document

    return of


SQUARE = """\
import torch

weight = torch.randn(256, 256, requires_grad=True)


@torch.compile
def norm(x):
    y = x @ weight
    mean = (y * y).mean(-1, keepdim=True)
    return y * torch.rsqrt(mean + 1e-6)


def step(x, w, b):
    norm(x).sum().backward()
"""


def checked(new: dict[str, Any], old: dict[str, Any]) -> CheckResult:
    return check(new, read_lock(write_lock(old)))


@pytest.mark.parametrize("name", REWRITINGS)
def test_other_words_for_the_same_kernels_pass(name: str, audited: Callable[[str], dict[str, Any]]) -> None:
    old, new, _ = REWRITINGS[name]
    assert old in PROGRAM
    before, after = audited(PROGRAM), audited(PROGRAM.replace(old, new))
    for result in (checked(after, before), checked(before, after)):
        assert (result.verdict, result.exit_code) == ("same", 0), "\n".join(result.lines)


@pytest.mark.parametrize("name", REWRITINGS)
def test_a_cost_beside_the_rewriting_fails(name: str, audited: Callable[[str], dict[str, Any]]) -> None:
    old, new, more = REWRITINGS[name]
    text = PROGRAM.replace(old, more) if isinstance(more, str) else PROGRAM.replace(old, new).replace(*more)
    result = checked(audited(text), audited(PROGRAM))
    assert result.exit_code == 1, "\n".join(result.lines)


def test_an_op_added_in_the_middle_names_the_two_that_it_parts(audited: Callable[[str], dict[str, Any]]) -> None:
    text = PROGRAM.replace("    return left + right", "    right = right.cumsum(0)\n    return left + right")
    (finding,) = checked(audited(text), audited(PROGRAM)).findings
    number = next(n for n, line in enumerate(text.splitlines(), start=1) if "cumsum" in line)
    assert f"block.py:{number} `right = right.cumsum(0)`" in finding.message
    ends = f"aten.mul (block.py:{number - 1}) -> aten.add (block.py:{number + 1})"
    way = "now f32[64,256] (65.5 kB) goes through memory and aten.cumsum between them"
    assert f"{ends} shared a kernel, {way}" in finding.message
    assert finding.message.endswith("(and 1 further change that follows from it)")


@pytest.mark.parametrize("form", ["y.square()", "y**2", "y.pow(2)"])
def test_a_square_in_other_words_is_told_as_an_edit_and_passes(
    form: str, audited: Callable[[str], dict[str, Any]]
) -> None:
    """The kernel has another product, and eager code's backward of a product is one kernel more than a square's."""
    before, after = audited(SQUARE), audited(SQUARE.replace("(y * y)", f"({form})"))
    for result in (checked(after, before), checked(before, after)):
        assert (result.verdict, result.exit_code) == ("same", 0), "\n".join(result.lines)
        (finding,) = result.findings
        assert finding.message.startswith("an edit at no cost at block.py:9 `mean = "), finding.message
        assert "took the place of" in finding.message


@pytest.mark.parametrize("form", ["y * y * y", "y.square().exp()", "y.double().square().float()", "y.cumsum(0) * y"])
def test_more_than_a_square_fails(form: str, audited: Callable[[str], dict[str, Any]]) -> None:
    result = checked(audited(SQUARE.replace("(y * y)", f"({form})")), audited(SQUARE))
    assert result.exit_code == 1, "\n".join(result.lines)
    assert "block.py:9 `mean = " in result.findings[0].message

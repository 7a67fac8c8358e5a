"""Gradients whose formulas copy under a dispatch mode: recorded as they run without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_capture_recorder import ops, record

_INDEX = torch.tensor([0, 3, 1, 3])

FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gather": lambda x: x.gather(1, _INDEX[:, None]),
    "index_select": lambda x: x.index_select(0, _INDEX),
    "index": lambda x: x[_INDEX],
    "max": lambda x: x.max(1)[0],
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(2, 1)[0],
    "cummax": lambda x: x.cummax(0)[0],
    "kthvalue": lambda x: x.kthvalue(2, 1)[0],
}
_ADDS = {"aten::" + n for n in ("scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_")}
_ADDS |= {"aten::index_put", "aten::_index_put_impl_"}


def _without_modes(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Counter[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        f(x).sum().backward()
    inside = lambda e: e.cpu_parent is not None and e.cpu_parent.name in _ADDS  # noqa: E731
    return Counter(e.name for e in profiled.events() if e.name in _ADDS and not inside(e))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_gradient_writes_into_its_zeros_as_without_a_recorder(tmp_path: Path, name: str) -> None:
    f = FORMULAS[name]
    alone, seen = (torch.arange(16.0).view(4, 4).requires_grad_() for _ in range(2))
    wanted = _without_modes(f, alone)
    records = ops(record(tmp_path, lambda _: f(seen).sum().backward()))
    names = [str(r["name"]) for r in records if r["phase"] == "backward"]
    made = Counter(n for n in ("aten::" + r.split(".")[1] for r in names) if n in _ADDS)
    assert made == wanted
    assert sum(made.values()) == 1
    assert seen.grad is not None
    assert alone.grad is not None
    assert torch.equal(seen.grad, alone.grad)


def test_what_the_user_scatters_in_a_backward_stays_a_copy(tmp_path: Path) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            zeros = torch.zeros_like(gradient)
            added = zeros.scatter_add(0, torch.arange(4), gradient)
            assert not zeros.any()
            return added * 2

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros_like(gradient)
        added = zeros.index_add(0, torch.arange(4), gradient)
        assert not zeros.any()
        return added

    def program(_: Any) -> None:
        x = torch.ones(4, requires_grad=True)
        y = Twice.apply(x)
        y.register_hook(hook)
        y.gather(0, torch.arange(4)).sum().backward()

    names = [r["name"] for r in ops(record(tmp_path, program))]
    assert "aten.scatter_add.default" in names
    assert "aten.index_add.default" in names
    assert "aten.scatter_add_.default" in names


def test_a_gradient_that_is_differentiated_again_stays_as_it_is(tmp_path: Path) -> None:
    def program(_: Any) -> None:
        x = torch.ones(4, 4, requires_grad=True)
        y = x.square().gather(1, _INDEX[:, None]).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.sum().backward()
        assert x.grad is not None
        assert x.grad.sum() == 8

    assert "aten.scatter_add.default" in [r["name"] for r in ops(record(tmp_path, program))]

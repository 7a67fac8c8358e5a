"""How people write what a library has as one call, and how they write the call: run by test_library_patterns.

``@named(call, ...)``: the function spells the call out and the finding stands at the line marked ``# here``.
``@silent``: it uses the call, so no finding names one. ``grad``: its inputs want gradients and backward runs.
``@loop(call)``: what it does with the gradients of ``PARAMETERS``. The functions are in ``spellings_*.py``.
"""

from __future__ import annotations

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES: dict[str, tuple[object, str | None, bool]] = {}
LOOPS: set[str] = set()


def named(call: str, *, grad: bool = False):
    def add(function):
        CASES[function.__name__] = (function, call, grad)
        return function

    return add


def silent(function=None, *, grad: bool = False):
    if function is None:
        return lambda f: silent(f, grad=grad)
    CASES[function.__name__] = (function, None, grad)
    return function


def loop(call: str):
    """What a function does with gradients that backward has just made."""

    def add(function):
        CASES[function.__name__] = (function, call, False)
        LOOPS.add(function.__name__)
        return function

    return add


B, H, N, D = 2, 4, 160, 64
WIDE = H * D


def rand(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def wants(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(t.detach().requires_grad_(torch.is_grad_enabled()) for t in tensors)


X, Y = rand(B * N, WIDE), rand(B * N, WIDE)
HALF = rand(B * N, WIDE, dtype=torch.bfloat16)
W, BIAS = rand(WIDE), rand(WIDE)
TARGET = torch.randint(0, WIDE, (B * N,), device=DEVICE)
Q, K, V = rand(B, H, N, D), rand(B, H, N, D), rand(B, H, N, D)
CAUSAL = torch.tril(torch.ones(N, N, device=DEVICE)).view(1, 1, N, N)
ADDED = torch.zeros(B, 1, 1, N, device=DEVICE)
UP, GATE = rand(WIDE, WIDE), rand(WIDE, WIDE)
DROP = nn.Dropout(0.1)

PARAMETERS = [rand(64, 64).requires_grad_() for _ in range(9)]
FIRST, SECOND = [torch.zeros_like(p) for p in PARAMETERS], [torch.zeros_like(p) for p in PARAMETERS]
AVERAGES = [p.detach().clone() for p in PARAMETERS]


def gradients() -> None:
    with torch.enable_grad():
        for p in PARAMETERS:
            p.grad = None
        sum((X[:, :64] @ p).square().sum() for p in PARAMETERS).backward()


def main() -> None:
    """Run every function."""
    for function, _, grad in CASES.values():
        if function.__name__ in LOOPS:
            gradients()
        with torch.set_grad_enabled(grad):
            made = function()
            if grad:
                made.sum().backward()

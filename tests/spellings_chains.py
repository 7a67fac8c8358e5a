"""Patterns of a library with elementwise work around them (see library_spellings)."""

from __future__ import annotations

import torch
from library_spellings import BIAS, TARGET, UP, X, Y, named, wants

SILU, SOFTMAX = "torch.nn.functional.silu(x)", "torch.softmax(x, dim)"


@named(SILU)
def silu_and_a_factor():
    return X * torch.sigmoid(X) * 2  # here


@named(SILU)
def silu_of_a_sum():
    h = X + Y
    return (h * torch.sigmoid(h) + 1).relu()  # here


@named(SILU)
def silu_that_is_summed():
    return (X * torch.sigmoid(X)).sum(-1)  # here


@named(SOFTMAX)
def softmax_with_a_temperature():
    z = X / 0.7
    e = torch.exp(z - z.amax(-1, keepdim=True))  # here
    return e / e.sum(-1, keepdim=True)


@named(SILU)
def silu_twice_in_a_chain():
    return (X * torch.sigmoid(X) * 2).sigmoid().mul(X * torch.sigmoid(X) * 2)  # here


@named(SILU, grad=True)
def silu_and_a_factor_that_is_trained():
    (x,) = wants(X)
    return x * torch.sigmoid(x) * 2  # here


@named(SILU)
def silu_behind_a_product():
    h = X @ UP
    return h * torch.sigmoid(h) * 2  # here


@named("two findings")
def silu_behind_a_bias():
    h = X @ UP + BIAS
    return h * torch.sigmoid(h) * 2


@named("torch.nn.functional.cross_entropy(logits, target")
def entropy_with_a_temperature():
    z = X / 0.7
    logp = torch.log_softmax(z, dim=-1)  # here
    return -logp.gather(-1, TARGET.unsqueeze(1)).mean()

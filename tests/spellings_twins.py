"""What only looks like a library's function on a few numbers (see library_spellings)."""

from __future__ import annotations

import torch
from library_spellings import HALF, W, X, named, silent
from torch.nn import functional as F  # noqa: N812

# --- limits that small numbers do not reach


@silent
def silu_with_a_clamped_gate():
    return X * torch.sigmoid(X.clamp(-5, 5)), X * torch.sigmoid(X.clamp(max=8.0)), X * torch.sigmoid(X.clamp(min=-4))


@silent
def silu_of_clamped_values():
    c = X.clamp(-10, 10)
    return X * torch.sigmoid(c), F.silu(c), torch.sigmoid(X.clamp(-10, 10)), torch.sigmoid(X.clamp(-30, 30))


@silent
def gelu_with_a_clamped_inside():
    return X * 0.5 * (1.0 + torch.erf((X / 2**0.5).clamp(-2.5, 2.5))), F.gelu(X.clamp(-10, 10))


@silent
def half_a_hardswish():
    return X * (X + 3).clamp(min=0) / 6, X * (X + 3).clamp(max=6) / 6, X * (X + 3).clamp(-10, 10) / 6


@silent
def softplus_with_a_lower_end():
    return torch.log(torch.exp(X) + 1.001), F.softplus(X, beta=2)


@silent
def logarithm_of_a_sigmoid_and_an_epsilon():
    """It ends at -18, the call does not."""
    return torch.log(torch.sigmoid(X) + 1e-8)


@silent
def leaky_units():
    return F.leaky_relu(X, 0.99) * torch.sigmoid(X), F.relu6(X) * torch.sigmoid(X), F.hardtanh(X) * X.sigmoid()


@silent
def a_norm_of_at_least_one():
    return X * torch.rsqrt(X.square().mean(-1, keepdim=True).clamp(min=1.0)) * W


@silent
def a_softmax_with_limits():
    low, capped = X.clamp(min=-10), 50 * torch.tanh(X / 50)
    return torch.softmax(low, -1), torch.softmax(capped, -1), torch.softmax(X.clamp(-90, 90), 0)


# --- what people write against overflow is the same function


@named("torch.nn.functional.softplus(x)")
def softplus_that_is_safe():
    return X.relu() + torch.log1p(torch.exp(-X.abs()))  # here


@named("torch.nn.functional.silu(x)")
def silu_in_half_precision():
    return HALF / (1 + torch.exp(-HALF))  # here


@named("torch.nn.functional.hardswish(x)")
def hardswish_by_hand():
    return X * (X + 3).clamp(0, 6) / 6  # here


@named("torch.nn.functional.mish(x)")
def mish_by_hand():
    return X * torch.tanh(torch.log1p(torch.exp(X)))  # here

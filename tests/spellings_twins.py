"""What only looks like a library's function on a few numbers (see library_spellings)."""

from __future__ import annotations

import torch
from library_spellings import DEVICE, HALF, TARGET, WIDE, D, N, Q, W, X, Y, named, rand, silent
from torch import nn
from torch.nn import functional as F  # noqa: N812

COS, SIN = rand(N, D), rand(N, D)

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


# --- noise that is no dropout


@silent
def gaussian_noise():
    noise = torch.randn_like(X) * 0.1
    return X * (1 + noise), X * torch.empty_like(X).normal_(1.0, 0.1), X * (torch.randn_like(X) / 4).add(1)


@silent
def a_gaussian_mask():
    return (
        X * (torch.randn_like(X) > 0.1) / 0.9,
        X * (torch.randn_like(X) > 0.5).float() * 2,
        X * torch.randn_like(X).lt(0.9) / 0.9,
    )


@silent
def noise_of_a_scale():
    return X * torch.randn_like(X).mul(0.1), X * torch.rand_like(X).div(0.5), X + torch.randn_like(X) * 0.1


@silent
def noise_that_is_compared_with_data():
    return X * (torch.rand_like(X) < X).float() / 0.9, X * (torch.rand_like(X) < torch.rand_like(X)) / 0.5


@silent
def a_mask_scaled_to_another_share():
    keep = (torch.rand_like(X) > 0.1).float() / 0.5
    return X * keep, (X / 0.5) * (torch.rand_like(X) > 0.1), X * torch.empty_like(X).bernoulli_(0.9).mul_(3.0)


@silent
def what_is_left_out_is_kept():
    return X * (torch.rand_like(X) < 0.1) / 0.9


@silent
def exponential_noise():
    return X * (torch.empty_like(X).exponential_() > 0.1).float() / 0.9, X * torch.poisson(X.abs()).gt(0.5) / 0.5


# --- turns that are no rotation


@silent
def halves_that_are_not_turned():
    a, b = Q.chunk(2, -1)
    c, s = COS[:, : D // 2], SIN[:, : D // 2]
    return (
        torch.cat((a * c - b * s, a * c + b * s), -1),
        torch.cat((b * s - a * c, b * c + a * s), -1),
        torch.cat((b * c + a * s, a * c - b * s), -1),
        torch.cat((a * c - b * s, b * s + a * c), -1),
        torch.stack((a * c - b * c, b * s + a * s), -1),
    )


@named("rotary kernel")
def halves_turned_the_other_way():
    a, b = Q.chunk(2, -1)
    c, s = COS[:, : D // 2], SIN[:, : D // 2]
    return torch.cat((a * c + b * s, b * c - a * s), -1)  # here


@silent
def noise_that_leaves_other_numbers():
    keep = torch.rand_like(X) > 0.1
    return torch.where(keep, X, 1.0) / 0.9, torch.where(torch.rand_like(X) > 0.1, 0.0, X) / 0.9


@named("torch.nn.functional.dropout(x, p)")
def dropout_by_where():
    return torch.where(torch.rand_like(X) > 0.1, X, 0.0) / 0.9  # here


@named("torch.nn.functional.dropout(x, p)")
def dropout_of_what_is_scaled():
    return (X / 0.9) * (torch.rand_like(X) > 0.1)  # here


@named("torch.nn.functional.dropout(x, p)")
def dropout_by_a_tensor_of_probabilities():
    return X * torch.bernoulli(torch.full_like(X, 0.9)) / 0.9  # here


# --- targets that are no class, and those that are smoothed


@silent
def weights_of_classes():
    logp, weights = F.log_softmax(X, 1), torch.ones_like(X)
    return -(logp * weights.scatter_(1, TARGET[:, None], 2.0)).sum(1).mean()


@silent
def targets_on_data():
    logp = F.log_softmax(X, 1)
    return -(logp * Y.scatter(1, TARGET[:, None], 1.0)).sum(1).mean()


@named("label_smoothing=0.1004)")
def smoothed_labels_of_a_scatter():
    """fairseq and the Annotated Transformer share the rest among the other classes."""
    logp = F.log_softmax(X, 1)  # here
    return -(logp * torch.full_like(X, 0.1 / (WIDE - 1)).scatter_(1, TARGET[:, None], 0.9)).sum(1).mean()


@named("label_smoothing=0.1)")
def smoothed_labels_of_one_hot():
    logp = F.log_softmax(X, 1)  # here
    return -(logp * (F.one_hot(TARGET, WIDE).float() * 0.9 + 0.1 / WIDE)).sum(1).mean()


@named("torch.nn.functional.cross_entropy(logits, target)")
def labels_of_a_scatter():
    logp = F.log_softmax(X, 1)  # here
    return -(logp * torch.zeros_like(X).scatter_(1, TARGET[:, None], 1)).sum(1).mean()


# --- numbers that are learned or given


BETA, SCALE = nn.Parameter(torch.ones((), device=DEVICE)), torch.tensor(0.5, device=DEVICE)


@silent
def swish_of_a_learned_beta():
    return X * torch.sigmoid(BETA * X)


@silent
def swish_of_a_given_beta():
    return X * torch.sigmoid(X * SCALE)


@silent
def gelu_of_a_learned_slope():
    return X * 0.5 * (1 + torch.erf(X * BETA)), X * BETA * (1 + torch.erf(X / 2**0.5))

"""Attention with more than a scale and a mask (see library_spellings)."""

from __future__ import annotations

import math

import torch
from library_spellings import ADDED, CAUSAL, DEVICE, B, D, H, K, N, Q, V, named, rand, silent, wants
from torch import nn
from torch.nn import functional as F  # noqa: N812

SDPA = "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
SCALED = "torch.nn.functional.scaled_dot_product_attention(q * scale, k, v, scale=1)"
TEMPERATURE = torch.zeros((), device=DEVICE)
LOGIT_SCALE = rand(H, 1, 1)
TABLE, INDEX = rand((2 * N - 1), H), torch.arange(N, device=DEVICE)[:, None] - torch.arange(N, device=DEVICE) + N - 1
BUCKETS = nn.Embedding(32, H).to(DEVICE)
PAIR, TO_BIAS = rand(N, N, 16), nn.Linear(16, H, bias=False).to(DEVICE)
SLOPES = rand(H, 1, 1)
WINDOWS = rand(B, N, N)


@named(SCALED)
def learned_scales_of_heads():
    attn = F.normalize(Q, dim=-1) @ F.normalize(K, dim=-1).transpose(-2, -1)  # here
    attn = attn * LOGIT_SCALE.clamp(max=math.log(100.0)).exp()
    return attn.softmax(dim=-1) @ V


@named(SCALED)
def a_learned_temperature():
    s = (Q @ K.transpose(-2, -1)) * TEMPERATURE.exp()  # here
    return s.softmax(dim=-1) @ V


@named(SDPA)
def dropout_of_weights_by_hand():
    w = torch.softmax(Q @ K.transpose(-2, -1) * D**-0.5, dim=-1)  # here
    keep = (torch.rand_like(w) > 0.1).float()
    return (w * keep / 0.9) @ V


@named(SDPA, grad=True)
def dropout_of_weights_by_bernoulli():
    q, k, v = wants(Q, K, V)
    w = torch.softmax(q @ k.transpose(-2, -1) * D**-0.5, dim=-1)  # here
    return (w * torch.empty_like(w).bernoulli_(0.9).div_(0.9)) @ v


@named(SDPA)
def bias_of_relative_positions():
    attn = (Q * D**-0.5) @ K.transpose(-2, -1)  # here
    bias = TABLE[INDEX.view(-1)].view(N, N, -1).permute(2, 0, 1).contiguous()
    attn = attn + bias.unsqueeze(0)
    return attn.softmax(dim=-1) @ V


@named(SDPA)
def bias_of_buckets():
    scores = torch.matmul(Q, K.transpose(3, 2))  # here
    scores += BUCKETS(INDEX % 32).permute([2, 0, 1]).unsqueeze(0) + ADDED
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), V)


@named(SDPA)
def bias_of_windows():
    attn = Q @ K.transpose(-2, -1) * D**-0.5  # here
    attn = attn.view(1, B, H, N, N) + WINDOWS.unsqueeze(1).unsqueeze(0)
    return attn.view(-1, H, N, N).softmax(-1) @ V


@named(SDPA)
def bias_of_distances():
    scores = Q @ K.transpose(-2, -1) / math.sqrt(D)  # here
    scores = scores + SLOPES * (INDEX - N).float()
    return torch.softmax(scores.masked_fill(CAUSAL == 0, -1e9), -1) @ V


@named(SDPA)
def bias_of_pairs():
    """AlphaFold's: a projection of what is known of each pair, here for one sequence."""
    q, k, v = Q[:1], K[:1], V[:1]
    bias = TO_BIAS(PAIR).permute(2, 0, 1).unsqueeze(0)
    scores = (q * D**-0.5) @ k.transpose(-2, -1) + bias  # here
    return torch.softmax(scores, dim=-1) @ v


FLEX = "flex_attention(q, k, v, score_mod), under torch.compile"


@named(FLEX)
def capped_scores():
    """Gemma's."""
    s = torch.tanh(Q @ K.transpose(-2, -1) * D**-0.5 / 30) * 30  # here
    return torch.softmax(s + ADDED, dim=-1) @ V


@named(FLEX, grad=True)
def clamped_scores():
    q, k, v = wants(Q, K, V)
    s = (q @ k.transpose(-2, -1) * D**-0.5).clamp(-10, 10)  # here
    return torch.softmax(s, -1) @ v


@silent
def capped_scores_and_dropout():
    """FlexAttention has none."""
    s = torch.tanh(Q @ K.transpose(-2, -1) / 30) * 30
    return F.dropout(torch.softmax(s, -1), 0.1) @ V


# --- what SDPA cannot compute, and what it is not told


@silent
def scales_of_keys():
    """One for each pair, one for each key of a softmax over keys."""
    s = Q @ K.transpose(-2, -1)
    return torch.softmax(s * rand(N, N), -1) @ V, torch.softmax((Q @ K.transpose(-2, -1)) * rand(1, N), -1) @ V


@silent
def scales_after_a_bias():
    """The bias is scaled as well."""
    s = Q @ K.transpose(-2, -1) + TABLE[INDEX].permute(2, 0, 1)
    return torch.softmax(s * LOGIT_SCALE, -1) @ V


@named("torch.nn.functional.dropout(x, p)")
def dropout_before_the_softmax():
    s = Q @ K.transpose(-2, -1) * D**-0.5
    return torch.softmax(s * (torch.rand_like(s) > 0.1) / 0.9, -1) @ V  # here


@silent
def weights_that_are_dropped_and_given_back():
    w = torch.softmax(Q @ K.transpose(-2, -1) * D**-0.5, dim=-1)
    w = w * (torch.rand(B, H, N, N, device=DEVICE) > 0.1)
    return w @ V, w


@silent
def heads_that_are_mixed():
    s = torch.einsum("bhij,hg->bgij", Q @ K.transpose(-2, -1), rand(H, H))
    return torch.softmax(s, -1) @ V


@silent
def sigmoids_and_sums_that_are_no_softmax():
    s = Q @ K.transpose(-2, -1) * D**-0.5
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return torch.sigmoid(Q @ K.transpose(-2, -1)) @ V, (e / (1 + e.sum(-1, keepdim=True))) @ V

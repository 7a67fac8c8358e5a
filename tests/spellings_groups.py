"""Spellings of gated units, rotary embeddings, dropout, attention, and what only looks like one of them."""

from __future__ import annotations

import math

import torch
from library_spellings import (
    ADDED,
    CAUSAL,
    DEVICE,
    DROP,
    GATE,
    TARGET,
    UP,
    B,
    D,
    H,
    K,
    N,
    Q,
    V,
    X,
    Y,
    named,
    rand,
    silent,
    wants,
)
from torch import nn
from torch.nn import functional as F  # noqa: N812

# --- SwiGLU and its kin


@named("silu-and-mul", grad=True)
def swiglu_llama():
    (x,) = wants(X)
    return F.silu(x @ GATE) * (x @ UP)  # here


@named("silu-and-mul")
def swiglu_chunk():
    gate, up = (X @ torch.cat((GATE, UP), 1)).chunk(2, dim=-1)
    return F.silu(gate) * up  # here


@named("silu-and-mul")
def swiglu_by_hand():
    gate = X @ GATE
    return (gate * gate.sigmoid()) * (X @ UP)  # here


@named("gelu-and-mul")
def geglu_diffusers():
    hidden, gate = (X @ torch.cat((GATE, UP), 1)).chunk(2, dim=-1)
    return hidden * F.gelu(gate)  # here


@named("torch.nn.functional.glu(x, dim)")
def glu_by_hand():
    a, b = X.chunk(2, dim=-1)
    return a * torch.sigmoid(b)  # here


@torch.library.custom_op("spellings::silu_and_mul", mutates_args=())
def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


@silent
def swiglu_call():
    return silu_and_mul(X @ GATE, X @ UP), F.glu(X, -1)


# --- rotary embeddings

COS, SIN = rand(N, D), rand(N, D)
FREQS = torch.polar(torch.ones(N, D // 2, device=DEVICE), rand(N, D // 2))


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


@named("rotary kernel")
def rope_rotate_half():
    return (Q * COS) + (torch.cat((-Q[..., D // 2 :], Q[..., : D // 2]), dim=-1) * SIN)  # here


@named("rotary kernel", grad=True)
def rope_rotate_half_chunk():
    (q,) = wants(Q)
    x1, x2 = q.chunk(2, dim=-1)
    return q * COS + torch.cat([-x2, x1], -1) * SIN  # here


@named("rotary kernel")
def rope_complex():
    x = torch.view_as_complex(Q.bfloat16().float().reshape(B, H, N, D // 2, 2))  # here
    return torch.view_as_real(x * FREQS).flatten(3).bfloat16()


@named("rotary kernel")
def rope_interleaved():
    x0, x1 = Q[..., ::2], Q[..., 1::2]
    c, s = COS[:, ::2], SIN[:, ::2]
    return torch.stack([x0 * c - x1 * s, x1 * c + x0 * s], dim=-1).flatten(-2)  # here


@named("rotary kernel")
def rope_halves():
    x1, x2 = torch.chunk(Q, 2, dim=-1)
    c, s = COS[:, : D // 2], SIN[:, : D // 2]
    return torch.cat((x1 * c - x2 * s, x2 * c + x1 * s), dim=-1)  # here


@torch.library.custom_op("spellings::rotary", mutates_args=())
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return x * cos + rotate_half(x) * sin


@silent
def rope_call():
    return rotary(Q, COS, SIN)


# --- dropout and residual


@named("dropout-add", grad=True)
def dropout_residual():
    x, y = wants(X, Y)
    return x + F.dropout(y, 0.1, training=True)  # here


@named("dropout-add")
def dropout_residual_module():
    out = DROP(Y)  # here
    return out + X


@named("dropout-add")
def dropout_residual_by_hand():
    keep = (torch.rand_like(Y) > 0.1).float()  # here
    return X + Y * keep / 0.9


@named("torch.nn.functional.dropout(x, p)")
def dropout_by_hand():
    mask = torch.empty_like(X).bernoulli_(0.9)  # here
    return X * mask.div_(0.9)


@named("torch.nn.functional.dropout(x, p)")
def dropout_by_what_is_left_out():
    drop = torch.rand_like(X) < 0.1  # here
    return X * ~drop / 0.9


@torch.library.custom_op("spellings::dropout_add", mutates_args=())
def dropout_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + F.dropout(y, 0.1, training=True)


@silent
def dropout_call():
    return dropout_add(X, Y), F.dropout(X, 0.1), X + F.dropout(Y, 0.1, training=False)


# --- attention

SDPA = "torch.nn.functional.scaled_dot_product_attention(q, k, v)"


@named(SDPA, grad=True)
def attention_matmul():
    q, k, v = wants(Q, K, V)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D)  # here
    return torch.matmul(F.softmax(scores, dim=-1), v)


@named(SDPA, grad=True)
def attention_nanogpt():
    q, k, v = wants(Q, K, V)
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))  # here
    att = att.masked_fill(CAUSAL == 0, float("-inf"))
    att = F.softmax(att, dim=-1)
    att = DROP(att)
    return att @ v


@named(SDPA)
def attention_bert():
    scores = torch.matmul(Q, K.transpose(-1, -2))  # here
    scores = scores / math.sqrt(D)
    scores = scores + ADDED
    return torch.matmul(nn.functional.softmax(scores, dim=-1), V)


@named(SDPA)
def attention_einsum():
    sim = torch.einsum("bhid,bhjd->bhij", Q * D**-0.5, K)  # here
    sim = sim - sim.amax(dim=-1, keepdim=True).detach()
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), V)


@named(SDPA)
def attention_bmm():
    q, k, v = (t.flatten(0, 1) for t in (Q, K, V))
    weights = torch.bmm(q * D**-0.5, k.transpose(1, 2))  # here
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).type_as(q)
    return torch.bmm(weights, v)


@named(SDPA)
def attention_baddbmm():
    q, k, v = (t.flatten(0, 1) for t in (Q, K, V))
    scores = torch.baddbmm(rand(B * H, N, N), q, k.transpose(-1, -2), alpha=0.125)  # here
    return torch.bmm(scores.softmax(dim=-1), v)


@named(SDPA)
def attention_softmax_by_hand():
    s = Q @ K.transpose(-2, -1) * D**-0.5  # here
    s = torch.where(CAUSAL > 0, s, float("-inf"))
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)) @ V


@named(SDPA)
def attention_upcast():
    q, k, v = (t.bfloat16() for t in (Q, K, V))
    w = torch.matmul(q, k.transpose(2, 3)) * D**-0.5  # here
    w = nn.functional.softmax(w + ADDED.bfloat16(), dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(w, v)


@named(SDPA)
def attention_vae():
    q, k, v = (t[:, 0] for t in (Q, K, V))
    w = torch.bmm(q, k.permute(0, 2, 1)) * D**-0.5  # here
    w = F.softmax(w, dim=2).permute(0, 2, 1)
    return torch.bmm(v.permute(0, 2, 1), w)


@silent(grad=True)
def attention_call():
    q, k, v = wants(Q, K, V)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) + F.scaled_dot_product_attention(q, k, v, CAUSAL > 0)


@silent
def attention_over_queries():
    """Slot attention normalises over the queries, which SDPA does not."""
    w = torch.softmax(Q @ K.transpose(-2, -1), dim=-2)
    return w @ V


@silent
def attention_weights_are_asked_for():
    w = torch.softmax(Q @ K.transpose(-2, -1), dim=-1)
    return w @ V, w.mean(1) @ K[:, 0]


# --- what only looks like one of them


@silent
def soft_targets():
    """The library's form for probabilities is the same kernels."""
    return -(torch.softmax(Y, 1) * F.log_softmax(X, 1)).sum(1).mean()


@silent
def a_policy_gradient():
    return -(F.log_softmax(X, 1).gather(1, TARGET[:, None]).squeeze(1) * Y[:, 0]).mean()


@silent
def an_attention_with_two_products():
    w = torch.softmax(Q @ K.transpose(-2, -1) + Q @ V.transpose(-2, -1), dim=-1)
    return w @ V


# --- what SDPA cannot compute

SQUARE = rand(B, H, N, N)


@named(SDPA)
def an_attention_masked_by_a_tensor():
    s = Q @ K.transpose(-2, -1) * D**-0.5  # here
    return torch.softmax(torch.where(CAUSAL > 0, s, torch.full((), -1e9, device=DEVICE)), -1) @ V


@silent
def scores_masked_by_zeros():
    s = torch.where(CAUSAL > 0, (Q @ K.transpose(-2, -1) * D**-0.5), 0.0)
    return torch.softmax(s, -1) @ V


@silent
def scores_filled_with_zeros():
    return torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5).masked_fill(CAUSAL == 0, 0.0), -1) @ V


@silent
def gated_scores():
    return torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5) * SQUARE, -1) @ V


@silent
def positive_scores():
    return torch.softmax(torch.maximum((Q @ K.transpose(-2, -1) * D**-0.5), torch.zeros((), device=DEVICE)), -1) @ V


@silent
def a_bias_after_the_softmax():
    return (torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5), -1) + SQUARE) @ V


@silent
def a_mask_after_the_softmax():
    return torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5), -1).masked_fill(CAUSAL == 0, 0.0) @ V


@silent
def a_gate_after_the_softmax():
    return (torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5), -1) * SQUARE) @ V


@silent
def clamped_weights():
    return torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5), -1).clamp(min=0.01) @ V


@silent
def a_differential_attention():
    a = torch.softmax((Q @ K.transpose(-2, -1) * D**-0.5), -1)
    b = torch.softmax((Q @ V.transpose(-2, -1)) * D**-0.5, -1)
    return (a - 0.3 * b) @ V


# --- what is no gated unit, no rotary embedding and no dropout


@silent
def glu_of_the_wrong_parts():
    a, _, c = X[:, :192].chunk(3, -1)
    return a * torch.sigmoid(c), X[..., ::2] * torch.sigmoid(X[..., 1::2])


@silent
def a_phase():
    return Q.to(torch.complex64) * torch.polar(COS, SIN)


@silent
def halves_in_their_places():
    a, b = Q.chunk(2, -1)
    return Q * COS + torch.cat((a, -b), -1) * SIN


@silent
def masked_noise():
    return X.masked_fill(torch.rand_like(X) < 0.15, -100.0) * 2.0


@silent
def a_mask_and_another_factor():
    return X * (torch.rand_like(X) > 0.1) * 0.5

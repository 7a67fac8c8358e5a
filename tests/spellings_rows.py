"""Spellings of functions of one tensor: softmax, norms, activations, losses (see library_spellings)."""

from __future__ import annotations

import math

import torch
from library_spellings import BIAS, DEVICE, HALF, TARGET, WIDE, B, N, W, X, named, rand, silent, wants
from torch import nn
from torch.nn import functional as F  # noqa: N812

LONG = rand(32, 16384)
SQUARE = rand(WIDE, WIDE)
COUNTS = torch.randint(0, 5, (B * N, WIDE), device=DEVICE)
LABELS = torch.randint(0, 10, (WIDE,), device=DEVICE)

# --- softmax


@named("torch.softmax(x, dim)")
def softmax_amax():
    shifted = X - X.amax(-1, keepdim=True)  # here
    e = shifted.exp()
    return e / e.sum(-1, keepdim=True)


@named("torch.softmax(x, dim)", grad=True)
def softmax_max_values():
    (x,) = wants(X)
    e = torch.exp(x - torch.max(x, dim=1, keepdim=True)[0])  # here
    return e / torch.sum(e, dim=1, keepdim=True)


@named("torch.softmax(x, dim)")
def softmax_unshifted():
    e = torch.exp(X)  # here
    return e.div(e.sum(dim=-1, keepdim=True))


@named("torch.softmax(x, dim)")
def softmax_exp_of_log():
    return torch.exp(X - torch.logsumexp(X, dim=-1, keepdim=True))  # here


@named("torch.softmax(x, dim)")
def softmax_over_another_dim():
    x = X.view(B, N, WIDE)
    e = (x - x.amax(1, keepdim=True)).exp_()  # here
    return e.mul_(e.sum(1, keepdim=True).reciprocal())


@silent
def softmax_call():
    return F.softmax(X, -1), X.softmax(0), nn.Softmax(dim=1)(X)


# --- log_softmax


@named("torch.log_softmax(x, dim)")
def log_softmax_sum():
    return X - torch.log(torch.exp(X).sum(-1, keepdim=True))  # here


@named("torch.log_softmax(x, dim)", grad=True)
def log_softmax_shifted():
    (x,) = wants(X)
    z = x - x.max(dim=1, keepdim=True).values  # here
    return z - z.exp().sum(dim=1, keepdim=True).log()


@named("torch.log_softmax(x, dim)")
def log_softmax_of_softmax():
    return torch.log(torch.softmax(X, dim=-1))  # here


@named("torch.log_softmax(x, dim)")
def log_softmax_logsumexp():
    return X - X.logsumexp(dim=-1, keepdim=True)  # here


@silent
def log_softmax_call():
    return F.log_softmax(X, dim=-1), X.log_softmax(1)


# --- layer norm


@named("torch.nn.functional.layer_norm(x, shape, weight, bias)")
def layer_norm_var():
    mean = X.mean(-1, keepdim=True)  # here
    var = X.var(-1, keepdim=True, unbiased=False)
    return (X - mean) / torch.sqrt(var + 1e-5) * W + BIAS


@named("torch.nn.functional.layer_norm(x, shape, weight, bias)")
def layer_norm_annotated_transformer():
    mean = X.mean(-1, keepdim=True)  # here
    std = X.std(-1, keepdim=True)
    return W * (X - mean) / (std + 1e-6) + BIAS


@named("torch.nn.functional.layer_norm(x, shape, weight, bias)", grad=True)
def layer_norm_squares():
    (x,) = wants(X)
    u = x.mean(-1, keepdim=True)  # here
    s = (x - u).pow(2).mean(-1, keepdim=True)
    x = (x - u) / torch.sqrt(s + 1e-12)
    return W * x + BIAS


@named("torch.nn.functional.layer_norm(x, shape, weight, bias)")
def layer_norm_var_mean():
    var, mean = torch.var_mean(X, dim=-1, keepdim=True, unbiased=False)  # here
    return (X - mean) * torch.rsqrt(var + 1e-5)


@named("torch.nn.functional.layer_norm(x, shape, weight, bias)")
def layer_norm_upcast():
    x = HALF.float()  # here
    d = x - x.mean(-1, keepdim=True)
    return (d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5)).to(HALF.dtype) * W.to(HALF.dtype)


@silent(grad=True)
def layer_norm_call():
    (x,) = wants(X)
    return F.layer_norm(x, (WIDE,), W, BIAS)


# --- RMS norm

RMS = "torch.nn.functional.rms_norm(x, shape, weight, eps)"


@named(RMS)
def rms_norm_llama():
    x = HALF.to(torch.float32)  # here
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + 1e-6)
    return W.bfloat16() * x.to(HALF.dtype)


@named(RMS, grad=True)
def rms_norm_square():
    (x,) = wants(X)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * W  # here


@named(RMS)
def rms_norm_sqrt():
    return X / torch.sqrt(torch.mean(X**2, dim=-1, keepdim=True) + 1e-8) * W  # here


@named(RMS)
def rms_norm_by_norm():
    rms = X.norm(2, dim=-1, keepdim=True) * WIDE**-0.5  # here
    return W * (X / (rms + 1e-8))


@named(RMS)
def rms_norm_gemma():
    normed = X * torch.rsqrt(X.square().mean(-1, keepdim=True) + 1e-6)  # here
    return normed * (1.0 + W)


@silent(grad=True)
def rms_norm_call():
    (x,) = wants(X)
    return F.rms_norm(x, (WIDE,), W, 1e-6)


# --- GELU, SiLU

TANH, ERF, SILU = (f"torch.nn.functional.{c}" for c in ('gelu(x, approximate="tanh")', "gelu(x)", "silu(x)"))


@named(TANH)
def gelu_tanh_gpt2():
    inner = math.sqrt(2.0 / math.pi) * (X + 0.044715 * torch.pow(X, 3.0))  # here
    return 0.5 * X * (1.0 + torch.tanh(inner))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x):
        h = self.up(x)
        h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
        return self.down(h)


MLP = Mlp().to(DEVICE)


@named(TANH, grad=True)
def gelu_tanh_after_a_linear():
    (x,) = wants(X)
    h = MLP.up(x)
    h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))  # here
    return MLP.down(h)


@named(TANH)
def gelu_tanh_by_sigmoid():
    return X * torch.sigmoid(1.5957691216 * (X + 0.044715 * X.pow(3)))  # here


@named(ERF)
def gelu_erf_bert():
    return X * 0.5 * (1.0 + torch.erf(X / math.sqrt(2.0)))  # here


@named(ERF, grad=True)
def gelu_erf_scaled():
    (x,) = wants(X)
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865475))  # here


@named(ERF)
def gelu_erf_in_place():
    cdf = X.div(torch.tensor(2.0).sqrt()).erf_().add_(1.0).mul_(0.5)  # here
    return X * cdf


@named(ERF)
def gelu_quick():
    return X * torch.sigmoid(1.702 * X)  # here


@silent(grad=True)
def gelu_calls():
    (x,) = wants(X)
    return F.gelu(x, approximate="tanh") + F.gelu(MLP.up(x))[:, :WIDE]


@named(SILU)
def silu_sigmoid():
    return X * torch.sigmoid(X)  # here


@named(SILU, grad=True)
def silu_swish_function():
    (x,) = wants(X)
    return x.sigmoid().mul(x)  # here


@named(SILU)
def silu_divided():
    return X / (1 + torch.exp(-X))  # here


@silent
def a_softmax_of_scaled_scores():
    """Probabilities of long rows are all near zero, and still others."""
    return F.softmax(LONG * 0.5, -1), F.softmax(LONG.sin(), -1)


@named("torch.softmax(x, dim)")
def a_softmax_of_what_columns_shift():
    """The maximum over other dims is no part of it."""
    shifted = SQUARE - SQUARE.amax(0, keepdim=True)
    e = shifted.exp()  # here
    return e / e.sum(1, keepdim=True)


@named(RMS)
def a_norm_of_what_columns_centre():
    c = SQUARE - SQUARE.mean(0, keepdim=True)
    return c / (c * c).mean(1, keepdim=True).sqrt()  # here


@silent
def a_softmax_of_capped_scores():
    return torch.softmax(X.clamp(-10, 10), -1)


@silent
def what_changes_nothing():
    scale = torch.ones((), device=DEVICE)
    return torch.sigmoid(X).relu(), torch.softmax(X * scale, -1), F.silu(X) * 1.0


@silent(grad=True)
def silu_call():
    (x,) = wants(X)
    return F.silu(x)


# --- cross-entropy

ENTROPY = "torch.nn.functional.cross_entropy(logits, target"


@named(ENTROPY, grad=True)
def entropy_gather():
    (x,) = wants(X)
    logp = torch.log_softmax(x, dim=-1)  # here
    return -logp.gather(-1, TARGET.unsqueeze(1)).mean()


@named(ENTROPY)
def entropy_index():
    z = X - X.max(1, keepdim=True).values  # here
    logp = z - z.exp().sum(1, keepdim=True).log()
    return -logp[torch.arange(B * N, device=DEVICE), TARGET].mean()


@named(ENTROPY)
def entropy_log_of_softmax():
    p = F.softmax(X, dim=1)  # here
    return -torch.log(p).gather(1, TARGET.view(-1, 1)).mean()


@silent
def entropy_logsumexp_moves_less_than_the_call():
    picked = X.gather(1, TARGET[:, None]).squeeze(1)
    return (torch.logsumexp(X, 1) - picked).mean()


@named(ENTROPY)
def entropy_one_hot():
    logp = F.log_softmax(X, dim=1)  # here
    return -(F.one_hot(TARGET, WIDE).float() * logp).sum(1).mean()


@named("label_smoothing=0.1")
def entropy_smoothed():
    logp = F.log_softmax(X, dim=-1)  # here
    nll = -logp.gather(dim=-1, index=TARGET.unsqueeze(1)).squeeze(1)
    return (0.9 * nll + 0.1 * -logp.mean(dim=-1)).mean()


@silent(grad=True)
def entropy_call():
    (x,) = wants(X)
    return F.cross_entropy(x, TARGET) + F.cross_entropy(x, TARGET, label_smoothing=0.1)


@silent
def entropy_same_kernels_as_the_call():
    return F.nll_loss(F.log_softmax(X, 1), TARGET)


@silent
def counts_of_classes():
    return -(F.log_softmax(X, 1) * COUNTS).sum(1).mean()


@silent
def rows_of_the_same_label():
    mask = (LABELS[:, None] == LABELS[None, :]).float()
    return -((mask * F.log_softmax(SQUARE, 1)).sum(1) / WIDE).mean()


@silent
def several_classes_a_row():
    return -F.log_softmax(X, 1).gather(1, COUNTS[:, :5]).mean()


@silent
def rows_that_are_picked():
    return -F.log_softmax(X, 1)[LABELS].mean()


@silent
def whole_numbers():
    return X * torch.sigmoid(X.int().float()), LABELS * torch.sigmoid(LABELS)

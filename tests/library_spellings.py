"""How people write what a library has as one call, and how they write the call: run by test_library_patterns.

``@named(call, ...)``: the function spells the call out and the finding stands at the line marked ``# here``.
``@silent``: it uses the call, so no finding names one. ``grad``: its inputs want gradients and backward runs.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES: dict[str, tuple[object, str | None, bool]] = {}


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


B, H, N, D = 2, 4, 128, 64
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


@silent(grad=True)
def silu_call():
    (x,) = wants(X)
    return F.silu(x)


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


DROP = nn.Dropout(0.1)


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


# --- optimizers, clipping, moving averages: loops over parameters

PARAMETERS = [rand(64, 64).requires_grad_() for _ in range(9)]
FIRST, SECOND = [torch.zeros_like(p) for p in PARAMETERS], [torch.zeros_like(p) for p in PARAMETERS]
AVERAGES = [p.detach().clone() for p in PARAMETERS]
FOREACH_SGD, SGD_CALL = "torch._foreach_add_(parameters, gradients, alpha=-lr)", "torch.optim.SGD(parameters, lr, "
ADAM, CLIP = "torch.optim.AdamW (or Adam) with fused=True", "torch.nn.utils.clip_grad_norm_(parameters, max_norm"
LERP = "torch._foreach_lerp_(averages, values, 1 - decay)"


def gradients() -> None:
    with torch.enable_grad():
        for p in PARAMETERS:
            p.grad = None
        sum((X[:, :64] @ p).square().sum() for p in PARAMETERS).backward()


def loop(call: str):
    """What a function does with gradients that backward has just made."""

    def add(function):
        CASES[function.__name__] = (function, call, False)
        LOOPS.add(function.__name__)
        return function

    return add


LOOPS: set[str] = set()


@loop(FOREACH_SGD)
def sgd_minus():
    for p in PARAMETERS:
        p -= 0.01 * p.grad  # here


@loop(FOREACH_SGD)
def sgd_add():
    for p in PARAMETERS:
        p.data.add_(p.grad.data, alpha=-0.01)  # here


@loop(FOREACH_SGD)
def sgd_with_decay():
    for p in PARAMETERS:
        p.mul_(0.999)  # here
        p.sub_(p.grad * 0.01)


@loop(SGD_CALL + "momentum=m, fused=True)")
def sgd_momentum():
    for p, buffer in zip(PARAMETERS, FIRST, strict=True):
        buffer.mul_(0.9).add_(p.grad)  # here
        p.add_(buffer, alpha=-0.01)


@loop(ADAM)
def adam_in_place():
    for p, m, v in zip(PARAMETERS, FIRST, SECOND, strict=True):
        m.mul_(0.9).add_(p.grad, alpha=0.1)  # here
        v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        denominator = v.sqrt().add_(1e-8)
        p.addcdiv_(m, denominator, value=-0.001)


@loop(ADAM)
def adam_out_of_place():
    for i, p in enumerate(PARAMETERS):
        FIRST[i] = 0.9 * FIRST[i] + 0.1 * p.grad  # here
        SECOND[i] = 0.999 * SECOND[i] + 0.001 * p.grad**2
        p -= 0.001 * (FIRST[i] / 0.1) / ((SECOND[i] / 0.001).sqrt() + 1e-8)


@loop(ADAM)
def adamw_lerp():
    for p, m, v in zip(PARAMETERS, FIRST, SECOND, strict=True):
        p.mul_(1 - 0.001 * 0.01)  # here
        m.lerp_(p.grad, 0.1)
        v.lerp_(p.grad.square(), 0.001)
        p.sub_(m / (v.sqrt() + 1e-8) * 0.001)


@loop(CLIP)
def clip_norms_in_a_loop():
    total = torch.zeros((), device=DEVICE)
    for p in PARAMETERS:
        total += p.grad.data.norm(2) ** 2  # here
    return total.sqrt()


@loop(CLIP)
def clip_stacked_norms():
    norms = torch.stack([torch.linalg.vector_norm(p.grad) for p in PARAMETERS])  # here
    return norms.norm()


@loop(CLIP)
def clip_squares():
    return torch.sqrt(sum((p.grad**2).sum() for p in PARAMETERS))  # here


@loop("torch.nn.utils.clip_grad_value_(parameters, clip_value)")
def clip_values():
    for p in PARAMETERS:
        p.grad.data.clamp_(-1.0, 1.0)  # here


@loop(LERP)
def ema_mul_add():
    for average, p in zip(AVERAGES, PARAMETERS, strict=True):
        average.mul_(0.99).add_(p, alpha=1 - 0.99)  # here


@loop(LERP)
def ema_lerp():
    for average, p in zip(AVERAGES, PARAMETERS, strict=True):
        average.lerp_(p.detach(), 0.01)  # here


@loop(LERP)
def ema_copy():
    for average, p in zip(AVERAGES, PARAMETERS, strict=True):
        average.data.copy_(average.data * 0.99 + (1.0 - 0.99) * p.data)  # here


@loop(LERP)
def ema_sub():
    for average, p in zip(AVERAGES, PARAMETERS, strict=True):
        average.sub_((1.0 - 0.99) * (average - p))  # here


@silent
def optimizer_calls():
    gradients()
    for made in (torch.optim.SGD(PARAMETERS, 0.01, fused=True), torch.optim.AdamW(PARAMETERS, fused=True)):
        made.step()
    torch._foreach_add_(PARAMETERS, [p.grad for p in PARAMETERS], alpha=-0.01)


@silent
def clip_calls():
    gradients()
    torch.nn.utils.clip_grad_norm_(PARAMETERS, 1.0)
    torch.nn.utils.clip_grad_value_(PARAMETERS, 1.0)


@silent
def ema_call():
    torch._foreach_lerp_(AVERAGES, PARAMETERS, 0.01)


# --- bias and activation behind a matmul

ADDMM, EPILOGUE = "use torch.addmm or nn.Linear(bias=True)", "torch._addmm_activation(bias, x, weight.t()"
NO_BIAS = nn.Linear(WIDE, WIDE, bias=False).to(DEVICE)


@named(ADDMM)
def bias_after_a_product():
    return X @ UP + BIAS  # here


@named(ADDMM, grad=True)
def bias_after_a_linear():
    (x,) = wants(X)
    y = NO_BIAS(x)  # here
    return y + BIAS


@named(ADDMM)
def bias_after_einsum():
    return torch.einsum("nd,df->nf", X, UP) + BIAS  # here


@named(EPILOGUE)
def bias_and_relu():
    return F.relu(NO_BIAS(X) + BIAS)  # here


@named(EPILOGUE + ", use_gelu=True)")
def linear_and_gelu():
    return F.gelu(F.linear(X, UP, BIAS))  # here


@named(EPILOGUE)
def linear_and_relu():
    return torch.relu(torch.addmm(BIAS, X, UP))  # here


@silent
def bias_and_epilogue_calls():
    return torch.addmm(BIAS, X, UP), torch._addmm_activation(BIAS, X, UP, use_gelu=True)


# --- what only looks like one of them


@silent
def an_lstm_cell():
    i, f, g, o = X.chunk(4, dim=-1)
    c = torch.sigmoid(f) * Y[:, : WIDE // 4] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c)


@silent
def a_gate_of_another_tensor():
    return X * torch.sigmoid(Y), X * torch.tanh(X), X / X.norm(dim=-1, keepdim=True)


@silent
def a_batch_norm_by_hand():
    mean, var = X.mean(0), X.var(0, unbiased=False)
    return (X - mean) / torch.sqrt(var + 1e-5)


@silent
def a_softmax_whose_parts_are_needed():
    e = torch.exp(X)
    return e / e.sum(-1, keepdim=True), e * Y


@silent
def another_temperature_of_gelu():
    return 0.5 * X * (1 + torch.tanh(0.5 * (X + 0.1 * X * X * X)))


def main() -> None:
    import os

    for function, _, grad in CASES.values():
        if os.environ.get("ONLY", function.__name__) != function.__name__:
            continue
        if function.__name__ in LOOPS:
            gradients()
        with torch.set_grad_enabled(grad):
            made = function()
            if grad:
                made.sum().backward()

"""Spellings of updates of all parameters, and of a bias and an activation behind a matmul."""

from __future__ import annotations

import torch
from library_spellings import (
    AVERAGES,
    BIAS,
    DEVICE,
    FIRST,
    PARAMETERS,
    SECOND,
    UP,
    WIDE,
    X,
    Y,
    gradients,
    loop,
    named,
    silent,
    wants,
)
from torch import nn
from torch.nn import functional as F  # noqa: N812

# --- optimizers, clipping, moving averages: loops over parameters

FOREACH_SGD, SGD_CALL = "torch._foreach_add_(parameters, gradients, alpha=-lr)", "torch.optim.SGD(parameters, lr, "
ADAM, CLIP = "torch.optim.AdamW (or Adam) with fused=True", "torch.nn.utils.clip_grad_norm_(parameters, max_norm"
BOTH = "two findings"
LERP = "torch._foreach_lerp_(averages, values, 1 - decay)"


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


@loop("torch.optim.RMSprop with foreach=True (it has no fused form)")
def rmsprop_by_hand():
    for p, v in zip(PARAMETERS, SECOND, strict=True):
        v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)  # here
        p.addcdiv_(p.grad, v.sqrt().add_(1e-8), value=-0.01)


@loop("torch.optim.Adagrad with foreach=True, or fused=True (on CUDA from torch 2.13 on)")
def adagrad_by_hand():
    for p, v in zip(PARAMETERS, SECOND, strict=True):
        v.add_(p.grad**2)  # here
        p.sub_(0.01 * p.grad / (v + 1e-10) ** 0.5)


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


@loop(BOTH)
def sgd_then_ema():
    for p, average in zip(PARAMETERS, AVERAGES, strict=True):
        p.add_(p.grad, alpha=-0.01)
        average.mul_(0.99).add_(p, alpha=0.01)


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


@silent
def running_statistics_of_layers():
    x = X[:, :64]
    for average, p in zip(AVERAGES, PARAMETERS, strict=True):
        x = x @ p
        average[0].mul_(0.9).add_(x.mean(0), alpha=0.1)


@loop("torch._foreach_* over the list of tensors")
def gradients_are_averaged():
    for p in PARAMETERS:
        p.grad.mul_(0.25)  # here


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

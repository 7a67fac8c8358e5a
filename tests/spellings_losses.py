"""Losses by hand (see library_spellings)."""

from __future__ import annotations

import torch
from library_spellings import DEVICE, TARGET, WIDE, B, N, X, named, rand
from torch.nn import functional as F  # noqa: N812

ENTROPY = "torch.nn.functional.cross_entropy(logits, target)"
IMAGE, CLASSES = rand(B, 16, 64, 64), torch.randint(0, 16, (B, 64, 64), device=DEVICE)
TOKENS = torch.randint(0, WIDE, (B, N), device=DEVICE)


@named(ENTROPY)
def entropy_of_an_image():
    logp = F.log_softmax(IMAGE, 1)  # here
    return -logp.gather(1, CLASSES.unsqueeze(1)).squeeze(1).mean()


@named(ENTROPY)
def entropy_of_tokens():
    logits = X.view(B, N, WIDE)[:, :-1]
    logp = torch.log_softmax(logits.float(), dim=-1)  # here
    return -logp.gather(2, TOKENS[:, 1:].unsqueeze(2)).squeeze(2).sum(1).mean()


@named(ENTROPY)
def entropy_of_what_is_kept():
    kept = TARGET != 3
    logp = torch.log_softmax(X, -1)  # here
    nll = -logp.gather(1, TARGET.masked_fill(~kept, 0).unsqueeze(1)).squeeze(1)
    return (nll * kept).sum() / kept.sum()


@named(ENTROPY)
def entropy_of_a_distribution():
    return -torch.distributions.Categorical(logits=X, validate_args=False).log_prob(TARGET).mean()  # here


@named(ENTROPY)
def entropy_by_hand_and_an_epsilon():
    e = torch.exp(X - X.max(-1, keepdim=True)[0])  # here
    p = e / e.sum(-1, keepdim=True)
    return torch.mean(-torch.log(p[torch.arange(B * N, device=DEVICE), TARGET] + 1e-12))


@named("label_smoothing=0.1)")
def entropy_of_negative_targets():
    logp = torch.log_softmax(X, -1)  # here
    y = torch.zeros_like(logp).scatter_(1, TARGET[:, None], 1)
    y = y * 0.9 + 0.1 / WIDE
    return torch.mean(torch.sum(-y * logp, dim=-1))


@named(ENTROPY)
def entropy_of_a_temperature_of_two():
    """On one row alone the temperature looks like smoothing."""
    z = X / 2
    return -torch.log_softmax(z, -1).gather(1, TARGET[:, None]).mean() * 4  # here

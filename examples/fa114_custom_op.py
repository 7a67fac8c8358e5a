"""FA114: a custom op that Inductor cannot look into stands between two elementwise ops."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


@torch.library.custom_op("fusionaudit_example::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 0.25) * 4


@soft_clip.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.compile
def clipped(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(soft_clip(x * 2 + 1)) - 1


x = torch.randn(1 << 24 if device == "cuda" else 1 << 18, device=device)
for _ in range(3):
    y = clipped(x)
print(f"mean: {y.mean().item():.4f}")

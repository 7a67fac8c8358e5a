"""Well fused: a library norm and a matmul with its bias, everything else in one compiled kernel. No finding."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width = 4096 if device == "cuda" else 256
x = torch.randn(width, width, device=device)
gate = torch.randn(width, width, device=device)


@torch.compile
def gated(t: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(g) * torch.tanh(t) + t


for _ in range(3):
    y = gated(x, gate)
print(f"mean: {y.mean().item():.4f}")

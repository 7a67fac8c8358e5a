"""FA113: a counter on a module is part of the guards, so each call compiles again."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(x) * 0.5


module = torch.compile(Counted())
x = torch.randn(1024, 256, device=device)
for _ in range(4):
    y = module(x)
print(f"mean: {y.mean().item():.4f}")

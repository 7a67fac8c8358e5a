"""FA305: the sum of two softmaxes in one kernel reads both inputs twice (large on a GPU only)."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
shape = (8192, 8192) if device == "cuda" else (64, 512)
a, b = torch.randn(shape, device=device), torch.randn(shape, device=device)


@torch.compile
def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) + torch.softmax(y, -1)


for _ in range(3):
    p = both(a, b)
print(f"sum: {p.sum().item():.1f}")

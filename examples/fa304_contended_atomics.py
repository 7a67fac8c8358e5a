"""FA304 (needs a GPU): a histogram by index_add_ waits for its atomics and reaches a few percent of the bandwidth.

Measured times decide, so only the nsys and kineto engines can judge it. torch.bincount keeps the bins on the chip.
"""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
n = 1 << 24 if device == "cuda" else 1 << 12
bins = torch.randint(0, 16, (n,), device=device)
weights = torch.rand(n, device=device)


def histogram(index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.zeros(16, device=device).index_add_(0, index, value)


for _ in range(4):
    counts = histogram(bins, weights)
print(f"sum: {counts.sum().item():.1f}")

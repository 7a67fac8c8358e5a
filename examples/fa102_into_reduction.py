"""FA102: a squared error that is written out before it is summed."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
size = 1 << 24 if device == "cuda" else 1 << 18
prediction, target = torch.randn(size, device=device), torch.randn(size, device=device)
for _ in range(3):
    error = (prediction - target).square().mean()
print(f"error: {error.item():.4f}")

"""FA105: the same weight cast again in each turn."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
width = 2048 if device == "cuda" else 128
weight = torch.randn(width, width, device=device)
parts = torch.randn(8, 32, width, device=device, dtype=torch.bfloat16)
for _ in range(3):
    y = torch.stack([part @ weight.to(torch.bfloat16) for part in parts])
print(f"mean: {y.float().mean().item():.4f}")

"""FA104: a bias added after the matmul, where addmm or nn.Linear takes it in."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 8192 if device == "cuda" else 256
x, w, b = torch.randn(rows, 64, device=device), torch.randn(64, 4096, device=device), torch.randn(4096, device=device)
for _ in range(3):
    y = x @ w + b
print(f"mean: {y.mean().item():.4f}")

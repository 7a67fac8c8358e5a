"""FA118 (and FA114): complex numbers have no generated code; compiled, the copies around them cost more than eager."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 2048 if device == "cuda" else 64
x = torch.randn(rows, 16, 64, 2, device=device)
phase = torch.polar(torch.ones(rows, 1, 64, device=device), torch.rand(rows, 1, 64, device=device))


@torch.compile
def rotate(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(t * 1.0) * phase) + 0.5


for _ in range(3):
    y = rotate(x)
print(f"mean: {y.mean().item():.4f}")

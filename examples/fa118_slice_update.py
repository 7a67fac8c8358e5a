"""FA118: eager writes the rows in place; compiled, the whole buffer goes through a temporary and is copied back."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
cache = torch.zeros(4096, 2048, device=device)
new = torch.randn(4094, 2048, device=device)
index = torch.tensor([2, 5, 7, 11], device=device)
extra = torch.randn(4, 2048, device=device)


@torch.compile
def update(buffer: torch.Tensor, value: torch.Tensor, rows: torch.Tensor, more: torch.Tensor) -> None:
    buffer[1:-1] = value
    buffer[rows] = more


for _ in range(3):
    update(cache, new, index, extra)
print(f"mean: {cache.mean().item():.6f}")

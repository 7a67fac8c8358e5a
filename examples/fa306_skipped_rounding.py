"""FA306: eager rounds to bfloat16 after each op, the fused kernel once at the end: the numbers differ a little."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(4096, 1024, device=device, dtype=torch.bfloat16)


@torch.compile
def scaled(t: torch.Tensor) -> torch.Tensor:
    return torch.exp(t * 0.125) + 1.0


for _ in range(3):
    y = scaled(x)
print(f"mean: {y.float().mean().item():.4f}")

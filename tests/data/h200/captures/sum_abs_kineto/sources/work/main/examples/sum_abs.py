"""x.abs().sum(): two kernels move three times what one needs (FA102). Small where there is only a CPU."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(1 << 28 if device == "cuda" else 1 << 20, device=device)


def sum_abs(t: torch.Tensor) -> torch.Tensor:
    return t.abs().sum()


for _ in range(3):
    result = sum_abs(x)
print(f"sum of absolute values: {result.item():.4e}")

"""examples/sum_abs.py with enough steps to time one."""

import torch

x = torch.randn(1 << 28, device="cuda")


def sum_abs(t: torch.Tensor) -> torch.Tensor:
    return t.abs().sum()


if __name__ == "__main__":
    for _ in range(30):
        result = sum_abs(x)
    print(result.item())

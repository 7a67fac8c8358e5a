"""examples/sum_abs.py with enough steps to time one, each longer than a profiled host takes to launch it."""

import torch

x = torch.randn(1 << 30, device="cuda")


def sum_abs(t: torch.Tensor) -> torch.Tensor:
    return t.abs().sum()


if __name__ == "__main__":
    for _ in range(30):
        result = sum_abs(x)
    print(result.item())

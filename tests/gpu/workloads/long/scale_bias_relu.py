"""examples/scale_bias_relu.py at 1 GiB, with enough steps to time one."""

import torch

x = torch.randn(1 << 28, device="cuda")
scale, bias = torch.tensor(1.5, device="cuda"), torch.tensor(0.1, device="cuda")


def scale_bias_relu(t: torch.Tensor) -> torch.Tensor:
    return torch.relu(t * scale + bias)


if __name__ == "__main__":
    for _ in range(30):
        y = scale_bias_relu(x)
    print(y[0].item())

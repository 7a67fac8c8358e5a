"""FA203: a data-dependent size inside a function that asked for CUDA graphs."""

import torch

torch._dynamo.config.capture_dynamic_output_shape_ops = True
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(1 << 16, device=device)


@torch.compile(mode="reduce-overhead")
def pick(t: torch.Tensor) -> torch.Tensor:
    return t[(t.abs() > 0.5).nonzero().squeeze(-1)] * 2 + 1


for _ in range(3):
    y = pick(x).clone()
print(f"kept: {y.numel()}")

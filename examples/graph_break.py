"""A print between two elementwise ops of a compiled function: two graphs instead of one (FA112)."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(1 << 24 if device == "cuda" else 1 << 18, device=device)


@torch.compile
def scaled_relu(t: torch.Tensor) -> torch.Tensor:
    scaled = t * 1.5 + 0.1
    torch._dynamo.graph_break()
    return torch.relu(scaled) * 2


for _ in range(3):
    y = scaled_relu(x)
print(f"mean: {y.mean().item():.4f}")

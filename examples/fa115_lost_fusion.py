"""FA115: a graph break that came later splits a fused kernel.

    fusionaudit baseline examples/fa115_lost_fusion.py
    fusionaudit check examples/fa115_lost_fusion.py debug

The first command writes fusion.lock; the second runs the script with the break and fails, naming the lost edge.
"""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
debug = "debug" in sys.argv[1:]
x = torch.randn(4096, 1024, device=device)


@torch.compile
def activate(t: torch.Tensor) -> torch.Tensor:
    t = torch.relu(t * 1.5)
    if debug:
        torch._dynamo.graph_break()  # as a print or a breakpoint does
    return t + 0.25


for _ in range(3):
    y = activate(x)
print(f"mean: {y.mean().item():.4f}")

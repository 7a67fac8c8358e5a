"""FA301, FA302: a fused kernel holds more values than a thread has registers: it spills, and few threads fit."""

import torch
import torch._inductor.config

# Inductor would store the sum first. With these limits lifted (as one does to force a single kernel) it does not.
torch._inductor.config.realize_opcount_threshold = 10_000
torch._inductor.config.realize_reads_threshold = 10_000
# And it would time a smaller block, which does not spill, beside its default one.
torch._inductor.config.triton.autotune_pointwise = False

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = torch.randn(48, 1 << 20, device=device)


@torch.compile
def spread(x: torch.Tensor) -> torch.Tensor:
    """The product of all distances from the mean: every row is needed again once the mean is known."""
    parts = x.unbind(0)
    mean = sum(parts[1:], parts[0]) / len(parts)
    out = parts[0] - mean
    for part in parts[1:]:
        out = out * (part - mean)
    return out


for _ in range(3):
    y = spread(rows)
print(f"largest: {y.abs().max().item():.2e}")

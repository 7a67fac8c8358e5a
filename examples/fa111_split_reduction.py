"""FA111: three statistics of one tensor; Inductor splits each reduction and keeps the second stages apart."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(2048 if device == "cuda" else 256, 2048, device=device)


@torch.compile
def statistics(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    magnitude = t.abs()
    return magnitude.max(), magnitude.mean(), t.square().mean()


for _ in range(3):
    largest, mean, power = statistics(x)
print(f"{largest.item():.3f} {mean.item():.3f} {power.item():.3f}")

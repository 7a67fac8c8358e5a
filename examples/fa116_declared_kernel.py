"""FA116: the author declares one kernel; the reduction is split in two stages, so two run."""

import torch

import fusionaudit

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(1 << 26 if device == "cuda" else 1 << 22, device=device)


@torch.compile
def energy(t: torch.Tensor) -> torch.Tensor:
    return (t * t).sum()


for _ in range(3):
    with fusionaudit.expect(max_kernels=1):
        y = energy(x)
print(f"energy: {y.item():.1f}")

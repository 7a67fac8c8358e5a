"""FA307: a float32 scale turns bfloat16 activations, and all that follows, into float32."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 16384 if device == "cuda" else 256
x = torch.randn(rows, 1024, device=device, dtype=torch.bfloat16)
scale = torch.rand(1024, device=device)
for _ in range(3):
    y = (x * scale).relu()
print(f"{y.dtype}, mean {y.float().mean().item():.4f}")

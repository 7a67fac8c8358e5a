"""FA303 (needs a GPU): a Triton matmul that takes the epilogue in is slower than cuBLAS and the epilogue apart.

Measured times decide, so only the nsys and kineto engines can judge it. Inductor is told to use its Triton matmul.
"""

import torch
import torch._inductor.config

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch._inductor.config.max_autotune_gemm_backends = "TRITON"
    torch._inductor.config.benchmark_epilogue_fusion = False
size = 8192 if device == "cuda" else 64
a, b, c = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(3))


@torch.compile(mode="max-autotune-no-cudagraphs")
def gated(left: torch.Tensor, right: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return torch.relu(left @ right) * gate


for _ in range(4):
    y = gated(a, b, c)
print(f"mean: {y.mean().item():.4f}")

"""FA303 (needs a GPU): a Triton matmul that unpacks int8 weights itself is slower than cuBLAS with the unpacking apart.

The unpacking is done again for every tile of the result, 64 times here. Measured times decide, so only the nsys and
kineto engines can judge it. Inductor is told to use its Triton matmul, and not to time the two apart.
"""

import torch
import torch._inductor.config

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch._inductor.config.max_autotune_gemm_backends = "TRITON"
    torch._inductor.config.benchmark_epilogue_fusion = False
    torch._inductor.config.prologue_fusion = True
size = 8192 if device == "cuda" else 64
x = torch.randn(size, size, device=device, dtype=torch.bfloat16)
packed = torch.randint(-128, 127, (size, size), device=device, dtype=torch.int8)


@torch.compile(mode="max-autotune-no-cudagraphs")
def linear(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    return x @ packed.to(torch.bfloat16)


for _ in range(4):
    y = linear(x, packed)
print(f"mean: {y.mean().item():.4f}")

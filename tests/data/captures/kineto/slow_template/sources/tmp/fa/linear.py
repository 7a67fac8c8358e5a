import torch
import torch._inductor.config
torch._inductor.config.max_autotune_gemm_backends = "TRITON"
torch._inductor.config.benchmark_epilogue_fusion = False
torch._inductor.config.prologue_fusion = True
torch.set_float32_matmul_precision("high")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16); b = torch.randint(-128, 127, (8192, 8192), device="cuda", dtype=torch.int8)

@torch.compile(mode="max-autotune-no-cudagraphs")
def f(x, w):
    return x @ w.to(torch.bfloat16)

for _ in range(4):
    y = f(a, b)
print(f"mean: {y.float().mean().item():.4f}")

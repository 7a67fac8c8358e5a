"""Dropout and residual in one pass, with the mask drawn inside (Philox4x32-10)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from fusionaudit.reference_kernels.reference import Launch, Reference, Tensors, cpp, normal

P, SEED = 0.1, 20240229
THRESHOLD = round((1 - P) * 2**32)


def fused(launch: Launch, x: torch.Tensor, residual: torch.Tensor) -> Tensors:
    """``dropout(x) + residual``; the mask is a function of the seed and the position alone."""
    y = launch.empty(x.shape, x.dtype)
    width = 8 if x.element_size() == 2 else 4
    aligned = all(t.data_ptr() % 16 == 0 for t in (x, residual, y))
    name = f"dropout_residual<{cpp(x)}, {width}, {str(aligned).lower()}>"
    blocks = -(-x.numel() // (256 * width))
    args = (x, residual, y, x.numel(), SEED, THRESHOLD, 1 / (1 - P))
    launch("dropout_residual.cu", name, blocks, 256, args)
    return (y,)


def philox_words(n: int, seed: int, device: torch.device) -> torch.Tensor:
    """The n 32-bit words that the kernel draws, as int64: the same generator written in torch."""
    mask = 0xFFFFFFFF
    counter = torch.arange(-(-n // 4), device=device)
    c = [counter & mask, counter >> 32, torch.zeros_like(counter), torch.zeros_like(counter)]
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        (h0, l0), (h1, l1) = _multiply(0xD2511F53, c[0]), _multiply(0xCD9E8D57, c[2])
        c = [h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return torch.stack(c, 1).flatten()[:n]


def _multiply(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 32 x 32 bit product, in pieces that fit int64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def precise(x: torch.Tensor, residual: torch.Tensor) -> Tensors:
    """The same mask in eager."""
    keep = philox_words(x.numel(), SEED, x.device).view(x.shape) < THRESHOLD
    return (torch.where(keep, x / (1 - P), torch.zeros((), dtype=x.dtype, device=x.device)) + residual,)


DROPOUT_RESIDUAL = Reference(
    name="dropout_residual",
    source="dropout_residual.cu",
    summary="dropout(x, 0.1) + residual",
    inputs=lambda n, dtype, device: (normal((n,), dtype, device), normal((n,), dtype, device)),
    eager=lambda x, residual: (F.dropout(x, P, training=True) + residual,),
    fused=fused,
    precise=precise,
    kernels=(
        "dropout_residual<float, 4, true>",
        "dropout_residual<bfloat16, 8, true>",
        "dropout_residual<float16, 8, false>",
    ),
    applies="dropout whose mask nobody keeps, and an addition (FA101)",
)

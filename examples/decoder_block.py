"""A decoder block as many models write it by hand: RMS norm, rotary embedding, SwiGLU (FA101, FA103)."""

import torch
from torch import nn
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
big = device == "cuda"


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * scale * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Decoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        h = self.norm1(x)
        shape = (batch, time, self.heads, width // self.heads)
        q, k, v = (layer(h).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        a = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, time, width))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def main() -> None:
    torch.manual_seed(0)
    width, heads, batch, time = (2048, 16, 2, 1024) if big else (128, 4, 2, 64)
    model = Decoder(width, heads).to(device)
    angles = torch.rand(time, width // heads // 2, device=device)
    cos, sin = angles.cos(), angles.sin()
    x = torch.randn(batch, time, width, device=device)
    with torch.no_grad():
        for _ in range(3):
            y = model(x, cos, sin)
    print(f"mean: {y.mean().item():.4f}")


if __name__ == "__main__":
    main()

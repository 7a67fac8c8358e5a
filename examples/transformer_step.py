"""A training step of a pre-norm transformer block in bfloat16 with AdamW."""

import torch
from torch import nn
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
big = device == "cuda"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(attended)
        return x + self.down(functional.gelu(self.up(self.ln2(x))))


def main() -> None:
    torch.manual_seed(0)
    width, heads, batch, time = (1024, 16, 8, 1024) if big else (128, 4, 2, 64)
    block = Block(width, heads).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    x = torch.randn(batch, time, width, device=device, dtype=torch.bfloat16)
    for _ in range(4):
        optimizer.zero_grad()
        loss = block(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""A transformer block's training step (bf16, AdamW) as ``build() -> step``: usage block.py [device] [eager|compile]."""

import sys

import torch
from torch import nn
from torch.nn import functional

MODE = sys.argv[2] if len(sys.argv) > 2 else "compile"


class Block(nn.Module):
    def __init__(self, width=1024, heads=16):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(attended)
        return x + self.down(functional.gelu(self.up(self.ln2(x))))


def build():
    torch.manual_seed(0)
    block = Block().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    x = torch.randn(8, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    model = block if MODE == "eager" else torch.compile(block)

    def step():
        optimizer.zero_grad()
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    run = build()
    for _ in range(6):
        run()

"""The training step of examples/transformer_step.py at four times the batch, with enough steps to time one."""

import runpy
from collections.abc import Callable
from pathlib import Path

import torch

Block = runpy.run_path(str(Path(__file__).resolve().parents[4] / "examples" / "transformer_step.py"))["Block"]
torch.manual_seed(0)
block = Block(1024, 16).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
x = torch.randn(32, 1024, 1024, device="cuda", dtype=torch.bfloat16)


def train(model: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss = model(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    for _ in range(30):
        train(block)
    print(x[0, 0, 0].item())

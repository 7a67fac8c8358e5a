"""FA106: AdamW as it is by default (foreach): a kernel for each op of the update, where fused=True has one for all."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
width = 4096 if device == "cuda" else 512
net = nn.Sequential(*(nn.Linear(width, width) for _ in range(6))).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x = torch.randn(64, width, device=device)
for _ in range(3):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
print("done")

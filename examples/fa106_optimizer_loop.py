"""FA106: AdamW tensor by tensor (foreach=False)."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
x = torch.randn(64, 128, device=device)
for _ in range(3):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
print("done")

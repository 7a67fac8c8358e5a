"""FA204: values read back from the device in the middle of a step."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).to(device)
x = torch.randn(64, 256, device=device)
for _ in range(3):
    loss = net(x).square().mean()
    history = [loss.item()]
    loss.backward()
    largest = max(p.grad.abs().max().item() for p in net.parameters())
    net.zero_grad(set_to_none=True)
print(f"largest gradient: {largest:.4f}")

"""A small conv net's training step (channels last, batch norm, SGD): usage conv_net.py [device] [eager|compile]."""

import sys

import torch
from torch import nn
from torch.nn import functional

MODE = sys.argv[2] if len(sys.argv) > 2 else "compile"


def build():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to("cuda", memory_format=torch.channels_last)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(64, 16, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (64,), device="cuda")
    model = net if MODE == "eager" else torch.compile(net)

    def step():
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    run = build()
    for _ in range(6):
        run()

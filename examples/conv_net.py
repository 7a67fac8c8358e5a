"""A small convolutional net, trained: convolutions, batch norms, ReLUs, pooling."""

import torch
from torch import nn
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
big = device == "cuda"


def main() -> None:
    torch.manual_seed(0)
    c, size, batch = (64, 56, 32) if big else (8, 16, 2)
    layers = [nn.Conv2d(3, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    print(f"loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""A GRU-like cell written out, 16 steps over a wide batch: usage rnn.py [device] [eager|compile]."""

import sys

import torch
from torch import nn

MODE = sys.argv[2] if len(sys.argv) > 2 else "compile"


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inputs, self.hidden = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, xs, h):
        for x in xs.unbind(0):
            ir, iz, inew = self.inputs(x).chunk(3, -1)
            hr, hz, hnew = self.hidden(h).chunk(3, -1)
            r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
            n = torch.tanh(inew + r * hnew)
            h = (1 - z) * n + z * h
        return h


def build():
    torch.manual_seed(0)
    cell = Cell(512).cuda()
    xs, h = torch.randn(16, 4096, 512, device="cuda"), torch.zeros(4096, 512, device="cuda")
    model = cell if MODE == "eager" else torch.compile(cell)

    def step():
        with torch.no_grad():
            return model(xs, h)

    return step


if __name__ == "__main__":
    run = build()
    for _ in range(6):
        run()

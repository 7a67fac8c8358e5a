"""The transformer block of the guard's mutation tests, its ten mutations and ten harmless edits, as text edits.

Each mutation is (old, new, marker): ``marker`` is on the line that the check's message must name.
"""

from __future__ import annotations

from dataclasses import dataclass

SCRIPT = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.ln1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.ln2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)
        self.heads = heads

    def attention(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))

    def mlp(self, x):
        h = self.up(x)
        h = F.gelu(h)
        return self.down(h)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        y = self.ln2(x)
        return x + self.mlp(y)


torch.manual_seed(0)
block = Block()
optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3, fused=True)
compiled = torch.compile(block)


def batch(step):
    return torch.randn(4, 32, 64)


for step in range(4):
    x = batch(step)
    loss = compiled(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
"""


@dataclass(frozen=True)
class Edit:
    """Replace ``old`` by ``new``; ``marker`` is part of the line that must be named."""

    old: str
    new: str
    marker: str = ""


MUTATIONS = {
    "an op added in the middle": Edit(
        "        h = F.gelu(h)\n", "        h = F.gelu(h)\n        h = h * 1.5\n", "h = h * 1.5"
    ),
    "dtype of one tensor": Edit(
        "        h = F.gelu(h)\n", "        h = F.gelu(h.double()).float()\n", "F.gelu(h.double())"
    ),
    "a contiguous": Edit(
        "        return self.out(mixed.transpose(1, 2).reshape(b, t, d))\n",
        "        v2 = v.transpose(2, 3).contiguous()\n"
        "        return self.out((mixed + v2.transpose(2, 3)).transpose(1, 2).reshape(b, t, d))\n",
        ".contiguous()",
    ),
    "a graph break by print": Edit(
        "        y = self.ln2(x)\n", '        y = self.ln2(x)\n        print("norm")\n', 'print("norm")'
    ),
    "an item": Edit(
        "        y = self.ln2(x)\n",
        "        y = self.ln2(x)\n        if y.sum().item() > 1e9:\n            y = y * 0\n",
        ".item()",
    ),
    "a custom op": Edit(
        "class Block(nn.Module):\n",
        '@torch.library.custom_op("guard::twice", mutates_args=())\n'
        "def twice(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n\n\n"
        "@twice.register_fake\ndef _(x):\n    return torch.empty_like(x)\n\n\n"
        "twice.register_autograd(lambda ctx, grad: grad * 2)\n\n\nclass Block(nn.Module):\n",
    ),
    "dynamic batch": Edit("compiled = torch.compile(block)\n", "compiled = torch.compile(block, dynamic=True)\n"),
    "a view changed to a copy": Edit(
        "        return x + self.mlp(y)\n", "        return x + self.mlp(y.clone())\n", ".clone()"
    ),
    "dropout added": Edit(
        "        h = F.gelu(h)\n", "        h = F.gelu(h)\n        h = F.dropout(h, 0.1)\n", "F.dropout"
    ),
    "a fused optimizer swapped for a loop": Edit(
        "    optimizer.step()\n",
        "    with torch.no_grad():\n        for p in block.parameters():\n            p.sub_(p.grad, alpha=1e-3)\n",
        "p.sub_",
    ),
}

HARMLESS = {
    "a variable renamed": Edit(
        "        h = self.up(x)\n        h = F.gelu(h)\n        return self.down(h)\n",
        "        wide = self.up(x)\n        wide = F.gelu(wide)\n        return self.down(wide)\n",
    ),
    "a method renamed": Edit("mlp(", "feed_forward("),
    "a class renamed": Edit("Block", "Layer"),
    "comments": Edit("        h = F.gelu(h)\n", "        # nonlinear\n        h = F.gelu(h)  # as in the paper\n"),
    "code moved down": Edit("class Block", "WIDTH = 64\nDEPTH = 1\n\n\nclass Block"),
    "methods swapped": Edit("", ""),
    "another file name": Edit("", ""),
    "another batch of random data": Edit("torch.manual_seed(0)\n", "torch.manual_seed(7)\n"),
    "another hash seed": Edit("", ""),
    "another learning rate": Edit("lr=1e-3", "lr=3e-4"),
}  # fmt: skip


def mutated(name: str) -> tuple[str, str]:
    """The mutated script and the text of the line that must be named."""
    edit = MUTATIONS[name]
    text = SCRIPT.replace(edit.old, edit.new)
    assert text != SCRIPT
    marker = edit.marker
    if name == "a custom op":
        text = text.replace("        h = F.gelu(h)\n", "        h = F.gelu(h)\n        h = twice(h)\n")
        marker = "h = twice(h)"
    if name == "dynamic batch":
        marker = "dynamic=True"
    return text, marker


def edited(name: str) -> str:
    """The script after a harmless edit."""
    if name == "methods swapped":
        start, middle, end = (SCRIPT.index(f"    def {m}(") for m in ("attention", "mlp", "forward"))
        return SCRIPT[:start] + SCRIPT[middle:end] + SCRIPT[start:middle] + SCRIPT[end:]
    return SCRIPT.replace(HARMLESS[name].old, HARMLESS[name].new) if HARMLESS[name].old else SCRIPT

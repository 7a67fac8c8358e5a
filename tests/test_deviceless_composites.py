"""Composite ops that CUDA runs as one kernel: recorded as that op, with the CPU's values and gradients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from test_deviceless_session import run  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]

VALUES = """
    import json, sys, torch
    from torch import nn
    from torch.nn import functional as F
    torch.manual_seed(0)
    dev = "{device}"
    found = []

    def keep(*tensors):
        found.extend(t.detach().float().abs().sum().item() for t in tensors)

    def leaf(*shape):
        return torch.randn(*shape, device=dev, requires_grad=True)

    x, w = leaf(8, 16), leaf(16)
    y = F.rms_norm(x, (16,), w, 1e-6)
    (y * torch.arange(16.0, device=dev)).sum().backward()
    keep(y, x.grad, w.grad)

    x = leaf(4, 5, 8)
    for layer in (nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True), nn.GRU(8, 6), nn.RNN(8, 6)):
        layer.to(dev)
        x.grad = None
        out, state = layer(x)
        (out.square().sum() + sum(s.sum() for s in state)).backward()
        keep(out, x.grad, *(p.grad for p in layer.parameters()))

    x = leaf(4, 8)
    for cell, state in ((nn.LSTMCell(8, 6), (leaf(4, 6), leaf(4, 6))), (nn.GRUCell(8, 6), leaf(4, 6))):
        cell.to(dev)
        x.grad = None
        made = cell(x, state)
        sum((i + 1) * t.square().sum() for i, t in enumerate(made if isinstance(made, tuple) else [made])).backward()
        keep(x.grad, *(p.grad for p in cell.parameters()), *(t.grad for t in state if isinstance(state, tuple)))

    bn, image = nn.BatchNorm2d(6).to(dev), leaf(3, 6, 4, 4)
    for training in (True, False):
        bn.train(training)
        image.grad = None
        made = bn(image)
        made.pow(3).sum().backward()
        keep(made, image.grad, bn.weight.grad, bn.running_var)

    half = torch.randn(4, 16, device=dev).half().requires_grad_()
    made = torch.softmax(half, -1, dtype=torch.float32)
    made.square().sum().backward()
    keep(made, half.grad)
    packed = nn.utils.rnn.pack_padded_sequence(leaf(5, 3, 8), torch.tensor([5, 3, 2]))
    keep(nn.LSTM(8, 6).to(dev)(packed)[0].data)
    with torch.inference_mode():
        keep(F.rms_norm(x, (8,)), bn(image), nn.GRU(8, 6).to(dev)(x)[0])
    json.dump(found, open("{path}", "w"))
"""


def names(records: list[dict[str, Any]]) -> Counter[str]:
    return Counter(r["name"].split(".")[1] for r in records if r["kind"] == "op")


def test_fused_ops_are_recorded_as_such_with_the_values_of_the_cpu(tmp_path: Path) -> None:
    import json
    import textwrap

    records, _ = run(tmp_path, VALUES.format(device="cuda", path=tmp_path / "cuda.json"), "eager")
    exec(textwrap.dedent(VALUES.format(device="cpu", path=tmp_path / "cpu.json")), {})
    ours, truth = (json.loads((tmp_path / f"{d}.json").read_text()) for d in ("cuda", "cpu"))
    assert ours == pytest.approx(truth, rel=2e-3)
    found = names(records)
    assert found["_fused_rms_norm"] == 2
    assert found["_fused_rms_norm_backward"] == 1
    assert found["_cudnn_rnn"] == 5
    assert found["_cudnn_rnn_backward"] == 3
    assert found["_thnn_fused_lstm_cell"] == found["_thnn_fused_gru_cell"] == 1
    assert found["_thnn_fused_lstm_cell_backward_impl"] == found["_thnn_fused_gru_cell_backward"] == 1
    assert found["cudnn_batch_norm"] == 3
    assert found["cudnn_batch_norm_backward"] == 1
    assert found["_softmax"] == 1
    assert not found["rsqrt"]
    assert not found["sigmoid"]
    assert not found["var_mean"]


def test_rms_norm_keeps_its_name_in_a_graph_and_cells_are_left_alone_by_dynamo(tmp_path: Path) -> None:
    code = """
        import torch
        from torch import nn
        from torch.nn import functional as F
        cell, x = nn.LSTM(8, 6).to("cuda"), torch.randn(4, 3, 8, device="cuda", requires_grad=True)
        norm = torch.compile(lambda x: F.rms_norm(x, (8,)) * 2)
        layer = torch.compile(lambda x: cell(x)[0].relu())
        layer(norm(x)).sum().backward()
        """
    records, folder = run(tmp_path, code, resources=False)
    log = (folder / "torch_logs.txt").read_text()
    assert "_fused_rms_norm" in log
    assert names(records)["_cudnn_rnn"] == 1


def test_one_hot_and_the_zeros_of_a_gradient_are_on_the_gpu(tmp_path: Path) -> None:
    code = """
        import torch
        from torch.nn import functional as F
        index = torch.tensor([0, 2, 1], device="cuda")
        hot = F.one_hot(index, 4)
        assert hot.is_cuda and hot.tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]
        assert F.one_hot(index).shape == (3, 3)
        x = torch.randn(3, 4, device="cuda", requires_grad=True)
        x.cummax(0)[0].sum().backward()
        host = torch.randn(3, 4, requires_grad=True)
        host.cummax(0)[0].sum().backward()
        assert x.grad.is_cuda and not host.grad.is_cuda
        """
    records, _ = run(tmp_path, code, "eager")
    found = [r for r in records if r["kind"] == "op"]
    scattered = [r for r in found if r["name"].startswith("aten.scatter_")]
    assert [r["name"] for r in scattered] == ["aten.scatter_.value"] * 2 + ["aten.scatter_add_.default"] * 2
    assert ["cpu" in str(r["inputs"]) for r in scattered] == [False, False, False, True]
    assert "aminmax" not in names(records)  # the GPU's scatter asserts

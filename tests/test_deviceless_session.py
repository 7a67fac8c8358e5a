"""The engine without a GPU: scripts run on the CPU, graphs are lowered for the target, everything is undone."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from agreement import graphs_of  # noqa: E402

from fusionaudit.capture.deviceless import DevicelessSession  # noqa: E402
from fusionaudit.capture.no_arithmetic import NeedsValue  # noqa: E402
from fusionaudit.capture.recorder import Recorder  # noqa: E402
from fusionaudit.device import find_target  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]


def run(tmp_path: Path, code: str, pass_name: str = "compiled", **options: Any) -> tuple[list[dict[str, Any]], Path]:
    """Run code in a session; its records and its folder."""
    torch._dynamo.reset()
    folder = tmp_path / pass_name
    folder.mkdir()
    recorder = Recorder(folder / "ops.jsonl")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    session = DevicelessSession(
        device=find_target("h200"), folder=folder, pass_name=pass_name, recorder=recorder, **options
    )
    try:
        with session, recorder.recording():
            exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
    finally:
        recorder.close()
    return [json.loads(line) for line in (folder / "ops.jsonl").read_text().splitlines()], folder


def test_sum_abs_is_two_kernels_on_the_gpu(tmp_path: Path) -> None:
    records, folder = run(
        tmp_path,
        """
        import torch
        x = torch.ones(1 << 20, device="cuda" if torch.cuda.is_available() else "cpu")
        assert x.device.type == "cuda" and x.is_cuda
        f = torch.compile(lambda x: x.abs().sum())
        assert f(x).item() == 1 << 20
        """,
    )
    (graph,) = [r for r in records if r["kind"] == "graph"]
    assert graph["graph"] == "0/0/inference"
    assert graph["inputs"][0]["shape"] == [1 << 20]
    launches = graphs_of((folder / "torch_logs.txt").read_text())
    assert [name.split()[0] for name in launches[0]] == ["red", "per"]
    kernels = json.loads((folder / "resources.json").read_text())["graphs"]["0/0/inference"]
    assert all(k["registers"] > 0 and k["spill_bytes"] == 0 and k["occupancy"] > 0 for k in kernels.values())


def test_backward_is_lowered_and_gradients_are_right(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        from torch.nn import functional as F
        lin = torch.nn.Linear(64, 64).cuda()
        x = torch.randn(32, 64, device="cuda", requires_grad=True)
        def loss(x): return (F.gelu(lin(x)) * 2).sum()
        torch.compile(loss)(x).backward()
        got, x.grad = x.grad.clone(), None
        loss(x).backward()
        torch.testing.assert_close(got.cpu(), x.grad.cpu(), rtol=1e-4, atol=1e-4)
        """,
        resources=False,
    )
    assert [r["graph"] for r in records if r["kind"] == "graph"] == ["0/0/forward", "0/0/backward"]


def test_attention_is_the_op_that_the_gpu_takes(tmp_path: Path) -> None:
    code = """
        import torch
        from torch.nn import functional as F
        q = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        f = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True).sum())
        f(q).backward()
        """
    _, folder = run(tmp_path, code, resources=False)
    launches = [name for graph in graphs_of((folder / "torch_logs.txt").read_text()) for name in graph]
    assert "torch.ops.aten._scaled_dot_product_cudnn_attention.default" in launches
    assert "torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default" in launches
    eager, _ = run(tmp_path, code, "eager")
    names = [r["name"] for r in eager if r["kind"] == "op"]
    assert "aten._scaled_dot_product_cudnn_attention.default" in names
    assert "aten._scaled_dot_product_cudnn_attention_backward.default" in names


def test_dynamic_shapes_give_the_symbols(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        f = torch.compile(lambda x: (x * 2).relu(), dynamic=True)
        for n in (40, 48):
            f(torch.ones(n, 8, device="cuda"))
        """,
        resources=False,
    )
    graphs = [r for r in records if r["kind"] == "graph"]
    assert len({g["graph"] for g in graphs}) == 1
    assert [40 in g["symbols"].values() for g in graphs] == [True, False]


def test_host_tensors_stay_on_the_host(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        x = torch.ones(4, device="cuda")
        y = torch.ones(4)
        (x + 1, y + 1, x.cpu() + 2)
        y[0].item()
        """,
        "eager",
    )
    adds = [r["outputs"][0].get("device", "cuda") for r in records if r.get("name") == "aten.add.Tensor"]
    assert adds == ["cuda", "cpu", "cpu"]
    assert [r["name"] for r in records if r["kind"] == "sync"] == ["aten._to_copy.default"]


def test_a_script_that_never_names_a_gpu_is_on_it(tmp_path: Path) -> None:
    records, folder = run(
        tmp_path,
        """
        import torch
        x = torch.ones(64, 64)
        torch.compile(lambda x: torch.arange(64) * x)(x)
        """,
        resources=False,
    )
    assert all("device" not in t for r in records if r["kind"] == "graph" for t in r["inputs"])
    assert graphs_of((folder / "torch_logs.txt").read_text())[0][0].startswith("poi")


def test_random_numbers_in_a_script_that_never_names_a_gpu(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        x = torch.ones(64, 64, requires_grad=True)
        f = torch.compile(lambda x: torch.nn.functional.dropout(x.sin(), 0.1))
        f(x).sum().backward()
        """,
    )
    assert [r["graph"] for r in records if r["kind"] == "graph"] == ["0/0/forward", "0/0/backward"]


def test_shapes_only_takes_no_memory_and_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(NeedsValue) as stopped:
        run(
            tmp_path,
            """
            import torch
            x = torch.ones(1 << 36, device="cuda")
            total = x.abs().sum().item()
            """,
            "eager",
            shapes_only=True,
        )
    assert stopped.value.location is not None
    assert stopped.value.location["line"] == 4


@pytest.mark.parametrize(
    "asked",
    [
        "x.sum().cpu().item()",
        "x.cpu().numpy()",
        "x.tolist()",
        "float(torch.zeros(()).copy_(x[0]) + 1)",
        "bool(x[0] > 0)",
    ],
)
def test_shapes_only_gives_no_value_for_another(tmp_path: Path, asked: str) -> None:
    code = f"import torch\nx = torch.ones(1 << 20, device='cuda')\n{asked}\nx.abs()"
    with pytest.raises(NeedsValue) as stopped:
        run(tmp_path, code, "eager", shapes_only=True)
    assert stopped.value.location is not None
    assert stopped.value.location["line"] == 3
    records = [json.loads(line) for line in (tmp_path / "eager" / "ops.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in records].index("stop") == len(records) - 1


def test_shapes_only_keeps_the_values_of_the_host_and_scales_gradients(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        table = torch.arange(8) * 2
        assert table.sum().item() == 56 and table.numpy()[1] == 2 and table.tolist()[2] == 4
        rates = torch.linspace(0, 1, 3, device="cuda")
        assert [r.item() for r in rates] == rates.tolist() == [0, 0.5, 1] and rates.nonzero().numel() == 2
        assert torch.compile(lambda r: r + 1)(rates).tolist() == [1, 1.5, 2]
        w = torch.ones(1 << 20, device="cuda", requires_grad=True)
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD([w])
        for _ in range(2):
            scaler.scale((w * w).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
        "eager",
        shapes_only=True,
    )
    names = [r.get("name") for r in records]
    assert names.count("aten._amp_update_scale_.default") == 2
    assert "stop" not in [r["kind"] for r in records]


def test_threads_of_the_script_run_for_the_target_too(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import threading, torch
        x = torch.ones(8, device="cuda")
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.ones(8, device="cuda") + x))
        thread.start()
        thread.join()
        assert seen[0].is_cuda
        """,
        "eager",
    )
    (added,) = [r for r in records if r.get("name") == "aten.add.Tensor"]
    assert "device" not in added["outputs"][0], "on the GPU"


def test_user_kernels_and_hand_made_graphs_are_opaque(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        x = torch.ones(8, device="cuda")
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = x + 1
        g.replay()
        torch.cuda.synchronize()
        """,
        "eager",
    )
    assert "cuda.CUDAGraph.replay" in [r.get("name") for r in records]
    assert [r["name"] for r in records if r["kind"] == "sync"] == ["torch.cuda.synchronize"]


def test_everything_is_undone_also_after_an_error(tmp_path: Path) -> None:
    before = (torch.Tensor.to, torch.cuda.is_available, torch.autograd.grad, torch.Generator)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "import torch\ntorch.ones(2, device='cuda')\n1 / 0", "eager")
    assert before == (torch.Tensor.to, torch.cuda.is_available, torch.autograd.grad, torch.Generator)
    assert not torch.cuda.is_available()
    assert "device" not in vars(torch.Tensor)
    assert torch.ones(2).device.type == "cpu"

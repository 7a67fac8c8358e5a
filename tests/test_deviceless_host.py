"""Without a GPU: what the host did before the script named one is no launch, and what it reads is a sync."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from deviceless_audits import audit  # noqa: E402
from test_deviceless_session import run  # noqa: E402

from fusionaudit.inductor.model import InductorLog  # noqa: E402
from fusionaudit.program.predicted import predicted_pass  # noqa: E402
from fusionaudit.trace.oplog import read_oplog  # noqa: E402
from fusionaudit.trace.schema import SyncMark  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]


def names(folder: Path) -> list[str]:
    return [
        k.op_names[0] for k in predicted_pass("eager", read_oplog(folder / "ops.jsonl"), InductorLog(), None).kernels
    ]


def test_parameters_made_on_the_cpu_are_copies_to_the_gpu_and_no_launches(tmp_path: Path) -> None:
    _, folder = run(
        tmp_path,
        """
        import torch
        net = torch.nn.Linear(16, 16)
        with torch.no_grad():
            net.bias.zero_()
            assert net.weight.sum().item() < 1e9
        net = net.cuda()
        net(torch.zeros(4, 16, device="cuda"))
        """,
        "eager",
    )
    assert names(folder) == ["aten._to_copy.default"] * 2 + ["aten.zeros.default", "aten.addmm.default"]
    log = read_oplog(folder / "ops.jsonl")
    assert not [r for r in log.records if isinstance(r, SyncMark)], "the host waited for nothing"
    assert not log.notes


def test_a_script_that_names_no_gpu_is_all_on_it(tmp_path: Path) -> None:
    _, folder = run(tmp_path, "import torch\nx = torch.ones(16)\n(x * 2).tolist()\n", "eager")
    assert names(folder) == ["aten.ones.default", "aten.mul.Tensor"]
    (sync,) = [r for r in read_oplog(folder / "ops.jsonl").records if isinstance(r, SyncMark)]
    assert sync.name == "torch.Tensor.tolist"
    assert sync.location is not None
    assert sync.location.line == 3


@pytest.mark.parametrize("read", ["tolist()", "numpy()", "cpu()", "cpu().numpy()", "item()", "__array__()"])
def test_values_that_the_host_reads_are_one_sync(tmp_path: Path, read: str) -> None:
    pytest.importorskip("numpy")
    code = f"import torch\nx = torch.ones(1, device='cuda')\ny = (x * 2).{read}\nz = torch.ones(1).{read}\n"
    _, folder = run(tmp_path, code, "eager")
    syncs = [r for r in read_oplog(folder / "ops.jsonl").records if isinstance(r, SyncMark)]
    assert [(s.location.line, s.bytes) for s in syncs if s.location] == [(3, 4)]


def test_a_recompiled_sequential_names_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())\n"
        "x = torch.ones(4, 8)\n"
        "for _ in range(2):\n"
        "    net(x).sum()\n"
        "    with torch.no_grad():\n"
        "        net(x).sum()\n"
    )
    made = audit(monkeypatch, tmp_path, code, passes=("eager", "compiled"))
    (found,) = [f for f in made.findings if f.rule == "FA113"]
    assert found.location is not None
    assert (Path(found.location.file).name, found.location.line) == ("script.py", 5)
    assert "Sequential" in found.message


def test_cuda_in_compiled_code_is_the_target(tmp_path: Path) -> None:
    from fusionaudit.capture.function import capture_function
    from fusionaudit.pipeline import audit as audit_capture

    capture_function(lambda x: (x.cuda() + 1).sin(), (torch.randn(8, 64),), {}, target="h100", folder=tmp_path / "c")
    document = audit_capture(tmp_path / "c").document
    (compiled,) = (p for p in document["passes"] if p["name"] == "compiled")
    assert [k["ops"] for k in compiled["kernels"]] == [["aten.add", "aten.sin"]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_is_the_same_in_both_passes(tmp_path: Path, device: str) -> None:
    from fusionaudit.capture.function import capture_function
    from fusionaudit.pipeline import audit as audit_capture

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            y = x @ w
            with torch.autocast(device, enabled=False):
                z = x @ w
        (x @ w + y.float() + z).sum().backward()

    state = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    args = (torch.randn(8, 64), torch.randn(64, 32, requires_grad=True))
    capture_function(step, args, {}, target="h100", folder=tmp_path / "c")
    passes = audit_capture(tmp_path / "c").document["passes"]
    low = {p["name"]: [set(k["dtypes"]) for k in p["kernels"] if k["category"] == "matmul"] for p in passes}
    assert low["eager"][:3] == [{"bfloat16"}, {"float32"}, {"float32"}]
    for name in low:
        assert sum(kinds == {"bfloat16"} for kinds in low[name]) == 2, name
    assert [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")] == state


def test_a_checkpoint_of_cpu_tensors_finds_what_autocast_of_their_device_takes(tmp_path: Path) -> None:
    """torch 2.14 asks the module of the name without a device for them, which has none by itself."""
    _, folder = run(
        tmp_path,
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        net = torch.nn.Linear(16, 16)
        checkpoint(net, torch.zeros(4, 16), use_reentrant=False).sum().backward()
        """,
        "eager",
    )
    assert "aten.addmm.default" in names(folder)

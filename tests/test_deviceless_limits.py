"""What the engine without a GPU cannot look into: recorded as it is, or said in one line that blames no script."""

from __future__ import annotations

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from deviceless_audits import audit  # noqa: E402
from test_deviceless_session import run  # noqa: E402

from fusionaudit.capture import ptxas  # noqa: E402
from fusionaudit.capture.deviceless import DevicelessSession  # noqa: E402
from fusionaudit.capture.no_arithmetic import NeedsValue, WithoutValues  # noqa: E402
from fusionaudit.capture.stand_in import require_torch  # noqa: E402
from fusionaudit.device import find_target  # noqa: E402
from fusionaudit.errors import AuditError  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]

TRITON = """
    import torch, triton, triton.language as tl

    @triton.jit
    def plain(x, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

    tuned = triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])(plain)

    def f(x):
        out = torch.empty_like(x)
        plain[(16,)](x, out, x.numel(), BLOCK=256)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out * 2

    x = torch.randn(4096, device="cuda")
    f(x)
    torch.compile(f)(x)
    """


def test_triton_kernels_of_the_script_are_opaque_launches(tmp_path: Path) -> None:
    records, _ = run(tmp_path, TRITON, "eager")
    launched = [r for r in records if r["kind"] == "op" and r["name"].startswith("triton.")]
    assert [r["name"] for r in launched][:2] == ["triton.plain", "triton.plain"]
    assert [t["shape"] for t in launched[0]["inputs"]] == [[4096], [4096]]
    records, folder = run(tmp_path, TRITON)
    assert [r["graph"] for r in records if r["kind"] == "graph"] == ["0/0/inference"]
    assert "triton_poi_fused_mul" in (folder / "torch_logs.txt").read_text()


def test_a_traced_module_is_recorded_like_any_other(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
        x = torch.randn(4, 8, device="cuda")
        traced = torch.jit.trace(model, (x,))
        assert torch.equal(traced(x).cpu(), model(x).cpu())
        """,
        "eager",
    )
    assert [r["name"] for r in records if r.get("name") == "aten.relu.default"] == ["aten.relu.default"] * 2


def test_modules_called_inside_a_trace_are_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = textwrap.dedent(
        """
        import torch
        model, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
        traced = torch.jit.trace(model, (x,))
        for _ in range(3):
            traced(x)
        """
    )
    notes = audit(monkeypatch, tmp_path, code).document["notes"]
    assert not [n for n in notes if n["blocks"]]


def test_nested_tensors_are_refused_by_line(tmp_path: Path) -> None:
    code = "import torch\nparts = [torch.randn(3, 8), torch.randn(5, 8)]\nx = torch.nested.nested_tensor(parts)\n"
    with pytest.raises(AuditError, match=r"script\.py:3: deviceless cannot audit nested tensors"):
        run(tmp_path, code, "eager")


TRAINING = """
    import sys
    import torch

    layer = torch.nn.Linear(1 << 13, 1 << 13, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(64, 1 << 13, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = layer(x).relu().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        loss = step()
    try:
        print(f"loss {loss.item()}")
        raise AssertionError("went on without the value")
    except Exception as error:
        sys.exit(f"taken for an error of the script: {error}")
    finally:
        (layer.weight + 1).sum()
        sys.exit(3)
    """


def stops(result: Any) -> list[dict[str, Any]]:
    return [n for n in result.document["notes"] if n["kind"] == "stopped"]


def test_shapes_only_ends_a_script_that_needs_a_value_after_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = audit(monkeypatch, tmp_path, textwrap.dedent(TRAINING), shapes_only=True)
    assert {p["name"]: p["steps"] for p in result.document["passes"]} == {"eager": 3, "compiled": 3}
    assert [k["ops"] for k in result.document["passes"][0]["kernels"]][-1] == ["aten._foreach_add_.List"], (
        "not the clean-up"
    )
    for note, name in zip(stops(result), ("eager", "compiled"), strict=True):
        assert re.search(rf"^{name}: --shapes-only computes nothing, and \S+script\.py:19 needs a value", note["text"])
        assert not note["blocks"]
    assert result.exit_code == 0


@pytest.mark.parametrize("body", ["step().item()", "for _ in range(3):\n    print(step().item())"])
def test_shapes_only_judges_no_script_that_needs_a_value_in_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    code = textwrap.dedent(TRAINING)
    result = audit(monkeypatch, tmp_path, code[: code.index("for _")] + body, shapes_only=True)
    assert [p["name"] for p in result.document["passes"]] == ["eager"], "compiling it would tell no more"
    (note,) = stops(result)
    assert re.search(r"^eager: .*script\.py:1[67] needs a value .* no step can be judged", note["text"])
    assert "run without --shapes-only" in note["remedy"]
    assert note["blocks"]
    assert result.exit_code == 2
    assert "--passes" not in str(result.document["notes"])


def test_a_branch_on_data_in_a_script_that_never_compiles_is_a_graph_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import torch
        x = torch.randn(1 << 14, device="cuda")

        def halve(t):
            return t * 0.5

        def damped(t):
            t = halve(t) + 1
            if t.sum() > 0:
                t = t - 1
            return t.relu() * 2

        def train(t):
            for _ in range(4):
                t = damped(t)
            print(t.sum().item())
            return t

        train(x)
        """
    result = audit(monkeypatch, tmp_path, textwrap.dedent(code))
    (told,) = [n["text"] for n in result.document["notes"] if n["kind"] == "compiled-for-you"]
    assert told == "the script never calls torch.compile; compiled for it: halve, damped"
    (found,) = [f for f in result.findings if f.rule == "FA112"]
    assert found.location is not None
    assert found.location.line == 10


def test_why_nothing_of_a_script_is_compiled_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import torch

        def total(t):
            return float((t * t).sum())

        for _ in range(3):
            total(torch.ones(1 << 14, device="cuda"))
        """
    result = audit(monkeypatch, tmp_path, textwrap.dedent(code))
    (told,) = [n["text"] for n in result.document["notes"] if n["kind"] == "compiled-for-you"]
    why = "nothing was compiled for it: total (line 4): no tensor comes out"
    assert told == f"the script never calls torch.compile; {why}"


def test_a_script_that_does_not_let_itself_be_ended_is_ended_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndedError(Exception):
        pass

    def end(status: int) -> None:
        raise EndedError(status)

    told: list[NeedsValue] = []
    values, op = WithoutValues(told.append), torch.ops.aten._local_scalar_dense.default
    large = torch.empty(1 << 20)
    monkeypatch.setattr("os._exit", end)

    def compute(*_: Any) -> None:
        raise AssertionError("computed")

    def go_on() -> int:
        for tried in range(1000):
            try:
                values.run(compute, op if tried == 0 else torch.ops.aten.abs.default, (large,), {}, on_host=False)
            except NeedsValue:
                continue
            except EndedError:
                return tried
        raise AssertionError("never ended")

    assert 5 < go_on() < 100
    assert [t.asked for t in told] == [".item() or a condition"]
    values = WithoutValues(told.append)
    with ThreadPoolExecutor() as pool:  # its end might never be noticed: at once
        assert pool.submit(go_on).result() == 0


def kernels(target: str, folder: Path) -> dict[str, str]:
    """Triton sources of a pointwise, a transposing and two reducing kernels for a target."""
    with DevicelessSession(device=find_target(target), folder=folder, pass_name="compiled", resources=False) as session:
        torch._dynamo.reset()
        x, y = torch.randn(512, 1024, device="cuda"), torch.randn(1024, 512, device="cuda")
        for function in (lambda: x.relu() * 2, lambda: x + y.t(), lambda: torch.softmax(x, -1), lambda: x.sum(0)):
            torch.compile(function)()
        return {name: text for g in session.lowering.lowered for name, text in ptxas.triton_sources(g.source).items()}


def test_figures_are_of_the_configuration_that_inductor_takes_untimed(tmp_path: Path) -> None:
    sources = kernels("h200", tmp_path)
    assert {name.split("_")[1] for name in sources} >= {"poi", "per", "red"}
    with DevicelessSession(device=find_target("h200"), folder=tmp_path, pass_name="compiled", resources=False):
        for name, text in sources.items():
            untimed = text.replace("'autotune_pointwise': True", "'autotune_pointwise': False")
            assert untimed != text
            first, only = (ptxas._load(name, t, tmp_path).configs for t in (text, untimed))
            assert str(first[0]) == str(only[0])
            assert len(only) == 1 or "_per_" in name


def test_triton_compiles_with_the_options_that_inductor_gives_it(tmp_path: Path) -> None:
    """``debug`` among them: the checks of indices that it compiles in take registers (case03, case38 on an H200)."""
    sources = kernels("h200", tmp_path)
    device = find_target("h200")
    with DevicelessSession(device=device, folder=tmp_path, pass_name="compiled", resources=False):
        for name, text in sources.items():
            kernel = ptxas._load(name, text, tmp_path)
            config = kernel.configs[0]
            if not hasattr(kernel, "_create_compile_options"):
                pytest.skip("this torch makes the options inside another method")
            theirs = kernel._create_compile_options(config, kernel._create_compile_meta(config))
            assert ptxas._compile_arguments(kernel, config, device)[2] == theirs
            assert theirs["debug"]


def test_of_several_configurations_the_one_that_spills_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    spills = {"first": 16, "second": 0, "third": 8}
    kernel = SimpleNamespace(configs=list(spills))
    monkeypatch.setattr(ptxas, "_load", lambda *_: kernel)
    monkeypatch.setattr(ptxas, "_figures", lambda _, config, device: {"config": config, "spill_bytes": spills[config]})
    assert ptxas._measure("k", "", find_target("h200"))["config"] == "second"
    kernel.configs = ["third", "first"]
    assert ptxas._measure("k", "", find_target("h200"))["config"] == "third"


@pytest.mark.parametrize(("version", "works"), [("2.9.1+cu128", False), ("2.10.0+cpu", True), ("3.0.0a0", True)])
def test_an_old_torch_is_named(version: str, works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    if works:
        require_torch()
        return
    with pytest.raises(AuditError, match=r"deviceless needs torch 2.10 or newer, this is 2.9.1\+cu128"):
        require_torch()


def test_the_assembler_s_report_is_read() -> None:
    log = (
        "ptxas info : Function properties for k\n  32 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
    )
    assert ptxas.nvidia_figures(log + "ptxas info : Used 40 registers, used 1 barriers") == {
        "registers": 40, "stack_bytes": 32, "spill_bytes": 12, "spill_load_bytes": 16,
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="nothing of registers"):
        ptxas.nvidia_figures("")


@pytest.mark.parametrize("target", ["b200", "mi300x"])
def test_other_targets_have_registers_too(target: str, tmp_path: Path) -> None:
    sources = kernels(target, tmp_path)
    device = find_target(target)
    with DevicelessSession(device=device, folder=tmp_path, pass_name="compiled", resources=False):
        name, text = next(iter(sources.items()))
        figures = ptxas.kernel_resources(name, text, device)
    assert figures["registers"] > 0
    assert figures["spill_bytes"] == 0
    assert 0 < figures["occupancy"] <= 1

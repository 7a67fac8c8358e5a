"""What a library has as one call is named, however it is written: softmax to optimizers, with the call and the line.

Each function of ``spellings_*.py`` is recorded once, as the engine without a GPU sees it, and judged by itself.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import library_spellings as spellings  # noqa: E402
import spellings_attention  # noqa: E402, F401
import spellings_chains  # noqa: E402, F401
import spellings_groups  # noqa: E402, F401
import spellings_loops  # noqa: E402
import spellings_losses  # noqa: E402, F401
import spellings_rows  # noqa: E402, F401
import spellings_twins  # noqa: E402, F401
from builders import eager, program  # noqa: E402

from fusionaudit.capture.deviceless import DevicelessSession  # noqa: E402
from fusionaudit.capture.recorder import Recorder  # noqa: E402
from fusionaudit.config import Config  # noqa: E402
from fusionaudit.device import find_target  # noqa: E402
from fusionaudit.findings import Finding  # noqa: E402
from fusionaudit.rules import run_rules  # noqa: E402
from fusionaudit.trace.oplog import read_oplog  # noqa: E402
from fusionaudit.trace.schema import Op  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine is for machines without one"),
]

NAMED = [name for name, (_, call, _) in spellings.CASES.items() if call is not None and call != spellings_loops.BOTH]
SILENT = [name for name, (_, call, _) in spellings.CASES.items() if call is None]
_PARTS = ("attention", "chains", "groups", "loops", "losses", "rows", "twins")
MODULES = ["library_spellings", *(f"spellings_{part}" for part in _PARTS)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Op, ...]]:
    folder = tmp_path_factory.mktemp("spellings")
    recorder = Recorder(folder / "ops.jsonl")
    session = DevicelessSession(device=find_target("h200"), folder=folder, pass_name="eager", recorder=recorder)
    imported = {name: sys.modules.pop(name) for name in MODULES}
    try:
        with session, recorder.recording():
            made = [importlib.import_module(name) for name in MODULES]
            made[0].main()
    finally:
        recorder.close()
        sys.modules.update(imported)
    log = read_oplog(folder / "ops.jsonl")
    functions = {name: function for name, (function, _, _) in spellings.CASES.items()}
    by_place: dict[tuple[str, int], str] = {}
    for name, function in (*functions.items(), ("gradients", spellings.gradients)):
        text, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
        by_place.update({(inspect.getfile(function), first + i): name for i in range(len(text))})  # type: ignore[arg-type]
    found: dict[str, list[Op]] = {name: [] for name in (*functions, "gradients")}
    for record in log.records:
        if isinstance(record, Op) and record.location is not None:
            name = by_place.get((record.location.file, record.location.line))
            if name is not None:
                found[name].append(record)
    for name, mine in found.items():
        if name in spellings.LOOPS and mine:
            # The gradients that were made for this function, and those only.
            before = [op for op in found["gradients"] if op.id < mine[0].id]
            mine[:0] = before[-len(before) // max(1, _runs(before)) :]
    return {name: tuple(mine) for name, mine in found.items()}


def _runs(ops: Sequence[Op]) -> int:
    """How often the function ran that these ops are of."""
    first = ops[0].name if ops else ""
    return sum(op.name == first and op.phase == "forward" for op in ops) // len(spellings.PARAMETERS)


def findings(ops: Sequence[Op]) -> list[Finding]:
    """As one step whose arguments change in every step, so that nothing is a constant."""
    return run_rules(program(replace(eager(*ops), repeated=frozenset())), Config())


def calls(found: list[Finding]) -> list[Finding]:
    """Those that name a library's call."""
    named = {call for _, call, _ in spellings.CASES.values() if call is not None}
    return [f for f in found if "library" in f.evidence or any(call in f.remedy for call in named)]


def marked(name: str) -> int:
    text, first = inspect.getsourcelines(spellings.CASES[name][0])  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(text) if "  # " in line and not line.lstrip().startswith("@"))


@pytest.mark.parametrize("name", NAMED)
def test_the_call_is_named_at_its_line(name: str, recorded: dict[str, tuple[Op, ...]]) -> None:
    _, call, grad = spellings.CASES[name]
    found = findings(recorded[name])
    forward = [f for f in calls(found) if f.key != "backward" and f.reason is None]
    assert [f.location and f.location.line for f in forward] == [marked(name)], [(f.message, f.remedy) for f in found]
    (finding,) = forward
    assert call is not None
    assert call in finding.remedy
    if finding.rule != "FA106":
        assert finding.avoidable_bytes is not None
        assert finding.evidence["global_bytes"] - finding.evidence["minimum_bytes"] == finding.avoidable_bytes > 0
    backward = [f for f in calls(found) if f.key == "backward"]
    assert all(f"in the backward of line {marked(name)}" in f.message and call in f.remedy for f in backward)
    assert len(backward) <= int(grad)


@pytest.mark.parametrize("name", SILENT)
def test_who_uses_the_call_is_left_alone(name: str, recorded: dict[str, tuple[Op, ...]]) -> None:
    assert not [(f.message, f.remedy) for f in calls(findings(recorded[name]))]


def one(name: str, recorded: dict[str, tuple[Op, ...]], rule: str, key: str = "forward") -> Finding:
    found = [f for f in findings(recorded[name]) if "beside" not in f.evidence]
    (finding,) = [f for f in found if f.rule == rule and f.key == key]
    return finding


def test_the_bytes_are_those_of_the_call(recorded: dict[str, tuple[Op, ...]]) -> None:
    rows, heads, scores = (4 * t.numel() for t in (spellings.X, spellings.Q, spellings.CAUSAL))
    assert one("softmax_amax", recorded, "FA103").evidence["minimum_bytes"] == 2 * rows
    attention = one("attention_nanogpt", recorded, "FA103")
    assert attention.evidence["minimum_bytes"] == 4 * heads + scores // 4  # q, k, v, the result and a bool mask
    loss = one("entropy_one_hot", recorded, "FA103")
    assert 3 * rows <= loss.evidence["minimum_bytes"] <= 3 * rows + 8  # logits, one-hot target, log-probabilities


def test_an_activation_by_hand_after_a_linear_is_not_its_epilogue(recorded: dict[str, tuple[Op, ...]]) -> None:
    """Nine kernels that move 22 times the linear's result, where GELU moves it twice; the epilogue would save its
    write and read, but backward needs it."""
    one_tensor = 4 * spellings.X.numel() * 4
    gelu = one("gelu_tanh_after_a_linear", recorded, "FA101")
    assert gelu.severity == "warning"
    assert (gelu.evidence["global_bytes"], gelu.avoidable_bytes) == (22 * one_tensor, 20 * one_tensor)
    epilogue = one("gelu_tanh_after_a_linear", recorded, "FA104")
    assert (epilogue.severity, epilogue.avoidable_bytes) == ("info", one_tensor)
    backward = one("gelu_tanh_after_a_linear", recorded, "FA101", "backward")
    assert backward.evidence["minimum_bytes"] == 3 * one_tensor  # both gradients and the input


ROWS = 4 * spellings.X.numel()


@pytest.mark.parametrize(
    ("name", "moved", "least"),
    [
        ("silu_and_a_factor", 7, 2),
        ("silu_of_a_sum", 12, 3),
        ("softmax_with_a_temperature", 10, 2),
        ("silu_that_is_summed", 6, 1),
        ("silu_twice_in_a_chain", 19, 2),
        ("silu_and_a_factor_that_is_trained", 7, 2),
        ("entropy_with_a_temperature", 4, 2),
        ("silu_behind_a_product", 8, 1),
        ("silu_behind_a_bias", 10, 1),
    ],
)
def test_a_pattern_and_the_chain_around_it_save_what_one_kernel_saves(
    recorded: dict[str, tuple[Op, ...]], name: str, moved: int, least: int
) -> None:
    """Rows that the ops move by themselves, and that one kernel (a matmul's epilogue) for all of them moves; statistics
    of rows left aside."""
    found = [f for f in findings(recorded[name]) if f.key == "forward" and f.avoidable_bytes]
    saved = sum(f.avoidable_bytes or 0 for f in found)
    assert abs(saved / ROWS - (moved - least)) < 0.05, [(f.rule, f.message) for f in found]
    (around,) = [f for f in found if "beside" in f.evidence]
    assert "as one call" in around.message
    assert around.evidence["global_bytes"] - around.evidence["minimum_bytes"] == around.avoidable_bytes


def test_a_loop_by_hand_saves_what_one_pass_over_the_tensors_saves(recorded: dict[str, tuple[Op, ...]]) -> None:
    """p -= lr * p.grad: 5 values a parameter (two kernels), 3 in one."""
    values = sum(4 * p.numel() for p in spellings.PARAMETERS)
    loop = one("sgd_minus", recorded, "FA106")
    assert loop.avoidable_bytes == 2 * values
    assert loop.evidence["tensors"] == 9
    (chain,) = [f for f in findings(recorded["sgd_minus"]) if f.rule == "FA101" and f.key == "forward"]
    assert "p.add_(p.grad, alpha=-lr)" in chain.remedy


def test_an_average_of_what_the_update_made_is_a_loop_of_its_own(recorded: dict[str, tuple[Op, ...]]) -> None:
    update, average = sorted(
        (f for f in findings(recorded["sgd_then_ema"]) if f.rule == "FA106"), key=lambda f: f.op_ids[0]
    )
    assert spellings_loops.FOREACH_SGD in update.remedy
    assert spellings_loops.LERP in average.remedy
    assert {f.evidence["launches"] for f in (update, average)} == {9, 18}

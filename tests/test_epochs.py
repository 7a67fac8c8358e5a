"""Training loops without step marks: the step is what one optimizer update needs, not an epoch of them.

epoch:  [ mm  mm_backward  add_ (optimizer) ] x 4   [ mm  mean ] x 2  item
"""

from __future__ import annotations

from typing import Any

import pytest

from fusionaudit.program.records import record_steps
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import GraphCall, Op, OpLog, Phase, Record

W = Tensor.contiguous((256, 256), "float32", "w")
TRAIN: tuple[tuple[str, Phase], ...] = (
    ("aten.mm.default", "forward"), ("aten.tanh.default", "forward"), ("aten.tanh_backward.default", "backward"),
    ("aten.mm.dtype", "backward"), ("aten.add_.Tensor", "optimizer"),
)  # fmt: skip
EVALUATE: tuple[tuple[str, Phase], ...] = (("aten.mm.default", "forward"), ("aten.mean.default", "forward"))
REPORT: tuple[tuple[str, Phase], ...] = (("aten.div.Tensor", "forward"), ("aten.stack.default", "forward"))


def oplog(*names: tuple[str, Phase]) -> OpLog:
    return OpLog(
        records=tuple(
            Op(id=i, name=name, inputs=(W,), outputs=(W,), phase=phase) for i, (name, phase) in enumerate(names)
        )
    )


def lengths(log: OpLog, **options: Any) -> list[int]:
    _, found = record_steps(log, **options)
    return [b - a for a, b in found.spans]


@pytest.mark.parametrize("batches", [3, 4, 10])
@pytest.mark.parametrize("epochs", [2, 3])
@pytest.mark.parametrize("after", [EVALUATE * 2 + REPORT, EVALUATE + REPORT, REPORT])
def test_an_epoch_is_no_step(batches: int, epochs: int, after: tuple[tuple[str, Phase], ...]) -> None:
    found = lengths(oplog(*(TRAIN * batches + after) * epochs))
    assert set(found) == {len(TRAIN)}
    assert len(found) >= batches - 1


def test_the_number_of_steps_that_is_asked_for() -> None:
    assert lengths(oplog(*(TRAIN * 6 + EVALUATE * 2 + REPORT) * 2), steps=2) == [5, 5]
    assert lengths(oplog(*TRAIN * 20), steps=2) == [5, 5], "few of many are as good as all"


def test_two_updates_of_different_work_are_one_step() -> None:
    other: tuple[tuple[str, Phase], ...] = tuple((name.replace("tanh", "relu"), phase) for name, phase in TRAIN)
    assert set(lengths(oplog(*(TRAIN + other) * 3))) == {10}


def test_a_loop_without_an_optimizer_stays_inside_its_step() -> None:
    turn: tuple[tuple[str, Phase], ...] = (("aten.mm.default", "forward"), ("aten.tanh.default", "forward"))
    assert set(lengths(oplog(*(("aten.embedding.default", "forward"), *turn * 6) * 3))) == {13}


def test_compiled_epochs() -> None:
    def graph(name: str) -> GraphCall:
        return GraphCall(graph=name, inputs=(W,), outputs=(W,))

    update = Op(id=0, name="aten._fused_adamw_.default", inputs=(W,), phase="optimizer", mutated=(0,))
    train: list[Record] = [graph("0/0/forward"), graph("0/0/backward"), update]
    epoch = [*train * 5, graph("1/0/inference"), Op(id=0, name="aten.mean.default", inputs=(W,), outputs=(W,))]
    assert set(lengths(OpLog(records=tuple(epoch * 2)))) == {3}

"""Which call a hand-written loop over parameters is told to use, by what its ops read and by their scalars."""

from __future__ import annotations

import pytest
from builders import MEGA, eager, op, run, t

from fusionaudit.rules import fa101, fa106
from fusionaudit.rules.averages import is_average
from fusionaudit.trace.schema import Op

N = 8
FIRST, SECOND = {"tensor": 0}, {"tensor": 1}


def gradients() -> list[Op]:
    return [op("mm", [t("dy", MEGA), t(f"x{i}", MEGA)], t(f"g{i}", MEGA), phase="backward") for i in range(N)]


def remedies(ops: list[Op]) -> str:
    return " ".join(f.remedy for f in run(fa106, eager(*gradients(), *ops)))


def adaptive(i: int, over: str) -> list[Op]:
    p, g, v, d, m = (t(f"{name}{i}", MEGA, parameter=name == "p") for name in "pgvdm")
    return [
        op("aten.mul_.Tensor", [v], v, mutated=[0], arguments=(FIRST, 0.9)),
        op("aten.addcmul_.default", [v, g, g], v, mutated=[0]),
        op("aten.lerp_.Scalar", [m, g], m, mutated=[0]),
        op("aten.sqrt.default", [v], d),
        op("aten.addcdiv_.default", [p, t(f"{over}{i}", MEGA), d], p, mutated=[0]),
    ]


def test_adam_divides_an_average_and_rmsprop_the_gradient() -> None:
    assert "torch.optim.AdamW" in remedies([o for i in range(N) for o in adaptive(i, "m")])
    said = remedies([o for i in range(N) for o in adaptive(i, "g")])
    assert "torch.optim.RMSprop with foreach=True" in said
    assert "Ada" not in said


def out_of_place(*, decay: bool) -> list[Op]:
    """``p.sub_(lr * g / v.sqrt())`` with ``v.add_(g ** 2)``, or ``v = 0.9 * v + 0.1 * g ** 2``."""
    ops = []
    for i in range(N):
        p, g, v, d, s, u, q, a, b, w = (t(f"{name}{i}", MEGA, parameter=name == "p") for name in "pgvdsuqabw")
        ops.append(op("aten.pow.Tensor_Scalar", [g], q, arguments=(FIRST, 2)))
        if decay:
            ops.append(op("aten.mul.Tensor", [v], a, arguments=(FIRST, 0.9)))
            ops.append(op("aten.mul.Tensor", [q], b, arguments=(FIRST, 0.1)))
            ops.append(op("aten.add.Tensor", [a, b], w))
        else:
            ops.append(op("aten.add_.Tensor", [v, q], v, mutated=[0]))
        ops += [
            op("aten.mul.Tensor", [g], s, arguments=(FIRST, 0.01)),
            op("aten.sqrt.default", [w if decay else v], d),
            op("aten.div.Tensor", [s, d], u),
            op("aten.sub_.Tensor", [p, u], p, mutated=[0]),
        ]
    return ops


def test_rmsprop_forgets_squares_and_adagrad_adds_them_up() -> None:
    """Each with the flags that its class has."""
    rmsprop, adagrad = remedies(out_of_place(decay=True)), remedies(out_of_place(decay=False))
    assert "torch.optim.RMSprop with foreach=True (it has no fused form)" in rmsprop
    assert "Adagrad" not in rmsprop
    assert "torch.optim.Adagrad with foreach=True, or fused=True (on CUDA from torch 2.13 on)" in adagrad
    assert "RMSprop" not in adagrad
    added = [o for i in range(N) for o in adaptive(i, "g") if o.name != "aten.mul_.Tensor"]
    assert "torch.optim.Adagrad" in remedies(added)


@pytest.mark.parametrize(("other", "clips"), [("g", True), ("l", False)])
def test_only_sums_of_squares_are_norms(other: str, clips: bool) -> None:
    ops = []
    for i in range(N):
        ops.append(op("aten.mul.Tensor", [t(f"g{i}", MEGA), t(f"{other}{i}", MEGA)], t(f"q{i}", MEGA)))
        ops.append(op("aten.sum.default", [t(f"q{i}", MEGA)], t(f"n{i}")))
    assert ("clip_grad_norm_" in remedies(ops)) is clips


E_, P_ = t("e", MEGA), t("p", MEGA)


def scaled(factor: float) -> Op:
    return op("aten.mul_.Tensor", [E_], E_, mutated=[0], arguments=(FIRST, factor))


def added(**keywords: float) -> Op:
    given = (FIRST, SECOND, *([{"kwargs": keywords}] if keywords else []))
    return op("aten.add_.Tensor", [E_, P_], E_, mutated=[0], arguments=given)


def test_an_average_has_two_weights_that_add_up_to_one() -> None:
    assert is_average([scaled(0.9), added(alpha=0.1)])
    assert is_average([scaled(0.5), added(alpha=0.5)])
    assert not is_average([scaled(0.5), added()])
    assert not is_average([scaled(0.5), added(alpha=1)])
    assert not is_average([added(alpha=0.5)])
    assert not is_average([scaled(0.999), added(alpha=0.01)])


def test_an_average_by_a_difference() -> None:
    apart, part = t("a", MEGA), t("b", MEGA)
    minus = op("aten.sub.Tensor", [E_, P_], apart)
    times = op("aten.mul.Tensor", [apart], part, arguments=(FIRST, 0.01))
    taken = op("aten.sub_.Tensor", [E_, part], E_, mutated=[0])
    assert is_average([minus, times, taken])
    assert not is_average([scaled(0.9), op("aten.sub_.Tensor", [E_, P_], E_, mutated=[0])])


def test_a_scaled_buffer_that_is_added_to_is_no_gradient_step() -> None:
    """Lion's ``m.mul_(0.99).add_(g, alpha=0.01)`` is a lerp; ``p -= 0.01 * g`` an add with alpha."""

    def said(ops: list[Op]) -> set[str]:
        return {f.remedy.partition(",")[0] for f in run(fa101, eager(*gradients(), *ops))}

    lerp, step = [], []
    for i in range(N):
        p, g, m, s = (t(f"{name}{i}", MEGA, parameter=name == "p") for name in "pgms")
        lerp.append(op("aten.mul_.Tensor", [m], m, mutated=[0], at=4, arguments=(FIRST, 0.99)))
        keywords = {"kwargs": {"alpha": 0.01}}
        lerp.append(op("aten.add_.Tensor", [m, g], m, mutated=[0], at=4, arguments=(FIRST, SECOND, keywords)))
        step.append(op("aten.mul.Tensor", [g], s, at=4, arguments=(FIRST, 0.01)))
        step.append(op("aten.sub_.Tensor", [p, s], p, mutated=[0], at=4))
    assert said(lerp) == {"use m.lerp_(p.grad"}
    assert said(step) == {"use p.add_(p.grad"}

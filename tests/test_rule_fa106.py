"""FA106: per-parameter loop with a foreach or fused form."""

from __future__ import annotations

from builders import eager, op, run, t, warnings

from fusionaudit.rules import fa101, fa102, fa106


def adam(count: int, size: int = 512 * 512):
    made = []
    for i in range(count):
        p, g, m = t(f"p{i}", size, parameter=True), t(f"g{i}", size), t(f"m{i}", size)
        made += [
            op("aten.mul_.Tensor", [p], p, mutated=[0], phase="optimizer", at=8),
            op("aten.lerp_.Scalar", [m, g], m, mutated=[0], phase="optimizer", at=8),
            op("aten.sqrt.default", [m], t(f"d{i}", size), phase="optimizer", at=8),
            op("aten.addcdiv_.default", [p, m, t(f"d{i}", size)], p, mutated=[0], phase="optimizer", at=8),
        ]
    return made


def test_an_optimizer_that_goes_tensor_by_tensor():
    (found,) = warnings(fa106, eager(*adam(12)))
    assert found.evidence["tensors"] == 12
    assert "foreach=True" in found.remedy
    assert len(found.op_ids) == 48


def test_its_ops_are_no_chain_of_their_own():
    assert not warnings(fa101, eager(*adam(12)))


def test_clipping_by_hand_names_clip_grad_norm():
    grads = [t(f"g{i}", 4096) for i in range(10)]
    norms = [op("linalg_vector_norm", [g], t(f"n{i}"), at=5) for i, g in enumerate(grads)]
    scale = [op("aten.mul_.Tensor", [g], g, mutated=[0], at=6) for g in grads]
    found = run(fa106, eager(*norms, *scale))
    assert any("clip_grad_norm_" in f.remedy for f in found)
    assert {f.location.line for f in found if f.location is not None} == {5, 6}


def test_silent_on_the_foreach_form_and_on_two_tensors():
    many = [t(f"p{i}", 4096, parameter=True) for i in range(12)]
    foreach = op("aten._foreach_mul_.Scalar", many, *many, mutated=list(range(12)), phase="optimizer")
    assert not run(fa106, eager(foreach))
    assert not run(fa106, eager(*adam(2)))


def test_silent_on_an_in_place_activation_in_each_layer():
    ops = []
    for i in range(12):
        x, y = t(f"x{i}", 64, 64), t(f"x{i + 1}", 64, 64)
        ops += [op("mm", [x, t(f"w{i}", 64, 64)], y, at=3), op("aten.relu_.default", [y], y, mutated=[0], at=3)]
    assert not run(fa106, eager(*ops))


def test_the_largest_gradient_parameter_by_parameter():
    """max(p.grad.abs().max() for p in parameters): two launches each, from gradients that backward made."""
    made = []
    for i in range(8):
        made.append(op("mm", [t("g", 64, 64), t(f"x{i}", 64, 64)], t(f"d{i}", 64, 64), phase="backward"))
    for i in range(8):
        made.append(op("abs", [t(f"d{i}", 64, 64)], t(f"a{i}", 64, 64), at=9))
        made.append(op("aten.max.default", [t(f"a{i}", 64, 64)], t(f"m{i}"), at=9))
    (found,) = run(fa106, eager(*made))
    assert found.evidence == {"tensors": 8, "launches": 16, "share_of_launches": round(16 / 24, 4)}
    assert not warnings(fa102, eager(*made))

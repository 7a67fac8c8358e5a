"""FA106: per-parameter loop with a foreach or fused form."""

from __future__ import annotations

from dataclasses import replace

from builders import FILE, compiled, eager, line, op, run, t, warnings

from fusionaudit.findings import Location
from fusionaudit.rules import fa101, fa102, fa106
from fusionaudit.rules.library_ops import has_fused, optimizer_form


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


def adam_foreach(
    count: int = 12,
    size: int = 512 * 512,
    *,
    capturable: bool = False,
    library: str | None = "torch.optim.adam.step",
    at: int = 10,
):
    """torch.optim.AdamW's step as it is on CUDA by default, after a backward that made the gradients."""
    p, g, m, v, d = ([t(f"{name}{i}", size, parameter=name == "p") for i in range(count)] for name in "pgmvd")
    first = range(count)
    step = [
        op("aten._foreach_mul_.Scalar", p, mutated=first),
        op("aten._foreach_lerp_.Scalar", [*m, *g], mutated=first),
        op("aten._foreach_mul_.Scalar", v, mutated=first),
        op("aten._foreach_addcmul_.Scalar", [*v, *g, *g], mutated=first),
        op("aten._foreach_sqrt.default", v, *d),
        op("aten._foreach_div_.ScalarList", d, mutated=first),
        op("aten._foreach_add_.Scalar", d, mutated=first),
        *[op("aten._foreach_div_.ScalarList", d, mutated=first)] * capturable,
        op("aten._foreach_addcdiv_.ScalarList", [*p, *m, *d], mutated=first),
    ]
    return [
        replace(o, phase="optimizer", location=Location(file=FILE, line=at, function="f", library=library))
        for o in step
    ]


def test_a_foreach_optimizer_that_has_a_fused_form():
    (found,) = warnings(fa106, eager(*adam_foreach()))
    one = 12 * 512 * 512 * 4
    assert found.evidence["global_bytes"] == 20 * one
    assert found.evidence["minimum_bytes"] == 7 * one
    assert found.avoidable_bytes == 13 * one
    assert found.evidence["launches"] == 8
    assert found.evidence["fused_launches"] == 1
    assert found.location is not None
    assert found.location.line == 10
    assert "fused=True" in found.remedy
    assert "12 tensors, which 1 fused kernel would: 164 MB of 252 MB" in found.message
    assert "_foreach_" not in found.message


def test_two_steps_and_two_groups_are_calls_of_their_own():
    """Where no repeating step was found the recording has the optimizer twice: 7 values a parameter each time."""
    (found,) = warnings(fa106, eager(*adam_foreach(), *adam_foreach()))
    assert found.avoidable_bytes == 2 * 13 * 12 * 512 * 512 * 4
    assert found.evidence["fused_launches"] == 2
    assert found.evidence["tensors"] == 24


def test_an_op_twice_on_a_result_in_between_is_one_step():
    """capturable=True divides the root by two corrections."""
    (found,) = warnings(fa106, eager(*adam_foreach(capturable=True)))
    assert found.evidence["tensors"] == 12
    assert found.evidence["fused_launches"] == 1
    assert found.evidence["minimum_bytes"] == 7 * 12 * 512 * 512 * 4


def test_sgd_with_momentum_moves_eight_values_and_needs_five():
    p, g, b = ([t(f"{name}{i}", 1 << 20, parameter=name == "p") for i in range(8)] for name in "pgb")
    step = [
        op("aten._foreach_mul_.Scalar", b, mutated=range(8)),
        op("aten._foreach_add_.List", [*b, *g], mutated=range(8)),
        op("aten._foreach_add_.List", [*p, *b], mutated=range(8)),
    ]
    at = Location(file=FILE, line=10, library="torch.optim.sgd.step")
    (found,) = warnings(fa106, eager(*(replace(o, phase="optimizer", location=at) for o in step)))
    assert found.avoidable_bytes == 3 * 8 * (4 << 20)
    alone = replace(step[2], phase="optimizer", location=at)
    assert not run(fa106, eager(alone))


def test_foreach_calls_by_hand():
    """Each on its own line; a step that is compiled, or small, is not told."""
    step = [
        replace(o, phase="forward", location=replace(line(10 + i), function="step"))
        for i, o in enumerate(adam_foreach(library=None))
    ]
    (found,) = warnings(fa106, eager(*step))
    one = 12 * 512 * 512 * 4
    assert found.avoidable_bytes == 13 * one
    assert found.evidence["fused_launches"] == 1
    assert found.location is not None
    assert found.location.line == 10
    assert "torch.compile the function that updates" in found.remedy
    assert "default on CUDA" not in found.reason
    assert not run(fa106, eager(*step), compiled(), uses_compile=True)
    assert not run(fa106, eager(*adam_foreach(library=None, size=512)))


def test_silent_on_one_foreach_call_by_hand():
    """A moving average, the sum of gradients, and a clip, whose factor needs all gradients first."""
    p, g, e = ([t(f"{name}{i}", 1 << 20, parameter=name == "p") for i in range(8)] for name in "pge")
    n = [t(f"n{i}") for i in range(8)]
    average = op("aten._foreach_lerp_.Scalar", [*e, *p], mutated=range(8), at=20)
    norm = op("aten._foreach_norm.Scalar", g, *n, at=21)
    clip = op("aten._foreach_mul_.Tensor", g, mutated=range(8), at=22)
    decay = op("aten._foreach_add_.List", [*g, *p], mutated=range(8), at=20)
    assert not run(fa106, eager(average))
    assert not run(fa106, eager(norm, clip))
    assert not run(fa106, eager(decay, norm, clip))


def test_silent_where_there_is_no_fused_form_or_it_is_used_or_small():
    assert not run(fa106, eager(*adam_foreach(library="torch.optim.rmsprop.step")))
    assert not run(fa106, eager(*adam_foreach(library="torch.optim.nadam.step")))
    assert not run(fa106, eager(*adam_foreach(size=512)))
    assert not run(fa106, eager(*adam_foreach()), compiled(), uses_compile=True)
    tensors = [t(f"p{i}", 512 * 512, parameter=True) for i in range(48)]
    at = Location(file=FILE, line=10, library="torch.optim.adam.step")
    counter = op("aten._foreach_add_.Scalar", [t(f"s{i}") for i in range(12)], mutated=range(12))
    fused = op("aten._fused_adamw_.default", tensors, mutated=range(48))
    assert not run(fa106, eager(*(replace(o, phase="optimizer", location=at) for o in (counter, fused))))


def test_adagrad_has_a_fused_form_on_cuda_since_torch_2_13():
    at = "torch.optim.adagrad.step"
    assert has_fused(at, "2.13.0+cu130")
    assert not has_fused(at, "2.11.0+cu130")
    assert not has_fused("torch.nn.utils.clip_grad_norm_", "2.13.0")
    assert not has_fused(None, "2.13.0")
    assert optimizer_form("torch.optim.rmsprop.step") == "foreach=True of the optimizer"

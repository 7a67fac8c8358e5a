"""FA118: torch.compile made it worse than eager."""

from __future__ import annotations

from dataclasses import replace

from builders import MEGA, call, compiled, eager, graph, op, program, run, t

from fusionaudit.config import Config
from fusionaudit.findings import Note
from fusionaudit.rules import fa118

X, Y = t("x", MEGA), t("y", MEGA)


def moves(times: int, **options):
    calls = [call(f"triton_poi_{i}", [t(f"a{i}", MEGA)], [t(f"b{i}", MEGA)]) for i in range(times)]
    return compiled(graph(*calls, outputs=["b0"]), **options)


def test_more_bytes_than_eager():
    (found,) = run(fa118, eager(op("exp", [X], Y)), moves(2))
    assert found.severity == "warning"
    assert found.avoidable_bytes == 8 * MEGA


def test_more_measured_time_than_eager():
    before = eager(op("exp", [X], Y))
    before = replace(
        before, kernels=tuple(replace(k, duration_ns=10_000, time_basis="measured") for k in before.kernels)
    )
    (found,) = run(fa118, before, moves(1, duration_ns=50_000))
    assert found.saving_ns == 40_000
    assert found.basis == "measured"


def test_a_region_has_what_is_nested_in_it():
    one = eager(op("exp", [X], Y), op("neg", [Y], X))
    regions = ("block", "block > head")
    nested = replace(one, kernels=tuple(replace(k, region=r) for k, r in zip(one.kernels, regions, strict=True)))
    flat = moves(2)
    flat = replace(flat, kernels=tuple(replace(k, region="block") for k in flat.kernels))
    assert not run(fa118, nested, flat)
    assert len(run(fa118, replace(nested, kernels=nested.kernels[:1]), flat)) == 2


def test_more_launches_alone_are_no_proof():
    one = eager(op("exp", [t("x", 4 * MEGA)], t("y", 4 * MEGA)))
    assert not run(fa118, one, moves(4))


def test_silent_where_nothing_was_compiled():
    assert not run(fa118, eager(op("exp", [X], Y)), eager(op("exp", [X], Y), op("neg", [Y], X), name="compiled"))


def test_silent_where_the_bytes_between_an_ops_launches_are_not_known():
    before = eager(op("exp", [X], Y))
    before = replace(before, kernels=(*before.kernels, replace(before.kernels[0], id=1, read_bytes=0, write_bytes=0)))
    assert not run(fa118, before, moves(2))


def test_silent_on_bytes_of_a_predicted_convolution_that_may_turn_its_operands():
    x, y, w = t("x", 32, 16, 64, 64), t("y", 32, 32, 64, 64), t("w", 32, 16, 3, 3)
    last = replace(x, strides=(16 * 64 * 64, 1, 64 * 16, 16))
    turned = replace(w, strides=(16 * 9, 1, 48, 16))
    assert not run(fa118, eager(op("convolution", [x, w], y)), moves(8))
    assert run(fa118, eager(op("convolution", [last, turned], y)), moves(8))


def test_silent_where_the_passes_steps_are_not_the_same_work():
    one, two = eager(op("exp", [X], Y)), moves(2)
    p = replace(program(one, two), notes=(Note(kind="other-steps", text="other work"),))
    assert not list(fa118.check(p, Config()))

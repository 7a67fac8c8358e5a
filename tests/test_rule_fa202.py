"""FA202: the same small kernel relaunched in a loop."""

from __future__ import annotations

from builders import eager, op, run, t, warnings

from fusionaudit.rules import fa101, fa202


def recurrence(turns: int, width: int = 4096):
    made = []
    for i in range(turns):
        made += [
            op("mul", [t("f", width), t(f"h{i}", width)], t(f"m{i}", width), at=4),
            op("add", [t(f"m{i}", width), t(f"x{i}", width)], t(f"h{i + 1}", width), at=4),
        ]
    return made


def test_a_recurrence_as_a_python_loop():
    (found,) = warnings(fa202, eager(*recurrence(32)))
    assert found.evidence["turns"] == 32
    assert found.evidence["launches"] == 64


def test_its_turns_are_no_chain_warning():
    assert not warnings(fa101, eager(*recurrence(32)))


def test_silent_on_turns_that_do_not_wait_for_each_other():
    loose = [op("mul", [t("f", 4096), t(f"x{i}", 4096)], t(f"y{i}", 4096), at=4) for i in range(64)]
    assert not run(fa202, eager(*loose))


def test_silent_on_few_turns_and_on_large_kernels():
    assert not run(fa202, eager(*recurrence(8)))
    assert not run(fa202, eager(*recurrence(32, 64 << 20)))


def test_silent_on_the_layers_of_a_model():
    """The same ops in a row, but each turn has weights of its own."""
    layers = []
    for i in range(24):
        weight = t(f"w{i}", 64, parameter=True)
        layers += [
            op("mul", [t(f"h{i}", 64), weight], t(f"m{i}", 64), at=4),
            op("add", [t(f"h{i}", 64), t(f"m{i}", 64)], t(f"h{i + 1}", 64), at=4),
        ]
    assert not run(fa202, eager(*layers))


def test_silent_on_numbers_that_are_added_up():
    total = [op("add", [t(f"s{i}"), t(f"n{i}")], t(f"s{i + 1}"), at=4) for i in range(40)]
    assert not run(fa202, eager(*total))

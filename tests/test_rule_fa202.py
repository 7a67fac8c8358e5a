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


def scan(turns: int):
    """A selective scan: one line with three products, of which one waits for the last turn."""
    made = []
    for i in range(turns):
        made += [
            op("mul", [t("decay", 4096), t(f"h{i}", 4096)], t(f"p{i}", 4096), at=4),
            op("mul", [t("step", 4096), t("in", 4096)], t(f"q{i}", 4096), at=4),
            op("mul", [t(f"q{i}", 4096), t("x", 4096)], t(f"r{i}", 4096), at=4),
            op("add", [t(f"p{i}", 4096), t(f"r{i}", 4096)], t(f"h{i + 1}", 4096), at=4),
            op("sum", [t(f"h{i + 1}", 4096)], t(f"y{i}", 64), at=5),
        ]
    return made


def test_a_turn_with_the_same_op_several_times_is_one():
    (found,) = run(fa202, eager(*scan(24)))
    assert (found.evidence["turns"], found.evidence["launches"]) == (24, 5 * 24)
    assert "a loop of 24 dependent turns launches 120 small kernels, 5 a turn" in found.message
    twice = []
    for i in range(24):
        twice += [
            op("mul", [t(f"h{i}", 4096), t("a", 4096)], t(f"m{i}", 4096), at=4),
            op("mul", [t(f"m{i}", 4096), t("b", 4096)], t(f"h{i + 1}", 4096), at=4),
        ]
    (found,) = run(fa202, eager(*twice))
    assert found.evidence["turns"] == 24


def test_the_first_turn_counts_though_it_reads_a_state_of_zeros():
    turns = []
    for i in range(24):
        turns += [
            op("sigmoid", [t(f"h{i}", 4096)], t(f"g{i}", 4096), at=4),
            op("mul", [t(f"g{i}", 4096), t(f"h{i}", 4096)], t(f"h{i + 1}", 4096), at=5),
        ]
    (found,) = run(fa202, eager(*turns))
    assert found.evidence["turns"] == 24


def test_two_loops_are_two_findings():
    other = [op("exp", [t(f"g{i}", 4096)], t(f"g{i + 1}", 4096), at=40) for i in range(100)]
    found = run(fa202, eager(*recurrence(32), *other))
    assert [(f.evidence["turns"], f.evidence["launches"]) for f in found] == [(32, 64), (100, 100)]


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


def test_silent_on_experts_that_add_to_one_result():
    """What adds up is on one line, the experts' weights are used elsewhere."""
    experts = []
    for i in range(16):
        index = t(f"i{i}", 64, dtype="int64")
        weight = t(f"w{i}", 64, 64, parameter=True)
        experts += [
            op("mm", [t(f"x{i}", 64, 64), weight], t(f"e{i}", 64, 64), at=15),
            op("index_add_", [t("o", 256, 64), index, t(f"e{i}", 64, 64)], t("o", 256, 64), mutated=[0], at=36),
        ]
    assert not run(fa202, eager(*experts))

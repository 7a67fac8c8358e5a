"""The steady step is found by marks, by repetition, or not at all; sequences are drawn as strings, one key a letter."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fusionaudit.program.periods import best_repeat
from fusionaudit.program.steps import find_steps, steady_activities
from fusionaudit.trace.schema import Activity, RangeOp


def words(text: str, **more: int | None) -> list[str]:
    """The steps found, as the pieces of the string."""
    found = find_steps(text, **more)  # type: ignore[arg-type]
    return [text[a:b] for a, b in found.spans] if found.source == "period" else []


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("abcabc", ["abc", "abc"]),
        ("abab", ["ab", "ab"]),
        ("aaaa", ["a", "a", "a", "a"]),
        ("XYabcabcabcZ", ["abc"] * 3),  # set-up before, checksum after
        ("abXabXab", ["abX", "abX"]),  # two and two thirds: nothing like it before, so it starts at the start
        ("abcdXbcd" + "abcdebcd" * 3, ["abcdebcd"] * 3),  # a warm-up step that differs in the middle
        ("abcdeabcdeabc", ["abcde"] * 2),  # a final evaluation after the last step
        ("abcQabcabRc", ["abc", "abc", "abRc"]),  # foreign elements, one of a kind
        ("z" + "xy" * 300 + "abcdef" * 2 + "w", ["abcdef"] * 2),  # a benchmark's loop before
        ("fffgggh" * 3, ["fffgggh"] * 3),  # loops inside a step
        ("abcdefgh", []),
        ("", []),
    ],
)
def test_found_by_repetition(text: str, steps: list[str]) -> None:
    assert words(text) == steps


def test_benchmarks_between_compiled_steps_are_passed_over() -> None:
    step = [f"k{i}" for i in range(40)]
    cold = [x for k in step for x in [*[k, "flush"] * 50, k]]
    sequence = ["seed", *cold, *step, *step, "print"]
    found = find_steps(sequence)
    assert [sequence[a:b] for a, b in found.spans] == [step, step]
    assert found.source == "period"


def test_warmup_and_steps() -> None:
    assert words("abcabcabcabc", warmup=1) == ["abc"] * 3
    assert words("abcabcabcabc", steps=2) == ["abc"] * 2
    assert find_steps("abcabcabcabc", warmup=1, steps=2).spans == ((6, 9), (9, 12))
    assert words("abcabc", warmup=9) == ["abc"]


def test_nothing_repeats() -> None:
    found = find_steps("abcdefgh")
    assert (found.source, found.spans, found.confidence) == ("whole", ((0, 8),), 0.0)
    assert find_steps("").spans == ()


def marked(text: str) -> tuple[str, list[int | None]]:
    """``S|abc|abc``: what follows a bar is the next step."""
    marks: list[int | None] = []
    current = None
    for letter in text:
        if letter == "|":
            current = 0 if current is None else current + 1
        else:
            marks.append(current)
    return text.replace("|", ""), marks


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("S|abc|abc|abc", ["abc"] * 3),
        ("S|abcX|abc|abc", ["abc"] * 3),  # a first step that does more at its end
        ("S|Xabc|abc|abc", ["abc"] * 2),  # ... at its start
        ("S|abc|abc|abcTU", ["abc"] * 3),  # a checksum after the last step
        ("|abc|abcTU", ["abc"] * 2),
        ("|abc|abd|abe", ["abd", "abe"]),  # every step is different: all but the first
        ("|a|abc|abc", ["abc"] * 2),
        ("|abc", ["abc"]),
    ],
)
def test_marks_win(text: str, steps: list[str]) -> None:
    keys, marks = marked(text)
    found = find_steps(keys, marks)
    assert found.source == "marks"
    assert [keys[a:b] for a, b in found.spans] == steps


def test_marks_with_warmup_and_steps() -> None:
    keys, marks = marked("S|abc|abc|abc|abc")
    assert find_steps(keys, marks, warmup=1, steps=2).spans == ((7, 10), (10, 13))


def test_marks_interleaved_by_a_second_stream() -> None:
    found = find_steps("abxcabyc", [0, 0, 0, 0, 1, 0, 1, 1])
    assert found.spans[-1][1] == 8


def test_a_long_wait_says_where_steps_start() -> None:
    #  x a b c | a b c | a b c | a      cut before "b" if the device waits there each time
    text = "xabcabcabca"
    gaps = [0, 0, 50, 0, 0, 50, 0, 0, 50, 0, 0]
    assert words(text) == ["abc"] * 3
    found = find_steps(text, gaps=gaps)
    assert [text[a:b] for a, b in found.spans] == ["bca"] * 3


block = st.lists(st.integers(0, 30), min_size=1, max_size=25)


@given(
    block, st.integers(2, 6), st.lists(st.integers(100, 200), max_size=20), st.lists(st.integers(300, 400), max_size=9)
)
@settings(deadline=None)
def test_a_repeated_block_is_found_between_anything(
    step: list[int], count: int, before: list[int], after: list[int]
) -> None:
    assume(len(set(before)) == len(before))
    assume(len(set(after)) == len(after))
    assume(not any(len(step) % n == 0 and step == step[:n] * (len(step) // n) for n in range(1, len(step))))
    sequence = [*before, *step * count, *after]
    found = find_steps(sequence)
    assert found.source == "period"
    richest = best_repeat(sequence)
    assert richest is not None
    assert richest.distinct == len(set(step)) or richest.distinct >= 0.8 * len(set(step))
    spans = found.spans
    assert all(a < b for a, b in spans)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    blocks = {tuple(sequence[a:b]) for a, b in spans}
    assert len(blocks) == 1
    assert len(spans) >= 2


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=60))
@settings(deadline=None)
def test_any_input_gives_spans_in_order_within_the_sequence(keys: list[int], marks: list[int | None]) -> None:
    found = find_steps(keys, marks[: len(keys)])
    assert all(0 <= a < b <= len(keys) for a, b in found.spans)
    assert 0.0 <= found.confidence <= 1.0
    assert bool(found.spans) == bool(keys)


@pytest.mark.parametrize("kind", ["steps", "noise", "constant"])
def test_fifty_thousand_elements_in_seconds(kind: str) -> None:
    step = [f"k{i % 317}" for i in range(500)]
    sequence = {
        "steps": [*(f"s{i}" for i in range(1000)), *step * 98],
        "noise": [(i * i * 7919 + i // 3) % 911 for i in range(50_000)],
        "constant": ["k"] * 50_000,
    }[kind]
    started = time.process_time()
    found = find_steps(sequence)
    assert time.process_time() - started < 20
    if kind == "steps":
        assert len(found.spans) == 98


# -- activities --------------------------------------------------------------------------------------------------------


def launches(text: str, *, ops: bool = False) -> list[Activity]:
    """One kernel a letter, 10 ns each, back to back; ``ops``: each reads what the one before made."""
    out = []
    for i, letter in enumerate(text):
        op = RangeOp(name=f"aten.{letter}", op_id=i + 1, shapes=((8,),), input_ops=((i, 0),)) if ops else None
        out.append(Activity(kind="kernel", name=letter, start_ns=10 * i, end_ns=10 * i + 10, device=0, stream=7, op=op))
    return out


def test_a_loop_inside_a_call_is_not_its_step() -> None:
    """Four turns of (a, b) in each of two calls: the first launch of a call reads what no op before it made."""
    activities = launches("abababab" * 2, ops=True)
    for start in (0, 8):
        first = activities[start]
        assert first.op is not None
        activities[start] = replace(first, op=replace(first.op, input_ops=((0, -1),)))
    assert steady_activities(activities).spans == ((0, 8), (8, 16))
    assert len(steady_activities(launches("abababab" * 2)).spans) == 8


def test_steps_with_ranges_are_preferred_over_the_warmup_without() -> None:
    bare, ranged = launches("abc" * 4), launches("abc" * 6, ops=True)
    activities = [*bare, *ranged[12:]]
    assert steady_activities(activities).spans == ((12, 15), (15, 18))


def test_graph_calls_cut_a_run_of_equal_kernels() -> None:
    activities = [replace(a, graph_call="f", graph_call_id=i // 4) for i, a in enumerate(launches("a" * 12))]
    assert steady_activities(activities).spans == ((0, 4), (4, 8), (8, 12))


def test_calls_of_a_graph_count_as_one_however_many_launches_they_make() -> None:
    """The first forward has two launches more; optimizer ops follow each backward, a checksum the last one."""
    calls = [
        ("F", "aazbzb"),
        (None, "m"),
        ("B", "cc"),
        (None, "oo"),
        ("F", "abb"),
        (None, "m"),
        ("B", "cc"),
        (None, "ooxx"),
    ]
    activities = launches("".join(text for _, text in calls))
    owners = [(name, i) for i, (name, text) in enumerate(calls) for _ in text]
    activities = [replace(a, graph_call=n, graph_call_id=i) for a, (n, i) in zip(activities, owners, strict=True)]
    assert steady_activities(activities).spans == ((0, 11), (11, 19))


def test_a_function_compiled_anew_at_each_call_is_part_of_the_step() -> None:
    activities = launches("abc" * 4)
    owners = [name for i in range(4) for name in ("0/0/inference", "0/0/inference", f"1/{i}/inference")]
    activities = [
        replace(a, graph_call=n, graph_call_id=2 * (i // 3) + (i % 3 == 2))
        for i, (a, n) in enumerate(zip(activities, owners, strict=True))
    ]
    assert steady_activities(activities).spans == ((0, 3), (3, 6), (6, 9), (9, 12))


def test_a_checksum_after_two_steps_of_a_graph_is_not_the_step() -> None:
    activities = launches("ab" * 2 + "xyz" * 3)
    activities = [replace(a, graph_call="f", graph_call_id=i // 2) if i < 4 else a for i, a in enumerate(activities)]
    assert steady_activities(activities).spans == ((0, 2), (2, 4))


def test_step_marks_of_activities() -> None:
    activities = [replace(a, step=None if i == 0 else (i - 1) // 2) for i, a in enumerate(launches("Sababab"))]
    found = steady_activities(activities)
    assert (found.source, found.spans) == ("marks", ((1, 3), (3, 5), (5, 7)))


def test_a_step_around_a_long_loop():
    """Two steps of 400 turns and one closing op: the step is the whole, not a turn."""
    step = ["a", "b", "c"] * 400 + ["end"]
    weights = [1, 1, 1] * 400 + [5]
    found = find_steps(step * 2, weights=weights * 2)
    assert [b - a for a, b in found.spans] == [1201, 1201]

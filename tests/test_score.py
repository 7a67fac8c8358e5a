"""The figures of the score command."""

from __future__ import annotations

from score import compare, total


def test_precision_and_recall():
    one = compare("a", {"eager": ["FA101"], "compiled": []}, {("eager", "FA101"), ("compiled", "FA111")})
    two = compare("b", {"eager": [], "compiled": ["FA105"]}, set())
    assert one.extra == (("compiled", "FA111"),)
    assert two.missed == (("compiled", "FA105"),)
    assert total([one, two]) == (0.5, 0.5)


def test_nothing_found_where_nothing_is_expected_is_right():
    assert total([compare("a", {}, set())]) == (1.0, 1.0)

"""[tool.fusionaudit], thresholds and suppressions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import FILE, MEGA, eager, line, op, program, t

from fusionaudit.config import Config, Thresholds, load_config, parse_config
from fusionaudit.errors import AuditError
from fusionaudit.findings import Finding
from fusionaudit.report.wording import verdict
from fusionaudit.rules import RULES, fa101, run_rules
from fusionaudit.suppressions import apply_suppressions, suppressed_lines, suppression

N = 64 * MEGA
CHAIN = eager(op("exp", [t("x", N)], t("a", N), at=3), op("neg", [t("a", N)], t("y", N), at=3))


def finding(rule: str = "FA101", at: int = 3) -> Finding:
    return Finding(rule=rule, pass_name="eager", severity="warning", message="m", location=line(at))


def test_defaults_where_there_is_no_table(tmp_path):
    assert load_config(tmp_path) == Config()
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    assert load_config(tmp_path) == Config()


def test_the_nearest_pyproject_counts(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fusionaudit]\nselect = ["FA1"]\nignore = ["FA107"]\n'
        '[tool.fusionaudit.thresholds]\nmin_time_share = 0.5\n[tool.fusionaudit.per-file]\n"tests/*" = ["FA101"]\n'
    )
    (tmp_path / "sub").mkdir()
    config = load_config(tmp_path / "sub")
    assert config.thresholds.min_time_share == 0.5
    assert config.selects("FA101")
    assert config.selects("FA107")
    assert config.ignores("FA107")
    assert not config.selects("FA201")
    assert config.per_file == {"tests/*": ("FA101",)}


@pytest.mark.parametrize(
    "table",
    [
        {"selects": []}, {"select": "FA101"}, {"select": ["101"]}, {"thresholds": {"speed": 1}}, {"thresholds": 3},
        {"thresholds": {"min_bytes": "many"}}, {"thresholds": {"min_bytes": 1.5}}, {"thresholds": {"min_bytes": True}},
        {"thresholds": {"min_time_share": -1}}, {"per-file": ["a"]}, {"per-file": {"a": "FA101"}},
    ],
)  # fmt: skip
def test_wrong_tables_are_errors(table):
    with pytest.raises(AuditError):
        parse_config(table)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[tool", "cannot be read"),
        ("[tool.fusionaudit]\n# h\u00e9\n".encode("latin-1"), "cannot be read"),
        (b"tool = 5\n", "not a table"),
        (b"[tool]\nfusionaudit = 3\n", "not a table"),
        (b"[tool.fusionaudit]\nthresholds = 3\n", "not a table"),
        (b"[tool.fusionaudit]\ncheck = []\n", "not a table"),
    ],
)
def test_a_broken_pyproject_is_one_line(tmp_path, text, says):
    (tmp_path / "pyproject.toml").write_bytes(text)
    with pytest.raises(AuditError, match=says) as error:
        load_config(tmp_path)
    assert error.value.exit_code == 2


def test_suppression_comment():
    assert suppression("y = f(x)  # fusionaudit: ignore[FA101, FA105] small") == (("FA101", "FA105"), "small")
    assert suppression("y = f(x)  # noqa") is None


SOURCE = """def f(x):
    y = (  # fusionaudit: ignore[FA101] one-off
        -x.exp()
    )
    z = y + 1
    return z * 2  # fusionaudit: ignore[FA102] known
"""


def test_a_comment_counts_on_the_whole_statement():
    assert set(suppressed_lines(SOURCE)) == {2, 3, 4, 6}
    assert suppressed_lines(SOURCE)[3] == (("FA101",), "one-off")
    assert set(suppressed_lines("if x:  # fusionaudit: ignore[FA1]\n    y = 1\n")) == {1}
    assert set(suppressed_lines("x = (  # fusionaudit: ignore[FA1]\n")) == {1}, "half a file"


def test_suppressed_findings_are_noted_not_lost():
    comments = {FILE: suppressed_lines(SOURCE)}
    found = [finding(), finding("FA102"), finding(at=5)]
    kept, notes = apply_suppressions(found, program(CHAIN), comments, Config())
    assert [(f.rule, f.location.line) for f in kept if f.location is not None] == [("FA102", 3), ("FA101", 5)]
    assert [n.kind for n in notes] == ["suppressed"]
    assert "one-off" in notes[0].text


def test_a_comment_on_any_line_of_the_chain_counts():
    x, y, z = t("x", 4 * MEGA), t("y", 4 * MEGA), t("z", 4 * MEGA)
    chain = program(eager(op("exp", [x], y, at=3), op("neg", [y], z, at=8)))
    (found,) = fa101.check(chain, Config())
    assert found.location is not None
    assert found.location.line == 3
    kept, (note,) = apply_suppressions([found], chain, {FILE: {8: (("FA101",), "later")}}, Config())
    assert not kept
    assert "script.py:8" in note.text


def test_the_headline_counts_what_is_suppressed():
    notes = [{"kind": "suppressed", "text": ""}] * 2
    p = {"kernels": [{}]}
    assert verdict({"notes": notes, "findings": [], "passes": [p]}) == ("ok", "No missed fusion found; 2 suppressed")
    assert verdict({"notes": [], "findings": [], "passes": [p]}) == ("ok", "No missed fusion found")


def test_per_file_ignores():
    kept, notes = apply_suppressions([finding()], program(CHAIN), {}, Config(per_file={"script.py": ("FA1",)}))
    assert not kept
    assert len(notes) == 1


def test_select_and_ignore_choose_rules():
    assert {f.rule for f in run_rules(program(CHAIN), Config(select=("FA101",)))} == {"FA101"}


def test_what_an_ignored_rule_finds_is_counted():
    config = Config(ignore=("FA1",))
    found = run_rules(program(CHAIN), config)
    assert any(f.severity == "warning" for f in found)
    kept, notes = apply_suppressions(found, program(CHAIN), {}, config)
    assert not [f for f in kept if f.rule.startswith("FA1")]
    assert len(notes) == len(found) - len(kept) > 0
    assert all(n.kind == "suppressed" and n.text.endswith("ignored in pyproject.toml") for n in notes)
    everywhere = replace(found[0], location=None)
    _, (note,) = apply_suppressions([everywhere], program(CHAIN), {}, config)
    assert note.text == "FA101 (eager): ignored in pyproject.toml"


def test_thresholds_change_severity():
    strict = Config(thresholds=Thresholds(min_time_share=2.0))
    assert [f.severity for f in fa101.check(program(CHAIN), strict)] == ["info"]


def test_every_rule_has_code_title_and_a_docstring_with_its_parts():
    codes = [r.CODE for r in RULES]
    assert codes == sorted(set(codes))
    for rule in RULES:
        text = rule.__doc__ or ""
        for part in ("What:", "Why it costs:", "How it is measured:", "When it is wrong:", "What to do:"):
            assert part in text, (rule.CODE, part)
        assert rule.TITLE

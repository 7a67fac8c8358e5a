"""The guard's commands: exit codes, what they print, and that the CI files in examples/ call what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result
from guard_documents import LINES, document
from test_diff import SPLIT
from test_formats import official_schema

from fusionaudit import cli, gate, sweep
from fusionaudit.baseline import write_lock
from fusionaudit.cli_guard import add_guard_commands
from fusionaudit.errors import AuditError
from fusionaudit.sweep import SweepResult
from fusionaudit.sweep import sweep as sweep_variants

EXAMPLES = Path(__file__).parent.parent / "examples"


@click.group()
def main() -> None:
    """Commands under test."""


add_guard_commands(
    main, capture_options=cli.capture_options, run_options=cli.run_options, guarded=cli.guarded, render=cli._render
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, doc: dict[str, Any], *arguments: str) -> Result:
    """The command with the audit of the script replaced by a document."""

    def audited(options: Any, config: Any = None) -> dict[str, Any]:
        if options.script == "broken.py":
            raise AuditError("the script failed", remedy="mend it")
        return doc

    monkeypatch.setattr(gate, "audited", audited)
    return CliRunner().invoke(main, list(arguments))


def test_baseline_then_check(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(monkeypatch, document(), "baseline", "train.py")
    assert made.exit_code == 0, made.output
    assert "wrote fusion.lock: 6 groups" in made.output
    same = run(monkeypatch, document(), "check", "train.py", "--its-own-option", "3")
    assert (same.exit_code, same.output.splitlines()[0]) == (0, "verdict: same")
    worse = run(monkeypatch, document(compiled_kernels=SPLIT), "check", "train.py")
    assert worse.exit_code == 1
    assert "regression: fusion got worse" in worse.output
    update = run(monkeypatch, document(compiled_kernels=SPLIT), "check", "--update", "train.py")
    assert update.exit_code == 0
    assert run(monkeypatch, document(compiled_kernels=SPLIT), "check", "train.py").exit_code == 0


def test_machine_formats_go_to_stdout_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, document(), "baseline", "train.py")
    result = run(monkeypatch, document(compiled_kernels=SPLIT), "check", "--format", "sarif", "train.py")
    log = json.loads(result.stdout)
    assert [r["ruleId"] for r in log["runs"][0]["results"]] == ["FA115"]
    assert "verdict: regression" in result.stderr
    assert result.exit_code == 1


def test_what_cannot_be_judged_exits_2(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = run(monkeypatch, document(), "check", "train.py")
    assert missing.exit_code == 2
    assert "no such lock" in missing.output
    run(monkeypatch, document(), "baseline", "train.py")
    other = run(monkeypatch, document(torch="2.14.1"), "check", "train.py")
    assert other.exit_code == 2
    assert "other key: torch 2.13.0 -> 2.14.1" in other.output
    assert run(monkeypatch, document(), "check", "broken.py").exit_code == 2
    assert run(monkeypatch, document(), "check").exit_code == 2


WHOLE = write_lock(document())
UNJUDGED = "verdict: cannot judge\nlimits: +0 launches, +1% +0 bytes in a changed region\ngroups: none compared\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such lock"),
        ("", "the lock is empty"),
        (WHOLE[:300], "cut off"),
        (WHOLE.replace("[eager", "<<<<<<< HEAD\n[eager"), "merge conflict marks"),
        (WHOLE.replace("format 1", "format 2"), "is newer than this fusionaudit reads"),
        (WHOLE.replace("[1024,1024] x3", "[1024,1024] x9999999999"), "a line holds 1 to 40 tensors"),
    ],
    ids=["missing", "empty", "truncated", "conflict", "future", "absurd"],
)
@pytest.mark.parametrize(
    "command", [["check", "train.py"], ["diff", "fusion.lock", "fusion.lock"]], ids=["check", "diff"]
)
def test_a_lock_that_cannot_be_used_is_one_clear_error(
    content: str | None, says: str, command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (place / "fusion.lock").write_text(content)
    result = run(monkeypatch, document(), *command)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == 2
    assert "  -> " in result.stderr.splitlines()[1]
    assert result.stdout == ("" if command[0] == "diff" else UNJUDGED)


@pytest.mark.parametrize("words", [["--lock", "none.lock", "train.py"], ["--steps", "0", "train.py"]])
def test_a_program_that_reads_stdout_gets_an_answer_after_an_error_too(
    words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stdout(fmt: str) -> str:
        result = CliRunner().invoke(cli.main, ["check", "--format", fmt, *words])
        assert result.exit_code == 2
        return result.stdout

    said = "none.lock: no such lock" if "--lock" in words else "0 is not in the range"
    log = json.loads(stdout("sarif"))
    (run,) = log["runs"]
    schema = official_schema()
    assert not list(jsonschema.validators.validator_for(schema)(schema).iter_errors(log))
    assert (run["results"], run["invocations"][0]["executionSuccessful"]) == ([], False)
    assert said in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    top = ElementTree.fromstring(stdout("junit").encode())
    assert (top.get("tests"), top.get("errors")) == ("1", "1")
    assert re.match(r"::error title=fusionaudit%3A cannot judge::.+\. \w.+\.\n$", stdout("github"))
    assert said in json.loads(stdout("json"))["notes"][0]["text"]
    page = stdout("markdown")
    assert page.startswith("### fusionaudit: Cannot judge: ")
    assert said in page.splitlines()[0]
    assert "; to do: " in page.splitlines()[0]
    assert page.splitlines()[2] == "no audit to show"
    page = stdout("html")
    assert said in page
    assert "Traceback" not in page
    assert page.endswith("</html>\n")


def test_thresholds_come_from_pyproject(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, document(), "baseline", "train.py")
    text = '[tool.fusionaudit.check]\nallow = [{match = "h = x * scale", reason = "ticket 12", expires = 2099-01-01}]\n'
    (place / "pyproject.toml").write_text(text)
    result = run(monkeypatch, document(compiled_kernels=SPLIT), "check", "train.py")
    assert result.exit_code == 0, result.output
    assert "allowed (ticket 12, until 2099-01-01)" in result.output
    assert result.output.startswith("verdict: allowed\n")
    (place / "pyproject.toml").write_text("[tool.fusionaudit.check]\nlanches = 1\n")
    assert run(monkeypatch, document(), "check", "train.py").exit_code == 2


def test_diff_of_two_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, document(), "baseline", "-o", "a.lock", "train.py")
    run(monkeypatch, document(compiled_kernels=SPLIT, torch="2.14.1"), "baseline", "-o", "b.lock", "train.py")
    result = CliRunner().invoke(main, ["diff", "a.lock", "b.lock"])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert words.startswith(
        "1 fusion region changed between a.lock and b.lock. They differ in torch 2.13.0 -> 2.14.1: a change may"
        " come from that alone. eager: launches"
    )
    assert "split: " in result.output


def test_diff_formats(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = {10: "h = x | y  `~` <b> @me #1 | é"}
    run(monkeypatch, document(lines={**LINES, **nasty}), "baseline", "-o", "a.lock", "train.py")
    run(monkeypatch, document(compiled_kernels=SPLIT, lines={**LINES, **nasty}), "baseline", "-o", "b.lock", "train.py")
    result = CliRunner().invoke(main, ["diff", "--format", "json", "a.lock", "b.lock"])
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert (told["schema_version"], told["old"]["path"], told["new"]["key"]["target"]) == (1, "a.lock", "h100")
    assert told["passes"]["compiled"]["new"] == {
        "launches": 3, "copies_and_fills": 0, "known_bytes": 37748736, "groups_without_bytes": 0, "graphs": 1,
    }  # fmt: skip
    (change,) = told["changes"]
    assert (change["kind"], change["launches"], len(change["new"])) == ("split", [1, 2], 2)
    assert (change["lost_edges"][0]["producer"], change["lost_edges"][0]["bytes"]) == ("aten.add", 4194304)
    page = CliRunner().invoke(main, ["diff", "--format", "markdown", "a.lock", "b.lock"]).stdout
    assert page.startswith("### fusionaudit: `a.lock` and `b.lock`\n")
    assert "| compiled | 2 → 3 | 0 → 0 | 29.4 MB → 37.7 MB | 1 → 1 |" in page
    rows = [line for line in page.splitlines() if line.startswith("| split ")]
    assert len(rows) == 1
    assert len(re.split(r"(?<!\\)\|", rows[0])) == 5
    CliRunner().invoke(main, ["diff", "--format", "json", "-o", "d.json", "a.lock", "b.lock"])
    assert json.loads((place / "d.json").read_text()) == told
    same = "No fusion group changed between a.lock and a.lock, both for h100 (132 SMs), deviceless, torch 2.13.0 and"
    for fmt in ("console", "markdown"):
        assert same in " ".join(CliRunner().invoke(main, ["diff", "--format", fmt, "a.lock", "a.lock"]).stdout.split())
    for fmt in ("json", "markdown"):
        result = CliRunner().invoke(main, ["diff", "--format", fmt, "a.lock", "a.lock"])
        assert "changed" in result.stdout or json.loads(result.stdout)["changes"] == []


def test_diff_of_sides_with_no_pass_in_common_exits_2(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, chosen in (("a.lock", 0), ("b.lock", 1)):
        doc = document()
        doc["passes"] = [doc["passes"][chosen]]
        run(monkeypatch, doc, "baseline", "-o", name, "train.py")
    for fmt in ("console", "json", "markdown", "html"):
        result = CliRunner().invoke(main, ["diff", "--format", fmt, "a.lock", "b.lock"])
        assert result.exit_code == 2
        assert "the two ran no pass in common (eager; compiled)" in result.stderr
        assert "never ran" in result.stdout or json.loads(result.stdout)["missing"]["new"]["eager"]["launches"] == 4


def test_sweep_formats(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = {"fp32": document(), "bf16": document(compiled_kernels=SPLIT), "fp16": document()}
    documents["fp16"]["notes"] = [{"blocks": True, "text": "warm | cache"}]

    def swept(options: Any, variants: Any, config: Any = None) -> SweepResult:
        return sweep_variants(lambda v: documents[v.dtype], variants)

    monkeypatch.setattr(sweep, "sweep_script", swept)
    given = ["sweep", "--dtype", "fp32,bf16,fp16", "train.py"]
    result = CliRunner().invoke(main, [*given[:1], "--format", "json", *given[1:]])
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert told["schema_version"] == 1
    first, second, third = told["variants"]
    assert (first["label"], first["launches"], first["findings"]) == ("dtype=fp32", 2, None)
    assert (second["launches"], second["bytes"], second["findings"][0]["rule"]) == (3, 37748736, "FA117")
    assert (third["problem"], third["launches"], third["findings"]) == ("warm | cache", None, None)
    page = CliRunner().invoke(main, [*given[:1], "--format", "markdown", *given[1:]]).stdout
    assert "| `dtype=bf16` | 3 launches, 37.7 MB; 1 region differs |" in page
    assert "| `dtype=fp16` | cannot judge: warm \\| cache |" in page
    assert "(`block.py:10`)" in page
    assert CliRunner().invoke(main, given).stdout.startswith("dtype=fp32: 2 launches")


@pytest.mark.parametrize("command", ["diff", "sweep"])
def test_help_names_the_formats(command: str) -> None:
    told = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "--format [console|json|markdown" in told
    assert "one object with a schema_version" in told


@pytest.mark.parametrize("width", [None, 60])
def test_lines_fit_the_terminal(place: Path, monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    run(monkeypatch, document(), "baseline", "-o", "a.lock", "train.py")
    run(monkeypatch, document(compiled_kernels=SPLIT), "baseline", "-o", "b.lock", "train.py")
    texts = [
        run(monkeypatch, document(compiled_kernels=SPLIT), "check", "--lock", "a.lock", "train.py").output,
        CliRunner().invoke(main, ["diff", "a.lock", "b.lock"]).output,
    ]
    for text in texts:
        assert "was one kernel and is now 2" in " ".join(text.split())
        assert max(len(line) for line in text.splitlines()) <= (width or 80)


def test_a_lock_cannot_steer_the_terminal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, document(), "baseline", "-o", "a.lock", "train.py")
    text = (place / "a.lock").read_text()
    (place / "b.lock").write_text(text.replace("aten.gelu", "aten.\x1b[31mgelu"))
    result = CliRunner().invoke(main, ["diff", "a.lock", "b.lock"])
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\\x1b[31mgelu" in result.output


@pytest.mark.parametrize("command", ["baseline", "check"])
def test_the_gate_says_that_it_needs_no_gpu(command: str, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    text = " ".join(CliRunner().invoke(main, [command, "--help"]).output.split())
    assert "[default: deviceless]" in text
    assert "Runs without a GPU unless --engine differs." in text
    engines = []

    def audited(options: Any, config: Any = None) -> dict[str, Any]:
        engines.append(options.engine)
        return document()

    monkeypatch.setattr(gate, "audited", audited)
    gate.save_lock(document(), place / "fusion.lock")
    for arguments in ([], ["--engine", "auto"]):
        CliRunner().invoke(main, [command, *arguments, "train.py"])
    assert engines == ["deviceless", "auto"]


def test_sweep_refuses_nothing_to_vary(place: Path) -> None:
    result = CliRunner().invoke(main, ["sweep", "train.py"])
    assert result.exit_code == 2
    assert "nothing to vary" in result.output
    after = CliRunner().invoke(main, ["sweep", "train.py", "--dtype", "fp32,bf16"])
    assert "before the script, give --dtype" in after.output


@pytest.mark.parametrize("name", ["github-workflow.yml", ".pre-commit-hooks.yaml"])
def test_ci_files_call_commands_and_options_that_exist(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    lines = [re.sub(r"^\s*(#\s*)?(entry: )?", "", line) for line in text.splitlines()]
    calls = [re.split(">|[|]", line)[0].split() for line in lines if line.startswith("fusionaudit ")]
    assert calls
    commands = {**cli.main.commands, **main.commands}
    for call in calls:
        options = {o for p in commands[call[1]].params for o in p.opts}
        assert {word for word in call if word.startswith("-")} <= options, call
        if call[1] == "check" and "train.py" in call:
            # What stands after the script would go to the script.
            params = commands["check"].make_context("check", call[2:]).params
            assert (params["script"], params["arguments"]) == ("train.py", ()), call

"""The README cannot drift: its commands parse, its rules, files and names exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_args

import pytest

import fusionaudit
from fusionaudit.capture.session import Engine
from fusionaudit.cli import main
from fusionaudit.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", TEXT) + [
    line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S) for line in block.splitlines()
]
COMMANDS = sorted(
    {
        m
        for text in CODE
        for m in re.findall(
            r"\bfusionaudit ((?:run|analyze|report|verify|bench|baseline|check|diff|sweep|rules|doctor)\b[^&|#]*)", text
        )
    }
)


@pytest.mark.slow
def test_what_it_prints_is_what_it_prints(tmp_path: Path) -> None:
    version = pytest.importorskip("torch").__version__
    if not version.startswith("2.13."):
        pytest.skip(f"the README shows what torch 2.13 gives, this is {version}")
    command = [
        "run",
        "-q",
        "--no-html",
        "--engine",
        "deviceless",
        "--out",
        str(tmp_path / "cap"),
        "examples/sum_abs.py",
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "fusionaudit", *command],
        cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = done.stdout.partition("\n\nNotes\n")[0]
    shown = re.findall(r"```text\n(.*?)\n```", TEXT, re.S)[0]
    assert report[report.index("! ") :] == shown


@pytest.mark.slow
def test_its_pytest_example_passes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "fusion_audit" in b)
    (tmp_path / "test_it.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "test_it.py"]
    if not entry_points(group="pytest11", name="fusionaudit"):
        command += ["-p", "fusionaudit.pytest_plugin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout


def test_every_command_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| `fusionaudit (\w+)", TEXT, re.M))
    assert listed == set(main.commands)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_its_own_options_before_the_script(line: str) -> None:
    """What follows a script is the script's."""
    name, *words = shlex.split(line)
    known = {o for p in main.commands[name].params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}
    script = next((i for i, w in enumerate(words) if w.endswith(".py")), len(words))
    assert {w for w in words[:script] if w.startswith("-")} <= known
    assert not {w for w in words[script:] if w in known}


def test_every_rule_is_in_the_table() -> None:
    assert re.findall(r"^\| (FA\d+) \|", TEXT, re.M) == [r.CODE for r in RULES]


def test_every_engine_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| (?:a GPU|any CPU)", TEXT, re.M)) == set(get_args(Engine)) - {"auto"}


def test_every_file_is_there() -> None:
    linked = re.findall(r"\]\(([\w./-]+)\)", TEXT) + re.findall(r"`((?:examples|tests|\.ci)/[\w./-]+)`", TEXT)
    assert linked
    assert [f for f in linked if not (ROOT / f).exists()] == []


def test_python_is_python_and_its_names_are_public() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert blocks
    for block in blocks:
        names = {
            n.attr
            for n in ast.walk(ast.parse(block))
            if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "fusionaudit"
        }
        assert [n for n in names if not hasattr(fusionaudit, n)] == []

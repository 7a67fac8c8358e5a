"""The README cannot drift: its commands parse, its rules, files and names exist."""

from __future__ import annotations

import ast
import re
import shlex
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

"""The guard for real: ten mutations of a transformer block fail and name the line, ten harmless edits pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from guard_block import HARMLESS, MUTATIONS, SCRIPT, edited, mutated

pytestmark = pytest.mark.slow


def fusionaudit(*arguments: str, cwd: Path, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-W", "ignore", "-m", "fusionaudit", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lock")
    (folder / "block.py").write_text(SCRIPT)
    done = fusionaudit("baseline", "-q", "-o", "fusion.lock", "block.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "fusion.lock"


def check(text: str, lock: Path, folder: Path, name: str = "block.py", hash_seed: str = "0") -> tuple[int, str]:
    (folder / name).write_text(text)
    done = fusionaudit("check", "-q", "--lock", str(lock), name, cwd=folder, hash_seed=hash_seed)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fails_and_its_line_is_named(name: str, lock: Path, tmp_path: Path) -> None:
    text, marker = mutated(name)
    code, told = check(text, lock, tmp_path)
    assert code == 1, told
    messages = [line for line in told.splitlines() if line.startswith(("regression:", "changed:"))]
    assert len(messages) == 1, told
    number = next(i for i, line in enumerate(text.splitlines(), start=1) if marker in line)
    assert f"block.py:{number} " in messages[0], told


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_edit_passes(name: str, lock: Path, tmp_path: Path) -> None:
    file = "other_name.py" if name == "another file name" else "block.py"
    code, told = check(edited(name), lock, tmp_path, file, "12345" if name == "another hash seed" else "0")
    assert code == 0, told
    assert "verdict: same" in told


def test_three_runs_against_their_own_lock_have_no_difference(lock: Path, tmp_path: Path) -> None:
    for seed in ("0", "1", "2"):
        code, told = check(SCRIPT, lock, tmp_path, hash_seed=seed)
        assert code == 0, told
        assert "0 regions changed" in told

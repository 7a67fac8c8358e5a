"""The fixture: what its assertions say, where locks live, and a real run (slow: it lowers for a GPU)."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from guard_documents import at, document
from test_diff import SPLIT

from fusionaudit.grouping import groups_of
from fusionaudit.pytest_plugin import FusionAudit, lock_path

pytest_plugins = ["pytester"]


def audit(tmp_path: Path, doc: dict[str, Any] | None = None, *, update: bool = False) -> FusionAudit:
    return FusionAudit(document=doc or document(), lock_path=tmp_path / "fusion_locks" / "a.lock", update=update)


def failure(call: Any) -> str:
    with pytest.raises(pytest.fail.Exception) as error:
        call()
    return str(error.value)


def test_figures_of_the_compiled_pass(tmp_path: Path) -> None:
    made = audit(tmp_path)
    assert len(made.kernels) == 2
    assert made.bytes == 29360128
    assert made.findings == []


def test_assert_fused_names_what_is_there_instead(tmp_path: Path) -> None:
    audit(tmp_path).assert_fused("aten.gelu", "add")
    doc = document(compiled_kernels=SPLIT, breaks=[{"location": at(20), "reason": "builtin print"}])
    text = failure(lambda: audit(tmp_path, doc).assert_fused("aten.gelu", "aten.add"))
    assert text.splitlines() == [
        "no kernel does aten.add + aten.gelu together",
        "compiled pass, 3 launches:",
        "  1. aten.mul + aten.add  (16777216 bytes)  block.py:10",
        "  2. aten.gelu  (8388608 bytes)  block.py:12",
        "  3. aten.mm  (12582912 bytes)  block.py:13",
        "  graph break: block.py:20: builtin print",
    ]


def test_locks_are_written_on_request_and_then_hold(tmp_path: Path) -> None:
    assert "--fusion-lock-update" in failure(audit(tmp_path).assert_matches_lock)
    audit(tmp_path, update=True).assert_matches_lock()
    audit(tmp_path).assert_matches_lock()
    text = failure(audit(tmp_path, document(compiled_kernels=SPLIT)).assert_matches_lock)
    assert "verdict: regression" in text
    assert "was one kernel and is now 2" in text
    assert "accept with pytest --fusion-lock-update" in text


def test_a_broken_lock_fails_with_its_reason(tmp_path: Path) -> None:
    made = audit(tmp_path)
    made.lock_path.parent.mkdir()
    for content, says in ((b"format 1\n", "cut off"), (b"\xff\xfe", "not a text file"), (b"", "the lock is empty")):
        made.lock_path.write_bytes(content)
        text = failure(made.assert_matches_lock)
        assert says in text
        assert "pytest --fusion-lock-update" in text


def test_what_a_failed_assertion_shows_of_it_is_short(tmp_path: Path) -> None:
    made = FusionAudit(document=document(), lock_path=tmp_path / "a.lock", groups=groups_of(document())[4:])
    assert repr(made) == "<FusionAudit of a.lock: compiled pass, 2 launches>"
    assert repr(made.groups).startswith(
        "(<aten.mul + aten.add + aten.gelu f32[1024,1024], f32[1024,1024], f32[1024,1024] -> f32[1024,1024]"
        " 16777216 bytes block.py:10>, <aten.mm "
    )
    syncs = document(syncs=[{"name": "aten._local_scalar_dense.default", "location": at(20)}])
    assert repr(groups_of(syncs)[-1]) == "<sync: aten._local_scalar_dense block.py:20>"


MISSING = """
from pathlib import Path
from fusionaudit.grouping import groups_of
from fusionaudit.pytest_plugin import FusionAudit
def test_it():
    FusionAudit(document={}, lock_path=Path("a.lock")).assert_matches_lock()
"""


def test_a_missing_lock_has_one_remedy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MISSING)
    told = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore").stdout.str()
    assert "a.lock: no such lock (make it with pytest --fusion-lock-update)" in told
    assert "fusionaudit baseline" not in told
    assert "another exception" not in told


def test_limits_and_allowed_changes_come_from_pyproject(tmp_path: Path) -> None:
    audit(tmp_path, update=True).assert_matches_lock()
    worse = audit(tmp_path, document(compiled_kernels=SPLIT))
    allow = '[tool.fusionaudit.check]\nallow = [{match = "h = x * scale", reason = "ticket 12", expires = %s}]\n'
    (tmp_path / "pyproject.toml").write_text(allow % "2099-01-01")
    worse.assert_matches_lock()
    (tmp_path / "pyproject.toml").write_text(allow % "2020-01-01")
    text = failure(worse.assert_matches_lock)
    assert "allowed until 2020-01-01 (ticket 12): that has expired" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    (tmp_path / "pyproject.toml").write_text("[tool.fusionaudit.check]\nlanches = 1\n")
    assert "unknown key 'lanches'" in failure(worse.assert_matches_lock)


def test_where_locks_live() -> None:
    file = Path("/repo/tests/test_mlp.py")
    assert lock_path(file, ["test_a[bf16-(2, 3)]"], 1) == Path(
        "/repo/tests/fusion_locks/test_mlp.test_a_bf16-_2_3.lock"
    )
    assert lock_path(file, ["TestX", "test_a"], 2).name == "test_mlp.TestX.test_a.2.lock"


TESTS = """
import fusionaudit
import torch
import torch.nn.functional as F

def mlp(x, w, b):
    h = x @ w
    h = h + b
    return F.gelu(h).sum(-1)

def args():
    return torch.randn(64, 256), torch.randn(256, 512), torch.randn(512)

def test_fused(fusion_audit):
    audit = fusion_audit(mlp, *args(), target="h100")
    audit.assert_fused("aten.gelu", "aten.sum")
    assert len(audit.kernels) < 5
    assert audit.bytes > 0
    assert {g.section.pass_name for g in audit.groups} == {"compiled"}
    audit.assert_matches_lock()

def test_training(fusion_audit):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    def step(x):
        model(x).sum().backward()
    audit = fusion_audit(step, torch.randn(8, 64), target="a100")
    assert audit.document["target"]["key"] == "a100"
    assert any("backward" in (k["phase"] or "") for k in audit.kernels)
    audit.assert_matches_lock()

def test_broken(fusion_audit):
    def f(x):
        y = x.sin()
        print("here")
        return y.cos()
    fusion_audit(torch.compile(f), torch.randn(64)).assert_fused("sin", "cos")

def test_declared(fusion_audit):
    def f(x):
        with fusionaudit.expect(max_kernels=1, fused=["aten.sin", "aten.mm"]):
            y = x.sin() @ x
        return y
    fusion_audit(f, torch.randn(64, 64))

def test_nothing_to_judge(fusion_audit):
    assert fusion_audit(lambda x: x.view(-1), torch.randn(64, 64)).bytes == 0

def test_no_such_target(fusion_audit):
    fusion_audit(lambda x: x + 1, torch.randn(64), target="h1000")

def test_afterwards_torch_is_itself():
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2)).device.type == "cpu"
    assert not torch.zeros(2).is_cuda
"""


@pytest.mark.slow
def test_the_fixture_for_real_and_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mlp=TESTS)
    installed = [e for e in entry_points(group="pytest11") if e.value == "fusionaudit.pytest_plugin"]
    plugin = ("-W", "ignore", *(() if installed else ("-p", "fusionaudit.pytest_plugin")))
    first = pytester.runpytest_subprocess(*plugin, "--fusion-lock-update")
    first.assert_outcomes(passed=3, failed=4)
    told = " ".join(first.stdout.str().split())
    assert "test_mlp.py:39: declared fusion did not happen: 2 kernels ran, declared at most 1;" in told
    assert "1. aten.sin (32768 bytes) test_mlp.py:40" in told
    assert "cannot judge: eager: nothing was recorded that a GPU would run" in told
    assert "unknown target 'h1000' (nearest: h100" in told
    assert "pytest_plugin.py" not in told
    first.stdout.fnmatch_lines(["*no kernel does aten.cos + aten.sin together*", "*graph break: test_mlp.py:*"])
    locks = sorted(p.name for p in (pytester.path / "fusion_locks").iterdir())
    assert locks == ["test_mlp.test_fused.lock", "test_mlp.test_training.lock"]
    second = pytester.runpytest_subprocess(*plugin, "-n", "2")
    second.assert_outcomes(passed=3, failed=4)
    source = pytester.path / "test_mlp.py"
    source.write_text(source.read_text().replace("h = h + b\n", "h = (h + b).contiguous().clone() * 2\n"))
    third = pytester.runpytest_subprocess(*plugin, "-k", "fused")
    third.assert_outcomes(failed=1)
    third.stdout.fnmatch_lines(["*verdict: regression*", "*test_mlp.py:7 *contiguous().clone()*"])


STRICT = """
import warnings
import torch

def test_torch_warns(fusion_audit):
    model = torch.nn.Linear(64, 64)
    fusion_audit(lambda x: model(x).sin().sum().backward(), torch.randn(8, 64)).assert_fused("sin", "sum")

def test_the_function_warns(fusion_audit):
    def f(x):
        warnings.warn("mine", DeprecationWarning)
        return x + 1
    fusion_audit(f, torch.randn(64))
"""


@pytest.mark.slow
def test_warnings_of_torch_are_not_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_strict=STRICT)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    installed = [e for e in entry_points(group="pytest11") if e.value == "fusionaudit.pytest_plugin"]
    made = pytester.runpytest_subprocess(*(() if installed else ("-p", "fusionaudit.pytest_plugin")))
    made.assert_outcomes(passed=1, failed=1)
    made.stdout.fnmatch_lines(["FAILED *test_the_function_warns - DeprecationWarning: mine"])

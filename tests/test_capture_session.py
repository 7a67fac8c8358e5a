"""Captures of small scripts on the CPU: what plain python does stays, and every way to fail gives one clear line."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionaudit.capture import session
from fusionaudit.capture.child import BOOTSTRAP
from fusionaudit.capture.engines import Choice
from fusionaudit.capture.environment import Facts
from fusionaudit.capture.manifest import Manifest, read_manifest
from fusionaudit.capture.session import RunOptions, make_folder, run_capture
from fusionaudit.capture.spec import PassSpec
from fusionaudit.errors import AuditError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; the engine is the real child without any tool around it, on the CPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        session, "choose_engine", lambda *_, **__: Choice(engine="nsys", nsys=None, facts=Facts(reason="test"), why="")
    )
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def capture(script: Path | str, *arguments: str, passes: tuple[str, ...] = ("eager",), **options: Any) -> Manifest:
    out = run_capture(RunOptions(script=str(script), arguments=arguments, out=Path("out"), passes=passes, **options))
    return read_manifest(out)


def failed(script: Path | str, **options: Any) -> tuple[AuditError, Manifest]:
    """The error of a run that captured nothing, and the manifest that it left all the same."""
    with pytest.raises(AuditError) as caught:
        capture(script, **options)
    return caught.value, read_manifest(Path("out"))


def records(name: str = "eager") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out", name, "ops.jsonl").read_text().splitlines()]


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text file can be written whole any more."""

    def half(path: Path, text: str, **_: Any) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", half)


def names() -> list[str]:
    return [r["name"] for r in records() if r["kind"] == "op"]


WHO_AM_I = """
    import json, os, pickle, sys, types
    import helper

    class Thing:
        pass

    def named(value):
        return value

    main = sys.modules["__main__"]
    print(json.dumps({
        "argv": sys.argv, "name": __name__, "file": __file__, "path0": sys.path[0], "cwd": os.getcwd(),
        "main": main.__dict__ is globals(), "spec": repr(__spec__), "package": __package__, "doc": __doc__,
        "thing": type(pickle.loads(pickle.dumps(Thing()))).__module__, "function": pickle.loads(pickle.dumps(named))(3),
        "loader": type(__loader__).__name__, "helper": helper.__file__, "umask": os.umask(0o22),
        "globals": sorted(k for k in globals() if not k.startswith("__")), "stdin": sys.stdin.isatty(),
    }))
    print("to stderr", file=sys.stderr)
"""


def test_a_script_sees_what_it_sees_under_plain_python(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "sub").mkdir()
    write(folder / "sub" / "helper.py", "")
    write(folder / "sub" / "script.py", WHO_AM_I)
    plain = subprocess.run([sys.executable, "sub/script.py", "a", "--b"], capture_output=True, text=True, check=True)
    capture("sub/script.py", "a", "--b")
    out, err = capfd.readouterr()
    assert out == plain.stdout
    assert err == plain.stderr


def test_a_module_sees_what_it_sees_under_plain_python(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "pack").mkdir()
    write(folder / "pack" / "__init__.py", "")
    write(
        folder / "pack" / "__main__.py",
        "import sys; print(sys.argv, __name__, __package__, __spec__.name, sys.path[0])",
    )
    plain = subprocess.run([sys.executable, "-m", "pack", "x"], capture_output=True, text=True, check=True)
    run_capture(RunOptions(module="pack", arguments=("x",), out=Path("out"), passes=("eager",)))
    assert capfd.readouterr().out == plain.stdout


def test_machine_output_moves_the_scripts_stdout_to_stderr(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capture(write(folder / "s.py", "import sys; sys.stdout.buffer.write(bytes([0, 255, 10]))"), machine_output=True)
    assert capfd.readouterr().out == ""


def test_a_traceback_shows_the_script_only(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = write(
        folder / "s.py",
        """
        def inner():
            raise ValueError("broken\\nsecond line")
        def outer(x):
            return inner()
        outer(1)
        """,
    )
    plain = subprocess.run([sys.executable, "s.py"], capture_output=True, text=True)
    error, manifest = failed(script.name)
    assert capfd.readouterr().err == plain.stderr
    assert "exit code 1" in error.message
    assert "ValueError: broken" in error.message
    assert error.exit_code == 2
    assert manifest.passes[0].returncode == 1


def test_the_scripts_own_excepthook_is_used(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failed(write(folder / "s.py", "import sys\nsys.excepthook = lambda *a: print('mine', file=sys.stderr)\n1 / 0\n"))
    assert capfd.readouterr().err == "mine\n"


def test_exit_codes_are_named_and_what_was_recorded_is_kept(folder: Path) -> None:
    said: list[str] = []
    script = write(folder / "s.py", "import sys, torch\ntorch.ones(3).abs()\nsys.exit(3)\n")
    manifest = capture(script, passes=("eager", "compiled"), progress=said.append)
    (only,) = manifest.passes
    assert only.returncode == 3
    assert only.error == "the script ended with exit code 3 (sys.exit(3))"
    assert any("exit code 3" in line for line in said)
    assert names() == ["aten.ones.default", "aten.abs.default"]


def test_os_exit_writes_the_capture_first(folder: Path) -> None:
    manifest = capture(write(folder / "s.py", "import os, torch\ntorch.ones(3)\nos._exit(7)\n"))
    assert manifest.passes[0].returncode == 7
    assert names() == ["aten.ones.default"]


def test_a_signal_is_named(folder: Path) -> None:
    error, manifest = failed(write(folder / "s.py", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"))
    assert "killed by SIGKILL" in error.message
    assert manifest.passes[0].returncode == -9


def test_a_time_limit_stops_the_script_and_its_children(folder: Path) -> None:
    script = write(
        folder / "s.py",
        """
        import subprocess, sys, time, torch
        torch.ones(3)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, file=open("pid", "w"), flush=True)
        time.sleep(600)
        """,
    )
    started = time.monotonic()
    manifest = capture(script, timeout_s=30.0)
    assert time.monotonic() - started < 90
    assert manifest.passes[0].error == "stopped after 30 s (--timeout)"
    assert names() == ["aten.ones.default"]
    time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        state = Path(f"/proc/{Path('pid').read_text().strip()}/stat").read_text().split()[2]
        assert state == "Z"


def test_ctrl_c_keeps_the_capture(folder: Path) -> None:
    script = write(folder / "s.py", "import time, torch\ntorch.ones(3)\nopen('ready', 'w').close()\ntime.sleep(600)\n")

    def interrupt() -> None:
        while not Path(folder, "ready").exists():
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(AuditError) as caught:
        capture(script)
    assert caught.value.exit_code == 130
    assert "interrupted" in caught.value.message
    assert read_manifest(Path("out")).passes[0].error == "interrupted (Ctrl-C)"
    assert names() == ["aten.ones.default"]


def test_workers_and_forks_leave_the_recording_alone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = write(
        folder / "s.py",
        """
        import multiprocessing, os, warnings
        import torch
        from torch.utils.data import DataLoader, Dataset
        warnings.simplefilter("ignore")

        class Data(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.full((2,), float(i)).exp()

        def work(x):
            return x + 1

        if __name__ == "__main__":
            for batch in DataLoader(Data(), batch_size=4, num_workers=2):
                batch.sigmoid()
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1, 2]))
            if os.fork() == 0:
                torch.ones(2).cosh()
                raise SystemExit(0)
            os.wait()
            torch.ones(2).tanh()
        """,
    )
    manifest = capture(script)
    assert manifest.passes[0].error is None
    seen = names()
    assert seen.count("aten.sigmoid.default") == 2
    assert seen[-1] == "aten.tanh.default"
    assert "aten.exp.default" not in seen
    assert "aten.cosh.default" not in seen
    assert capfd.readouterr().out == "[2, 3]\n"


def test_a_script_that_closes_stdout_and_moves_away(folder: Path) -> None:
    script = write(
        folder / "s.py", "import os, sys, torch\nos.chdir('/')\ntorch.ones(2)\nsys.stdout.close()\nos.close(1)\n"
    )
    assert capture(script).passes[0].error is None
    assert names() == ["aten.ones.default"]


def test_what_is_compiled_for_a_script_that_never_compiles(folder: Path) -> None:
    script = write(
        folder / "s.py",
        """
        import torch

        def scaled(x, s):
            return (x * s).relu()

        def bad(x):
            return x.sum().item()

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(4, 4)
            def forward(self, x):
                return scaled(self.inner(x), 2)

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x):
            loss = net(x).sum()
            loss.backward()
            optimizer.step()
            return loss

        def driver(x):
            for _ in range(4):
                x = scaled(x, 3)
            return x

        def nothing():
            return 3

        double = lambda t: t + t

        def main():
            x = torch.ones(2, 4)
            step(x), driver(x), bad(x), nothing(), double(x)

        main()
        """,
    )
    manifest = capture(script)
    assert manifest.options["compiled_for_user"] == ""
    targets = json.loads(Path("out/targets.json").read_text())
    assert [t.split(":")[0] for t in targets["functions"]] == ["scaled", "<lambda>"]
    assert targets["modules"] == ["Net"]
    rejected = {key.split(":")[0]: reasons for key, reasons in targets["rejected"].items()}
    assert rejected["step"] == ["backward", "optimizer step"]
    assert rejected["driver"] == ["a loop around one function"]
    assert rejected["nothing"] == ["no tensor goes in", "no op runs in it"]
    assert "no tensor goes in" in rejected["main"]
    assert rejected["bad"] == ["no tensor comes out"]


def test_a_module_of_torch_itself_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fusionaudit.capture.targets import Applier, Targets

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with Applier(Targets(modules=("Sequential",)), device_types=("cpu",)).applying():
        made = net(torch.ones(2, 4))
    assert len(graphs) == 1
    assert torch.equal(made, net[1](net[0](torch.ones(2, 4))))


def test_a_script_that_compiles_is_left_as_it_is(folder: Path) -> None:
    script = write(
        folder / "s.py",
        """
        import torch
        f = torch.compile(lambda x: x.abs().sum())
        def g(x):
            return x + 1
        print(g(f(torch.ones(4))))
        """,
    )
    capture(script)
    assert json.loads(Path("out/targets.json").read_text())["uses_compile"] is True
    # The eager pass runs it op by op all the same.
    assert names()[:3] == ["aten.ones.default", "aten.abs.default", "aten.sum.default"]


def test_sources_of_the_lines_are_kept(folder: Path) -> None:
    script = write(folder / "s.py", "import torch\ntorch.ones(2)\n")
    capture(script)
    kept = Path("out/sources", *script.resolve().parts[1:])
    assert kept.read_text() == script.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script": "missing.py"}, "no such file"),
        ({"script": "."}, "is a folder"),
        ({}, "give a script or a module"),
        ({"script": "s.py", "passes": ("fast",)}, "unknown pass"),
        ({"script": "s.py", "target": "h1000"}, "unknown target 'h1000'"),
        ({"script": "s.py", "target": "h200", "engine": "kineto"}, "--target is for the deviceless engine"),
        ({"script": "s.py", "out": Path("full")}, "exists and is not empty"),
        ({"script": "s.py", "out": Path("s.py")}, "exists and is not empty"),
    ],
)
def test_usage_errors_come_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    """Before torch is asked what the machine can do, too: that takes seconds."""

    def probe(*_: Any, **__: Any) -> Choice:
        raise AssertionError("asked the machine")

    monkeypatch.setattr(session, "choose_engine", probe)
    write(folder / "s.py", "")
    (folder / "full").mkdir()
    (folder / "full" / "mine").touch()
    with pytest.raises(AuditError, match=message):
        run_capture(RunOptions(**{"out": Path("out"), **options}))
    assert not Path("out").exists()


def test_a_full_disk_leaves_no_half_manifest_and_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write(folder / "s.py", "")
    full(monkeypatch)
    with pytest.raises(AuditError, match=r"out/manifest.json: cannot be written: No space left on device"):
        run_capture(RunOptions(script=str(script), out=Path("out")))
    assert not list(Path("out").glob("*.part"))


def test_a_module_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(AuditError, match="No module named no_such_module"):
        run_capture(RunOptions(module="no_such_module", out=Path("out"), passes=("eager",)))


def test_a_syntax_error_is_the_scripts(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error, _ = failed(write(folder / "s.py", "x = (\n"))
    assert "SyntaxError" in error.message
    assert "was never closed" in capfd.readouterr().err


def test_a_capture_is_never_overwritten(folder: Path) -> None:
    Path("out").mkdir()
    Path("out", "mine").touch()
    with pytest.raises(AuditError, match="not empty"):
        make_folder(RunOptions(script="s.py", out=Path("out")))
    first, second = (make_folder(RunOptions(script="a/train.py")) for _ in range(2))
    assert first != second
    assert first.name.startswith("fusionaudit-train-")


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    Path("file").touch()
    with pytest.raises(AuditError, match="Not a directory"):
        make_folder(RunOptions(script="s.py", out=Path("file/out")))


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_killed_fusionaudit_takes_its_script_along(tmp_path: Path) -> None:
    script = write(tmp_path / "s.py", "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(300)\n")
    command = [sys.executable, "-m", "fusionaudit", "run", "--engine", "deviceless", "--out", "out", str(script)]
    wrapper = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        number = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        wrapper.kill()
        wrapper.wait()
    wait_for(lambda: not running(int(number)))


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(what: Callable[[], Any]) -> Any:
    for _ in range(1800):
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("waited 90 s")


def test_a_machine_without_numpy_is_not_told_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(
            """
            from importlib.machinery import PathFinder

            def find_spec(name, *args, found=PathFinder.find_spec):
                return None if name.split(".")[0] == "numpy" else found(name, *args)

            PathFinder.find_spec = find_spec
            """
        )
    )
    folder = tmp_path / "eager"
    folder.mkdir()
    script = write(tmp_path / "s.py", "import torch\nprint(torch.ones(2) + 1)\ntorch.ones(2).numpy()\n")
    spec = PassSpec(name="eager", engine="nsys", folder=str(folder), script=str(script), module=None)
    spec.write(folder / "spec.json")
    done = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP, str(folder / "spec.json"), str(Path(__file__).parent.parent)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "tensor([2., 2.])\n"
    assert "Failed to initialize NumPy" not in done.stderr, "torch's own word where it is imported"
    assert "RuntimeError: Numpy is not available" in done.stderr, "where it is needed it is said"

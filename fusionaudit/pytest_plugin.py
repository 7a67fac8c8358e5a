"""pytest plugin: ``fusion_audit(fn, *args)`` audits a function with no GPU, and the test says what must hold.

    def test_mlp_is_two_kernels(fusion_audit):
        audit = fusion_audit(mlp, torch.randn(64, 256), target="h100")
        audit.assert_fused("aten.gelu", "aten.add")
        audit.assert_matches_lock()

Locks live beside the test file, in ``fusion_locks/``, one a test; ``--fusion-lock-update`` writes them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fusionaudit.groups import Group
    from fusionaudit.report.document import Document

LOCK_FOLDER = "fusion_locks"
_WIDTH = 100
"""Characters of a line in an assertion's message."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FusionAudit:
    """What the audit of one function says. Figures are of one call, in the compiled pass.

    ``document`` is the whole audit (see ``report/document.py``), ``lock_path`` where this call's lock is kept.
    """

    document: Document
    lock_path: Path
    update: bool = False
    groups: tuple[Group, ...] = ()

    def __repr__(self) -> str:
        return f"<FusionAudit of {self.lock_path.name}: {self.describe().splitlines()[0].rstrip(':')}>"

    @property
    def _pass(self) -> dict[str, Any]:
        passes = {p["name"]: p for p in self.document["passes"]}
        return passes.get("compiled") or passes.get("eager") or {"name": "none", "kernels": []}

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The compiled pass's kernels in order, as dicts (``ops``, ``shapes``, ``dtypes``, ``global_bytes`` ...)."""
        return list(self._pass["kernels"])

    @property
    def bytes(self) -> int | None:
        """Bytes read from and written to global memory; ``None`` if a kernel's are not known."""
        sizes = [k["global_bytes"] for k in self.kernels]
        return None if None in sizes else sum(sizes)

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The audit's findings, the weightiest first."""
        return list(self.document["findings"])

    def describe(self) -> str:
        """The compiled kernels, a line each: what assertion messages show."""
        from fusionaudit.figures import launched

        copies = sum(k["category"] in ("memcpy", "memset") for k in self.kernels)
        lines = [f"{self._pass['name']} pass, {launched(len(self.kernels) - copies, copies)}:"]
        for number, kernel in enumerate(self.kernels, start=1):
            ops = " + ".join(dict.fromkeys(_base(op) for op in kernel["ops"])) or kernel["name"]
            size = "? bytes" if kernel["global_bytes"] is None else f"{kernel['global_bytes']} bytes"
            place = kernel.get("location")
            where = f"  {Path(place['file']).name}:{place['line']}" if place else ""
            lines.append(f"  {number}. {ops}  ({size}){where}")
        for item in self._pass.get("breaks") or []:
            place = item.get("location")
            where = f"{Path(place['file']).name}:{place['line']}: " if place else ""
            lines.append(f"  graph break: {where}{item['reason']}")
        return "\n".join(lines)

    def assert_fused(self, *ops: str) -> None:
        """One kernel does all of these ops (``aten.gelu``, or ``gelu``)."""
        __tracebackhide__ = True
        wanted = {_base(op) for op in ops}
        if not any(wanted <= {_base(op) for op in kernel["ops"]} for kernel in self.kernels):
            pytest.fail(f"no kernel does {' + '.join(sorted(wanted))} together\n{self.describe()}", pytrace=False)

    def assert_declared(self) -> None:
        """Every ``fusionaudit.expect`` of the function holds; the fixture has looked already."""
        __tracebackhide__ = True
        broken = [f for f in self.findings if f["rule"] == "FA116" and f["severity"] == "error"]
        if broken:
            told = [_declared(f) for f in broken]
            pytest.fail("\n".join([*told, self.describe()]), pytrace=False)

    def assert_matches_lock(self) -> None:
        """The groups are those of the lock, or better; with ``--fusion-lock-update`` the lock is written instead.

        Limits and the allow-list are those of ``[tool.fusionaudit.check]``.
        """
        from fusionaudit.check import check
        from fusionaudit.config import load_config
        from fusionaudit.errors import AuditError
        from fusionaudit.explain import wrapped
        from fusionaudit.gate import load_lock, save_lock
        from fusionaudit.limits import limits_from

        __tracebackhide__ = True

        problem: AuditError | None = None
        try:
            if self.update:
                self.lock_path.parent.mkdir(parents=True, exist_ok=True)
                save_lock(self.document, self.lock_path)
                return
            limits = limits_from(load_config(self.lock_path.parent).check)
            result = check(self.document, load_lock(self.lock_path), limits)
        except AuditError as error:
            problem = error
        if problem is not None:  # not in the handler: pytest would show both errors, each with its remedy
            pytest.fail(_told(str(problem)), pytrace=False)
        if result.exit_code:
            text = wrapped([_told(line) for line in result.lines], _WIDTH)
            pytest.fail(f"{self.lock_path.name}\n{text}\n{self.describe()}", pytrace=False)


def _told(text: str) -> str:
    """A message of the command line with what does the same under pytest."""
    return re.sub(r"`fusionaudit (?:baseline|check)\b[^`]*`", "pytest --fusion-lock-update", text)


def _declared(finding: dict[str, Any]) -> str:
    place = finding["location"]
    where = f"{Path(place['file']).name}:{place['line']}: " if place else ""
    return f"{where}{finding['message']} (FA116; {finding['remedy']})"


def _base(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else f"aten.{name}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fusion-lock-update``."""
    parser.getgroup("fusionaudit").addoption(
        "--fusion-lock-update",
        action="store_true",
        default=False,
        help="Write the fusion locks instead of checking them.",
    )


@pytest.fixture
def fusion_audit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., FusionAudit]:
    """``fusion_audit(fn, *args, target="h100", **kwargs)``: audit one call of ``fn`` on CPU tensors, for that GPU.

    ``fn`` runs twice, as it is and compiled (torch.compile is applied where it is not yet). Tensors stand for the
    GPU's: leave them on the CPU. The test fails where a ``fusionaudit.expect`` in it does not hold, and where the call
    cannot be judged (nothing ran that a GPU would run). Warnings that torch's own modules cause meanwhile are left out.
    """
    calls: list[str] = []

    def audit(fn: Callable[..., Any], *args: Any, target: str = "h100", **kwargs: Any) -> FusionAudit:
        from fusionaudit.baseline import blocking
        from fusionaudit.capture.function import capture_function
        from fusionaudit.config import load_config
        from fusionaudit.errors import AuditError
        from fusionaudit.grouping import groups_of
        from fusionaudit.pipeline import audit as audit_capture

        __tracebackhide__ = True
        problem: AuditError | None = None
        try:
            folder = tmp_path_factory.mktemp("fusionaudit")
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module=r"torch(\.|$)")  # importing Inductor warns: no fault of fn's
                capture_function(fn, args, kwargs, target=target, folder=folder)
            document = audit_capture(folder, config=load_config(Path(str(request.node.path)).parent)).document
            blocking(document)
        except AuditError as error:
            problem = error
        if problem is not None:
            pytest.fail(_told(str(problem)), pytrace=False)
        calls.append(target)
        groups = tuple(g for g in groups_of(document) if g.section.pass_name == "compiled")
        path = lock_path(Path(str(request.node.path)), _names(request.node), len(calls))
        made = FusionAudit(
            document=document, lock_path=path, groups=groups, update=request.config.getoption("--fusion-lock-update")
        )
        made.assert_declared()
        return made

    return audit


def _names(node: pytest.Item) -> Sequence[str]:
    """Class and test name, from the outside in."""
    names = [n.name for n in node.listchain() if isinstance(n, pytest.Class)]
    return [*names, node.name]


def lock_path(test_file: Path, names: Sequence[str], number: int) -> Path:
    """``fusion_locks/test_mlp.test_forward.lock``; a second audit in one test gets ``.2``."""
    words = [re.sub(r"[^\w.=-]+", "_", name).strip("_") for name in names]
    suffix = "" if number == 1 else f".{number}"
    return test_file.parent / LOCK_FOLDER / f"{test_file.stem}.{'.'.join(words)}{suffix}.lock"

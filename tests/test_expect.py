"""``expect``: free outside of a capture, a region inside one, and FA116 where it does not hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from builders import call, graph

import fusionaudit
from fusionaudit.capture import marks
from fusionaudit.config import Config
from fusionaudit.expectations import expect
from fusionaudit.findings import Finding, Location
from fusionaudit.inductor.model import InductorLog
from fusionaudit.program.expectation import Expectation, expectations, named, region_name
from fusionaudit.program.model import Kernel, Op, Pass, Program
from fusionaudit.rules import fa116

FILE = "/home/a/block.py"


class Recorder:
    """A capture that writes down the regions."""

    def __init__(self, compiling: bool = False) -> None:
        self.names: list[str] = []
        self.depth = 0
        self.compiling = compiling

    def step(self) -> None: ...

    def enter_region(self, name: str) -> None:
        self.names.append(name)
        self.depth += 1

    def exit_region(self) -> None:
        self.depth -= 1

    def is_compiling(self) -> bool:
        return self.compiling


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    active = Recorder()
    marks.activate(active)
    yield active
    marks.activate(None)


def test_the_public_name_is_this_class() -> None:
    assert fusionaudit.expect is expect


def test_outside_of_a_capture_nothing_happens() -> None:
    with expect(max_kernels=1) as entered:
        assert entered._region is None


def test_importing_it_needs_no_torch() -> None:
    code = "import fusionaudit, sys\nwith fusionaudit.expect(max_kernels=1): pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_block_becomes_a_region_with_its_lines(recorder: Recorder) -> None:
    for _ in range(2):
        with expect(max_kernels=1, fused=["aten.gelu", "aten.add"]):
            assert recorder.depth == 1
    assert recorder.depth == 0
    (first, entry), (second, next_entry) = (found for n in recorder.names for found in expectations(n))
    assert first == second
    assert next_entry == entry + 1
    assert (first.max_kernels, first.fused) == (1, ("aten.gelu", "aten.add"))
    assert first.file == __file__
    assert first.last_line == first.first_line + 1


def test_a_head_over_several_lines_and_an_exception(recorder: Recorder) -> None:
    with (
        pytest.raises(ValueError, match="x"),
        expect(
            max_bytes=10,
        ),
    ):
        raise ValueError("x")
    ((found, _),) = expectations(recorder.names[0])
    assert found.last_line - found.first_line == 6
    assert recorder.depth == 0


def test_the_decorator_names_the_function_and_keeps_it(recorder: Recorder) -> None:
    @expect(kernel="rms_norm")
    def norm(x: int) -> int:
        """Doc."""
        return x + 1

    assert (norm(1), norm.__name__, norm.__doc__) == (2, "norm", "Doc.")
    ((found, _),) = expectations(recorder.names[0])
    assert found.kernel == "rms_norm"
    assert found.last_line - found.first_line == 3


def test_traced_code_opens_no_region() -> None:
    active = Recorder(compiling=True)
    marks.activate(active)
    try:
        with expect(max_kernels=1):
            pass
    finally:
        marks.activate(None)
    assert active.names == []


def test_it_breaks_no_graph_under_torch_compile() -> None:
    torch = pytest.importorskip("torch")

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def f(x: Any) -> Any:
        with expect(max_kernels=1, fused=["aten.sin"]):
            y = x.sin()
        return g(y)

    @expect(max_kernels=1)
    def g(x: Any) -> Any:
        return x.cos()

    assert f(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", [None, "attention", "expect {", "expect []", 'expect {"at":[1]}'])
def test_other_regions_are_no_expectations(name: str | None) -> None:
    assert expectations(name) == []
    assert named(name) == name


WHAT = Expectation(max_kernels=1, fused=("aten.gelu", "aten.add"), file=FILE, first_line=10, last_line=14)


def region(entry: int, what: Expectation = WHAT) -> str:
    return region_name(what, entry)


def findings(
    compiled: list[Kernel],
    eager_regions: list[str] | None = None,
    log: InductorLog | None = None,
    eager: tuple[Kernel, ...] = (),
) -> list[Finding]:
    ops = tuple(Op(id=i, name="aten.add.Tensor", region=r) for i, r in enumerate(eager_regions or [region(1)]))
    passes = (
        Pass(name="eager", engine="deviceless", ops=ops, kernels=eager),
        Pass(name="compiled", engine="deviceless", kernels=tuple(compiled), log=log or InductorLog()),
    )
    return list(fa116.check(Program(engine="deviceless", device=None, passes=passes), Config()))


def kernel(number: int, *ops: str, line: int | None = None, **given: Any) -> Kernel:
    place = None if line is None else Location(file=FILE, line=line)
    return Kernel(id=number, name=f"triton_{number}", category="pointwise", op_names=ops, location=place, **given)


def test_one_fused_kernel_in_the_region_is_silent() -> None:
    assert findings([kernel(0, "aten.add", "aten.gelu", region=region(7))]) == []


def test_each_entry_is_judged_alone() -> None:
    kernels = [kernel(i, "aten.add", "aten.gelu", region=region(i)) for i in range(12)]
    assert findings(kernels) == []


def test_two_kernels_in_one_entry_fail() -> None:
    kernels = [kernel(0, "aten.add", region=region(3)), kernel(1, "aten.gelu", region=region(3))]
    (finding,) = findings(kernels)
    assert finding.severity == "error"
    assert "2 kernels ran, declared at most 1" in finding.message
    assert "aten.add and aten.gelu do not share a kernel (they are spread over 2 kernels)" in finding.message
    assert finding.location == Location(file=FILE, line=10)
    assert finding.kernel_ids == (0, 1)


def test_inside_a_compiled_graph_the_lines_decide() -> None:
    fused = kernel(0, "aten.add", "aten.gelu", line=11, graph="0/0/forward")
    after = kernel(1, "aten.mm", line=20, graph="0/0/forward")
    backward = kernel(2, "aten.gelu_backward", line=12, graph="0/0/backward", phase="backward")
    assert findings([fused, after, backward]) == []
    split = [kernel(0, "aten.add", line=11, graph="g"), kernel(1, "aten.gelu", line=12, graph="g")]
    assert len(findings(split)) == 1
    twice = [region(1), region(2)]
    assert findings([fused, fused], twice) == []
    assert "do not share" in findings(split, twice)[0].message


def test_what_is_nested_in_the_block_is_the_blocks() -> None:
    outer = Expectation(max_kernels=1, file=FILE, first_line=8, last_line=20)
    inside = f"model > {region(1, outer)} > attention"
    both = f"{inside} > {region(2)}"
    kernels = [kernel(0, "aten.add", "aten.gelu", region=both), kernel(1, "aten.mul", region=inside)]
    (finding,) = findings(kernels, [both, inside])
    assert finding.message == "declared fusion did not happen: 2 kernels ran, declared at most 1"
    assert finding.location == Location(file=FILE, line=8)
    assert [named(k.region) for k in kernels] == ["model > attention"] * 2
    assert [what for what, _ in expectations(both)] == [outer, WHAT]
    odd = Expectation(kernel="a > b", file="/x > y/block.py", first_line=1, last_line=2)
    assert expectations(f"model > {region(3, odd)}") == [(odd, 3)]


def test_a_fused_kernel_is_the_blocks_by_any_of_its_lines() -> None:
    """It is shown at the line of its last op, after the block."""
    made, generated = call("triton_0", aten=("add", "gelu", "mul"))
    made = replace(
        made, location=Location(file=FILE, line=20), locations=tuple(Location(file=FILE, line=n) for n in (11, 20))
    )
    log = InductorLog(graphs=(graph((made, generated)),))
    fused = kernel(0, "aten.add", "aten.gelu", "aten.mul", line=20, graph=log.graphs[0].id, call=0)
    assert findings([fused], log=log) == []
    (finding,) = findings([fused])
    assert "none of them ran" in finding.message


def test_what_cannot_be_checked_is_said() -> None:
    what = Expectation(max_bytes=100, file=FILE, first_line=10, last_line=14)
    known = {"read_bytes": 50, "write_bytes": 50, "region": region(1, what)}
    whole, part = kernel(0, "aten.add", ops=(3,), **known), kernel(1, "aten.add", ops=(3,), region=region(1, what))
    assert findings([whole, part], [region(1, what)]) == []
    (finding,) = findings([whole, kernel(1, "my.op", ops=(4,), region=region(1, what))], [region(1, what)])
    assert (finding.severity, finding.message) == (
        "warning", "declared fusion cannot be checked: the bytes of 1 kernel are not known",
    )  # fmt: skip
    one = Expectation(max_kernels=1, file=FILE, first_line=10, last_line=14)
    ran = kernel(0, "aten.add", region=region(1, one))
    (finding,) = findings([], [region(1, one)], eager=(ran,))
    assert finding.severity == "warning"
    assert finding.message.endswith("no kernel of its lines is in the compiled code")
    assert findings([], [region(1, one)]) == []  # views launch nothing either way


def test_bytes_and_names() -> None:
    what = Expectation(max_bytes=100, kernel="rms", file=FILE, first_line=10, last_line=14)
    small = kernel(0, "aten.add", region=region(1, what), read_bytes=60, write_bytes=40)
    (finding,) = findings([small], [region(1, what)])
    assert finding.message == "declared fusion did not happen: no kernel named 'rms' ran"
    named = Kernel(id=0, name="my_rms_kernel", category="opaque", region=region(1, what), read_bytes=61, write_bytes=40)
    (finding,) = findings([named], [region(1, what)])
    assert "101 bytes moved, declared at most 100" in finding.message


def test_an_expected_op_that_never_ran() -> None:
    (finding,) = findings([])
    assert "none of them ran" in finding.message


def test_a_program_without_declarations_is_silent() -> None:
    assert findings([kernel(0, "aten.add")], ["attention"]) == []


def test_an_in_place_op_counts_as_the_op() -> None:
    assert findings([kernel(0, "aten.add_.Tensor", "aten.gelu", region=region(1))]) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_kernels": "2"}, "max_kernels is a whole number, not '2'"),
        ({"max_kernels": [1]}, "max_kernels is a whole number"),
        ({"max_kernels": True}, "max_kernels is a whole number"),
        ({"max_bytes": 1.5}, "max_bytes is a whole number"),
        ({"kernel": 5}, "kernel is part of a kernel's name"),
        ({"fused": 5}, "fused is a list of op names"),
        ({"fused": ["aten.add", 5]}, "fused is a list of op names"),
    ],
)
def test_a_wrong_type_is_said_where_it_is_written(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"fusionaudit.expect: {said}"):
        expect(**given)


def test_a_string_is_one_op() -> None:
    assert expect(fused="aten.gelu")._what.fused == ("aten.gelu",)


def test_a_region_with_a_wrong_type_is_none() -> None:
    assert expectations('expect {"max_kernels":[1],"entry":1}') == []

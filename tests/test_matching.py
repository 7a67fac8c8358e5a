"""What counts as the same kernel in other words, and what does not, on written documents."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from guard_documents import LINES, MEGABYTE, at, compiled, document, eager, graph, kernel, tensor
from test_diff import LOCK, SPLIT, checked

from fusionaudit.baseline import format_lock, lock_of, read_lock
from fusionaudit.check import check
from fusionaudit.diff import compare
from fusionaudit.explain import diff_lines
from fusionaudit.pytest_plugin import FusionAudit
from fusionaudit.report.html import render_diff_html
from fusionaudit.sweep import Variant, sweep


def with_kernel(kernels: list[dict[str, Any]], index: int, **fields: Any) -> list[dict[str, Any]]:
    return [{**k, **fields} if i == index else k for i, k in enumerate(kernels)]


def test_other_words_for_the_same_work_are_no_change() -> None:
    add = eager()[1]
    row = {**tensor("bias"), "strides": [0, 1], "shape": [1024, 1024]}
    lock = lock_of(document(with_kernel(eager(), 1, reads=[add["reads"][0], tensor("bias", shape=(1024,))])))
    for fields in (
        {"reads": [tensor("bias", shape=(1024,)), add["reads"][0]]},
        {"reads": [add["reads"][0], row]},
        {"reads": [tensor("a", shape=(1024 * 1024,)), tensor("bias", shape=(1, 1024))]},
        {"reads": [add["reads"][0], tensor("bias", shape=(1024,))], "ops": ["aten.sub.Tensor"]},
        {"reads": [add["reads"][0], tensor("bias", shape=(1024,))], "ops": ["aten.add_.Tensor"]},
    ):
        result = check(document(with_kernel(eager(), 1, **fields)), lock)
        assert (result.verdict, result.changes and result.changes.changes) == ("same", ()), fields
    for reads in (
        [tensor("bias", shape=(2048,)), add["reads"][0]],
        [tensor("bias", "float16", (1024,)), add["reads"][0]],
        [tensor("bias", shape=(1024,)), {**add["reads"][0], "strides": [1, 1024]}],
    ):
        assert check(document(with_kernel(eager(), 1, reads=reads)), lock).exit_code == 1
    swapped = with_kernel(compiled(), 0, ops=["aten.add", "aten.gelu", "aten.mul"])
    assert checked(document(compiled_kernels=swapped)).lines[-1] == "groups: 6 the same, 0 regions changed"


def test_lines_that_became_calls_of_one_function_are_the_same() -> None:
    two = [
        *eager(),
        kernel(["aten.mul.Tensor"], ["x", "scale"], ["e"], 30),
        kernel(["aten.mul"], ["x", "y"], ["f"], 60),
    ]
    lines = {**LINES, 30: "e = x * scale", 60: "f = x * y", 90: "return a * b"}
    apart = document(two, lines=lines)
    one = document([{**k, "location": at(90)} if "mul" in k["ops"][0] else k for k in two], lines=lines)
    for old, new in ((apart, one), (one, apart)):
        result = check(new, lock_of(old))
        assert (result.verdict, result.changes and result.changes.changes) == ("same", ())
    more = document([*one["passes"][0]["kernels"], kernel(["aten.mul"], ["x", "y"], ["g"], 90)], lines=lines)
    result = check(more, lock_of(apart))
    assert result.exit_code == 1
    assert "aten.mul runs 4 times a step, before 3 times" in result.findings[0].message


def test_an_op_in_the_place_of_another_is_told_and_passes() -> None:
    doc = document(
        with_kernel(eager(), 2, ops=["aten.silu.default"]),
        with_kernel(compiled(), 0, ops=["aten.mul", "aten.add", "aten.silu"]),
        lines={**LINES, 12: "h = F.silu(h)"},
    )  # fmt: skip
    result = checked(doc)
    assert (result.verdict, result.exit_code) == ("same", 0)
    (finding,) = result.findings
    assert "block.py:12 `h = F.silu(h)`: eager forward: aten.silu took the place of aten.gelu" in finding.message
    more = with_kernel(compiled(), 0, ops=["aten.mul", "aten.add", "aten.silu", "aten.exp"])
    assert checked(document(doc["passes"][0]["kernels"], more)).verdict == "changed"
    custom = with_kernel(eager(), 2, ops=["mine.gelu.default"], global_bytes=None)
    assert checked(document(custom)).verdict == "changed"


def test_a_kernel_that_fell_apart_while_others_came_together_fails() -> None:
    lock = lock_of(document(compiled_kernels=[*compiled(), *joined()[1:]], graphs=[pair_graph(4)]))
    doc = document(compiled_kernels=[*SPLIT, joined()[0]], graphs=[pair_graph(4)])
    result = check(doc, lock)
    assert any("launches 4 -> 4" in line for line in result.lines)
    assert result.exit_code == 1, "\n".join(result.lines)


def joined() -> list[dict[str, Any]]:
    """sin and cos as one kernel, then as two that pass a tensor of their size."""
    where = {"line": 13, "graph": "0/0/forward", "call": 3}
    one = kernel(["aten.sin", "aten.cos"], ["p"], ["q"], **where)
    return [one, kernel(["aten.sin"], ["p"], ["s"], **where), kernel(["aten.cos"], ["s"], ["q"], **where)]


def pair_graph(calls: int) -> dict[str, Any]:
    return graph(locations=((10, 11), (12,), (13,), (13,))[:calls])


def test_a_pass_that_never_ran_on_one_side_is_not_compared() -> None:
    whole, part = document(), document()
    part["passes"] = part["passes"][:1]
    changes = compare(LOCK, lock_of(part))
    assert (changes.changes, changes.same, list(changes.only_old), changes.only_new) == ((), 4, ["compiled"], {})
    assert diff_lines(LOCK, lock_of(part), ("a.lock", "b.lock"))[1:] == [
        "eager: launches 4 -> 4, bytes 46.1 MB -> 46.1 MB per step",
        "compiled: not compared: the pass never ran in b.lock (a.lock: 2 launches per step)",
        "groups: 4 the same, 0 regions changed",
    ]
    turned = diff_lines(lock_of(part), LOCK, ("a.lock", "b.lock"))
    assert "compiled: not compared: the pass never ran in a.lock (b.lock: 2 launches per step)" in turned
    assert "the pass compiled never ran after it: not compared" in render_diff_html(asdict(changes), old="a", new="b")
    for lock, doc, says in (
        (LOCK, part, "the lock has a pass compiled and this audit has not"),
        (lock_of(part), whole, "this audit has a pass compiled and the lock has not"),
    ):
        result = check(doc, lock)
        assert (result.exit_code, result.lines[1]) == (2, says)


def test_copies_and_fills_are_no_launches() -> None:
    copy = {**kernel(["aten.copy_.default"], ["d"], ["e"], 13), "category": "memcpy"}
    doc = document([*eager(), copy, copy])
    lock = lock_of(doc)
    assert "| 2 copies | 16777216 bytes |" in format_lock(lock)
    assert format_lock(read_lock(format_lock(lock))) == format_lock(lock)
    told = "eager: launches 4 -> 4, copies and fills 2 -> 2, bytes 62.9 MB -> 62.9 MB per step"
    assert told in check(doc, lock).lines
    result = checked(doc)
    assert (result.verdict, result.exit_code) == ("regression", 1)
    assert "new kernel aten.copy_ (0 copies -> 2, 0 B -> 16.8 MB)" in result.findings[0].message
    as_kernel = document([*eager(), *[{**copy, "category": "copy"}] * 2])
    assert check(as_kernel, lock).verdict == "same"
    assert FusionAudit(document=doc, lock_path=Path("a")).describe().startswith("compiled pass, 2 launches:")
    variants = (Variant(dtype="fp32"), Variant(dtype="bf16"))
    assert sweep(lambda _: document(compiled_kernels=[*compiled(), copy]), variants).lines[1] == (
        "dtype=bf16: 2 launches and 1 copy or fill, 37.7 MB; the same groups"
    )


def test_a_kernel_that_fell_apart_is_told_before_the_eager_launch_that_goes_with_it() -> None:
    more = kernel(["aten.cumsum"], ["x"], ["y"], 10, bytes_each=100 * MEGABYTE)
    message = checked(document([more, *eager()], SPLIT)).findings[0].message
    assert "aten.mul + aten.add + aten.gelu was one kernel and is now 2" in message


def syncs(*lines: int) -> dict[str, Any]:
    text = {**LINES, 20: "a = h.sum().item()", 21: "b = h.sum().item()", 90: "return x.item()"}
    return document(lines=text, syncs=[{"name": "aten._local_scalar_dense", "location": at(n)} for n in lines])


def test_waits_for_the_device_are_counted() -> None:
    lock = read_lock(format_lock(lock_of(syncs(20, 21))))
    assert check(syncs(90, 90), lock).verdict == "same"
    assert check(syncs(20, 21), lock_of(syncs(90, 90))).verdict == "same"
    assert "sync: aten._local_scalar_dense x2 | block.py:Block.forward" in format_lock(lock_of(syncs(90, 90)))
    for worse in (syncs(20, 20, 21), syncs(90, 90, 90)):
        result = check(worse, lock)
        assert (result.verdict, result.exit_code) == ("regression", 1)
        assert "makes the host wait for the device (aten._local_scalar_dense) " in result.findings[0].message
    told = check(syncs(20, 20), lock_of(syncs(20))).findings[0].message
    assert "(aten._local_scalar_dense) 2 times a step, before once" in told
    assert check(syncs(20), lock_of(syncs(20, 20))).verdict == "improved"
    less = syncs()
    less["passes"][1]["kernels"] = SPLIT
    assert check(less, lock).verdict == "regression"
    assert check(syncs(20, 20), lock).lines[2] == "eager: launches 4 -> 4, bytes 46.1 MB -> 46.1 MB per step"

"""The gate: what passes, what fails, and that the message names the edited line."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

import pytest
from guard_documents import LINES, MEGABYTE, at, compiled, document, eager, graph, kernel, tensor

from fusionaudit.baseline import lock_of, read_lock, write_lock
from fusionaudit.check import CheckResult, check
from fusionaudit.diff import compare
from fusionaudit.errors import AuditError
from fusionaudit.explain import diff_lines
from fusionaudit.limits import Allowed, Limits, limits_from
from fusionaudit.lost_edges import tensor_bytes
from fusionaudit.report.html import render_diff_html

LOCK = read_lock(write_lock(document()))


def checked(doc: dict[str, Any], **limits: Any) -> CheckResult:
    return check(doc, LOCK, Limits(**limits), today=datetime.date(2026, 1, 1))


SPLIT = [
    kernel(
        ["aten.mul", "aten.add"], ["x", "scale", "bias"], ["b"], 10, graph="0/0/forward", call=0, nodes=["mul", "add"]
    ),
    kernel(["aten.gelu"], ["b"], ["c"], 12, graph="0/0/forward", call=1, nodes=["gelu"]),
    kernel(["aten.mm"], ["c", "w"], ["d"], 13, graph="0/0/forward", call=2, nodes=["mm"]),
]


def test_the_same_program_is_the_same() -> None:
    result = checked(document())
    assert (result.verdict, result.exit_code, result.findings) == ("same", 0, ())
    assert "compiled: launches 2 -> 2, bytes 29.4 MB -> 29.4 MB per step, graphs 1 -> 1" in result.lines
    assert any(line.startswith("limits:") for line in result.lines)


HARMLESS = {
    "renamed variables": document(lines={n: t.replace("h", "hidden") for n, t in LINES.items()}),
    "comments": document(lines={n: t + "  # as in the paper" for n, t in LINES.items()}),
    "moved code": document(
        eager_kernels=[{**k, "location": at(k["location"]["line"] + 40)} for k in eager()],
        compiled_kernels=[{**k, "location": at(k["location"]["line"] + 40)} for k in compiled()],
        graphs=[graph(locations=((50, 51, 52), (53,)))],
        lines={n + 40: t for n, t in LINES.items()},
    ),
    "another build of torch": document(torch="2.13.0+cu130"),
    "kernels renumbered": document(None, [{**k, "name": f"triton_{i}"} for i, k in enumerate(compiled(), 7)]),
    "a gather touched a few rows more": document([{**k, "global_bytes": k["global_bytes"] + 40} for k in eager()]),
}  # fmt: skip


@pytest.mark.parametrize("doc", HARMLESS.values(), ids=HARMLESS.keys())
def test_harmless_edits_pass(doc: dict[str, Any]) -> None:
    result = checked(doc)
    assert (result.verdict, result.exit_code, result.findings) == ("same", 0, ())


def test_another_file_name_and_function_name_pass() -> None:
    def moved(place: dict[str, Any]) -> dict[str, Any]:
        return {**place, "file": "/tmp/other/model.py", "function": "Layer.forward"}

    made = graph()
    made["calls"] = [
        {**c, "locations": [moved(x) for x in c["locations"]], "location": moved(c["location"])} for c in made["calls"]
    ]
    doc = document(
        [{**k, "location": moved(k["location"])} for k in eager()],
        [{**k, "location": moved(k["location"])} for k in compiled()],
        [made],
        file="/tmp/other/model.py",
    )
    assert checked(doc).verdict == "same"


def test_a_split_names_the_lost_edge_its_bytes_and_inductors_reason() -> None:
    decision = {
        "graph": "0/0/forward", "first": "op0", "second": "op1", "reason": "fusion would increase peak memory",
        "cause": "memory", "first_nodes": ["add"], "second_nodes": ["gelu"], "shared_bytes": MEGABYTE,
    }  # fmt: skip
    doc = document(compiled_kernels=SPLIT, graphs=[graph(locations=((10, 11), (12,), (13,)))], decisions=[decision])
    result = checked(doc)
    assert result.exit_code == 1
    (finding,) = result.findings
    assert finding.rule == "FA115"
    assert finding.severity == "error"
    assert "was one kernel and is now 2: aten.mul + aten.add, aten.gelu" in finding.message
    assert "aten.add -> aten.gelu shared a kernel, now f32[1024,1024] (4.19 MB) goes through memory" in finding.message
    assert "1 launch -> 2, 16.8 MB -> 25.2 MB" in finding.message
    assert finding.reason == "fusion would increase peak memory"
    assert finding.avoidable_bytes == 2 * MEGABYTE


def test_the_other_way_round_is_an_improvement() -> None:
    lock = lock_of(document(compiled_kernels=SPLIT, graphs=[graph(locations=((10, 11), (12,), (13,)))]))
    result = check(document(), lock)
    assert (result.verdict, result.exit_code) == ("improved", 0)
    assert "2 kernels are now one" in result.findings[0].message
    must = check(document(), lock, Limits(require_locked=True))
    assert (must.verdict, must.exit_code) == ("not locked in", 1)
    assert must.lines[-1] == "write it down with `fusionaudit check --update`"


def inserted() -> dict[str, Any]:
    """``h = h * 2`` added as line 12 (gelu and mm move down): free in the compiled kernel, one launch more in eager."""
    first, second, third, fourth = eager()
    new = kernel(["aten.mul.Tensor"], ["b"], ["b2"], 12)
    late = [{**third, "location": at(13)}, {**fourth, "location": at(14)}]
    fused = kernel(
        ["aten.mul", "aten.add", "aten.gelu"], ["x", "scale", "bias"], ["c"], 10, graph="0/0/forward", call=0
    )
    product = kernel(["aten.mm"], ["c", "w"], ["d"], 14, graph="0/0/forward", call=1)
    lines = {10: LINES[10], 11: LINES[11], 12: "h = h * 2", 13: LINES[12], 14: LINES[13]}
    graphs = [graph(locations=((10, 11, 12, 13), (14,)))]
    return document([first, second, new, *late], [fused, product], graphs, lines)


def test_an_op_added_in_the_middle_names_its_line() -> None:
    result = checked(inserted())
    assert result.exit_code == 1
    (finding,) = result.findings
    assert finding.location is not None
    assert finding.location.line == 12
    assert "block.py:12 `h = h * 2`" in finding.message


def test_another_dtype_fails_even_where_it_is_cheaper() -> None:
    doc = document(
        eager_kernels=[
            kernel(["aten.mul.Tensor"], ["x", "scale"], ["a"], 10, dtype="bfloat16", bytes_each=MEGABYTE // 2),
            *eager()[1:],
        ]
    )
    result = checked(doc)
    assert (result.verdict, result.exit_code) == ("changed", 1)
    assert "f32[1024,1024] -> bf16[1024,1024]" in result.findings[0].message
    assert result.findings[0].location is not None
    assert result.findings[0].location.line == 10


def test_a_graph_break_is_the_root_of_what_follows() -> None:
    graphs = [graph(locations=((10, 11),)), graph("1/0/forward", locations=((12,), (13,)))]
    second = [{**SPLIT[1], "graph": "1/0/forward", "call": 0}, {**SPLIT[2], "graph": "1/0/forward", "call": 1}]
    doc = document(
        compiled_kernels=[SPLIT[0], *second], graphs=graphs, lines={**LINES, 20: "print(h.shape)"},
        breaks=[{"location": at(20), "reason": "builtin print"}],
    )  # fmt: skip
    result = checked(doc)
    (finding,) = result.findings
    assert finding.location is not None
    assert finding.location.line == 20
    assert "breaks the graph: builtin print" in finding.message
    assert "aten.add -> aten.gelu" in finding.evidence["changes"][1]


def test_a_sync_fails() -> None:
    doc = document(
        lines={**LINES, 20: "if h.sum().item() > 0:"},
        syncs=[{"name": "aten._local_scalar_dense.default", "location": at(20)}],
    )
    (finding,) = checked(doc).findings
    assert finding.severity == "error"
    assert "makes the host wait" in finding.message


def test_dynamic_sizes_fail() -> None:
    result = checked(document(graphs=[graph(symbols={"s0": 1024})]))
    assert (result.verdict, result.exit_code) == ("changed", 1)
    assert "symbolic" in result.findings[0].message
    lines = {**LINES, 30: "model = torch.compile(model, dynamic=True)  # any batch"}
    result = checked(document(graphs=[graph(symbols={"s0": 1024})], lines=lines))
    assert "block.py:30 `model = torch.compile(model, dynamic=True)`" in result.findings[0].message


def test_a_broken_declaration_fails_whatever_the_lock_says() -> None:
    doc = document()
    finding = {
        "rule": "FA116", "severity": "error", "message": "declared fusion did not happen: 3 kernels ran",
        "pass": "compiled",
        "location": {"file": "/home/a/block.py", "line": 10, "function": None},
    }  # fmt: skip
    doc["findings"] = [{**finding, "rule": "FA101", "severity": "warning"}]
    assert checked(doc).exit_code == 0
    doc["findings"] = [finding]
    result = checked(doc)
    assert (result.verdict, result.exit_code) == ("regression", 1)
    assert result.lines[-1] == "regression: block.py:10 declared fusion did not happen: 3 kernels ran (FA116)"
    assert not any("--update" in line for line in result.lines)  # that accepts no broken declaration
    unchecked = {**finding, "severity": "warning", "message": "declared fusion cannot be checked: no kernel"}
    doc["findings"] = [unchecked]
    result = checked(doc)
    assert (result.verdict, result.exit_code) == ("cannot judge", 2)
    assert result.lines[1] == "block.py:10 declared fusion cannot be checked: no kernel (FA116)"
    doc["findings"] = [unchecked, finding]
    assert checked(doc).exit_code == 1


def test_two_edits_far_apart_are_two_findings() -> None:
    more = [kernel(["aten.sin"], ["d"], ["e"], 40), kernel(["aten.cos"], ["e"], ["f"], 90)]
    doc = document(eager_kernels=[*eager(), *more], lines={**LINES, 40: "y = y.sin()", 90: "z = y.cos()"})
    assert sorted(f.location.line for f in checked(doc).findings if f.location) == [40, 90]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "h200"}, "target h100 -> h200"),
        ({"sms": 78}, "SM count 132 -> 78"),
        ({"engine": "nsys"}, "engine deviceless -> measured"),
    ],
)
def test_another_target_is_not_compared(change: dict[str, Any], says: str) -> None:
    result = checked(document(compiled_kernels=SPLIT, **change))
    assert (result.verdict, result.exit_code, result.findings) == ("cannot judge", 2, ())
    assert result.lines[:2] == ("verdict: cannot judge", f"other key: {says}; not compared")
    assert not any("is now 2" in line for line in result.lines)
    assert result.lines[-2:] == (
        "limits: +0 launches, +1% +0 bytes in a changed region",
        "groups: 6 in the lock, 7 in this audit, none compared",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [({"torch": "2.14.1"}, "torch 2.13.0 -> 2.14.1"), ({"triton": "3.8.0"}, "Triton 3.7.1 -> 3.8.0")],
)
def test_an_upgrades_changes_are_named_group_by_group_and_not_judged(change: dict[str, Any], says: str) -> None:
    result = checked(document(**change))
    assert (result.verdict, result.exit_code, result.findings) == ("cannot judge", 2, ())
    assert result.lines[1] == f"other key: {says}"
    assert result.lines[-1] == "groups: 6 the same, 0 regions changed"
    decision = {
        "graph": "0/0/forward", "first": "op0", "second": "op1", "reason": "fusion would increase peak memory",
        "cause": "memory", "first_nodes": ["add"], "second_nodes": ["gelu"], "shared_bytes": MEGABYTE,
    }  # fmt: skip
    graphs = [graph(locations=((10, 11), (12,), (13,)))]
    result = checked(document(compiled_kernels=SPLIT, graphs=graphs, decisions=[decision], **change))
    assert (result.exit_code, result.findings) == (2, ())
    told = [line for line in result.lines if line.startswith("upgrade")]
    assert len(told) == 1
    assert told[0].startswith("upgrade: split: block.py Block.forward `h = x * scale`: compiled forward graph of")
    assert "Inductor: fusion would increase peak memory" in told[0]


def test_an_edit_beside_an_upgrade_is_not_called_the_upgrades() -> None:
    doc = inserted()
    doc["environment"]["torch"] = "2.14.1"
    told = [line for line in checked(doc).lines if line.startswith("upgrade")]
    assert any(line.startswith("upgrade or edit (the line is not in the lock): added: ") for line in told)


def test_a_blocking_note_or_a_missing_pass_cannot_be_judged() -> None:
    doc = document()
    doc["notes"] = [{"kind": "warm-cache", "text": "warm cache", "blocks": True, "remedy": "clear it"}]
    told = (
        "verdict: cannot judge", "warm cache", "  -> clear it", "limits: +2 launches, +1% +0 bytes in a changed region",
        "groups: 6 in the lock, 6 in this audit, none compared",
    )  # fmt: skip
    result = checked(doc, launches=2)
    assert (result.exit_code, result.lines) == (2, told)
    doc = document()
    doc["passes"] = doc["passes"][:1]
    result = checked(doc)
    assert result.exit_code == 2
    assert "pass compiled" in "\n".join(result.lines)
    assert result.lines[-1] == "groups: 6 in the lock, 4 in this audit, none compared"


def test_what_a_lock_does_not_say_of_its_gpu_is_not_known() -> None:
    lock = read_lock(write_lock(document()).replace(" 132 SMs", ""))
    assert check(document(), lock).lines[1] == "other key: SM count not known -> 132; not compared"


def test_limits_and_allow_list() -> None:
    assert checked(inserted(), launches=1, bytes=2 * MEGABYTE).verdict == "changed"
    allow = Allowed(match="h * 2", reason="scale fix, #12", expires=datetime.date(2026, 6, 1))
    told = Allowed(match=checked(inserted()).findings[0].message[-40:], reason="what check says of it")
    assert checked(inserted(), allow=(told,)).verdict == "allowed"
    result = checked(inserted(), allow=(allow,))
    assert result.exit_code == 0
    assert any("scale fix, #12, until 2026-06-01" in line for line in result.lines)
    late = check(inserted(), LOCK, Limits(allow=(allow,)), today=datetime.date(2026, 6, 2))
    assert late.exit_code == 1
    assert "    allowed until 2026-06-01 (scale fix, #12): that has expired" in late.lines
    longer = Allowed(match="h * 2", reason="more time", expires=datetime.date(2027, 1, 1))
    assert check(inserted(), LOCK, Limits(allow=(allow, longer)), today=datetime.date(2026, 6, 2)).exit_code == 0


def test_limits_are_read_from_a_table() -> None:
    limits = limits_from({"launches": 2, "allow": [{"match": "x", "reason": "y", "expires": "2027-01-02"}]})
    assert limits.launches == 2
    assert limits.allow[0].expires == datetime.date(2027, 1, 2)
    entry = {"match": "x", "reason": "y", "expires": datetime.datetime(2027, 1, 2, 12)}
    assert limits_from({"allow": [entry]}).allow[0].expires == datetime.date(2027, 1, 2)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"lanches": 1}, "unknown key 'lanches'"),
        ({"launches": -1}, "launches is -1"),
        ({"launches": 1.5}, "launches is 1.5"),
        ({"bytes": True}, "bytes is True"),
        ({"bytes-percent": float("nan")}, "bytes-percent is nan"),
        ({"require-locked": "false"}, "require-locked is 'false'"),
        ({"allow": 5}, "allow is not a list"),
        ({"allow": ["x"]}, "needs match and reason"),
        ({"allow": [{"match": "x"}]}, "needs match and reason"),
        ({"allow": [{"match": "x", "reason": " "}]}, "needs match and reason"),
        ({"allow": [{"match": "x", "reason": "r", "until": "2027-01-02"}]}, "unknown key 'until'"),
        ({"allow": [{"match": "x", "reason": "r", "expires": "soon"}]}, "not a date"),
        ({"allow": [{"match": "x", "reason": "r", "expires": 2027}]}, "not a date"),
    ],
)
def test_wrong_limits_are_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(AuditError, match=says):
        limits_from(table)


def test_diff_names_an_upgrade_group_by_group() -> None:
    new = lock_of(document(compiled_kernels=SPLIT, graphs=[graph(locations=((10, 11), (12,), (13,)))], torch="2.14.1"))
    lines = diff_lines(LOCK, new)
    assert lines[0].endswith("They differ in torch 2.13.0 -> 2.14.1: a change may come from that alone.")
    assert sum(line.startswith("split:") for line in lines) == 1


def test_the_opening_says_no_more_than_is_known() -> None:
    other = lock_of(document(torch="2.14.1"))
    told = "No fusion group changed between the first and the second. They differ in torch 2.13.0 -> 2.14.1."
    assert diff_lines(LOCK, other)[0] == told
    bare = document()
    bare["environment"] = {}
    bare["target"] = {"name": "NVIDIA H100"}
    opened = diff_lines(lock_of(bare), lock_of(bare))[0]
    assert opened.endswith("and the second, both for NVIDIA-H100, deviceless, versions not known.")


def test_nothing_is_invented_between_equal_locks() -> None:
    changes = compare(LOCK, lock_of(document()))
    assert changes.changes == ()
    assert changes.same == 6


def test_how_generated_code_views_a_buffer_is_no_change() -> None:
    flat = [dict(k) for k in compiled()]
    flat[0]["reads"] = [{**t, "shape": [1024 * 1024], "strides": [1]} for t in flat[0]["reads"]]
    assert checked(document(compiled_kernels=flat)).verdict == "same"
    unread = [dict(k) for k in compiled()]
    unread[1] |= {"reads": unread[1]["reads"][:1], "global_bytes": None}
    assert checked(document(compiled_kernels=unread)).verdict == "same"


def test_another_shape_is_seen_where_an_operand_could_not_be_read() -> None:
    unread = [dict(k) for k in compiled()]
    wide = tensor("c", shape=(1024, 2048))
    unread[1] |= {"reads": [wide], "global_bytes": None}
    result = checked(document(compiled_kernels=unread))
    assert (result.verdict, result.exit_code) == ("changed", 1)
    assert "now also f32[1024,2048]" in result.findings[0].message


def test_a_graph_called_with_another_shape_of_as_many_elements_is_seen() -> None:
    turned = {**graph(), "inputs": [tensor("x", shape=(2048, 512)), *graph()["inputs"][1:]]}
    result = checked(document(graphs=[turned]))
    assert (result.verdict, result.exit_code) == ("changed", 1)
    assert "called with other tensors: f32[1024,1024] -> f32[2048,512]" in result.findings[0].message
    assert checked(document(graphs=[{**graph(), "inputs": graph()["inputs"][::-1]}])).verdict == "same"
    changes = compare(LOCK, lock_of(document(graphs=[turned])))
    page = render_diff_html(asdict(changes), old="a", new="b")
    assert "its graph is called with f32[2048,512]" in page


def unrelated(count: int) -> dict[str, Any]:
    lines = {100 + n: f"y = tanh_{n}(y)" for n in range(count)}
    kernels = [kernel([f"aten.tanh_{n}"], ["p"], ["q"], n, shape=(7, n)) for n in lines]
    return document(kernels, [{**k, "graph": None} for k in kernels], [], lines)


def test_unrelated_programs_are_summed_up_not_listed() -> None:
    lines = diff_lines(LOCK, lock_of(unrelated(30)))
    assert lines[-1].startswith("these two share hardly a source line")
    assert len(lines) == 5
    assert any(line.startswith("eager: launches 4 -> 30") for line in lines)
    assert len(diff_lines(LOCK, lock_of(unrelated(1)))) > 5


def test_a_lock_of_another_script_is_not_judged() -> None:
    training = {**LINES, 14: "loss.backward()"}
    lock = lock_of(document([*eager(), kernel(["aten.ones_like"], [], ["g"], 14)], lines=training))
    other = unrelated(60)
    other["passes"][0]["kernels"].append(kernel(["aten.ones_like"], [], ["g"], 14, shape=(3,)))
    other["sources"]["/home/a/block.py"]["14"] = "loss.backward()"
    for result in (checked(unrelated(60)), check(other, lock)):
        assert (result.verdict, result.exit_code, result.findings) == ("cannot judge", 2, ())
        assert result.lines[1].startswith("the lock is of another script: these two share hardly a source line")
        assert len(result.lines) == 7


def test_a_changed_script_does_not_fill_the_terminal() -> None:
    many = unrelated(60)["passes"][0]["kernels"]
    result = checked(document([*eager(), *many], lines={**LINES, **{n: f"y = {n}" for n in range(100, 160)}}))
    assert result.exit_code == 1
    assert len(result.lines) < 80
    near = [{**k, "location": at(20)} for k in many]
    result = checked(document([*eager(), *near], lines={**LINES, 20: "y = f(y)"}))
    assert result.exit_code == 1
    assert len(result.lines) < 30
    assert any("more (--format json has them all)" in line for line in result.lines)


@pytest.mark.parametrize(("text", "size"), [("bf16[8,16]", 256), ("f32[]", 4), ("i64[3](2)", 24), ("odd[3]", None)])
def test_tensor_bytes(text: str, size: int | None) -> None:
    assert tensor_bytes(text) == size


def test_new_code_is_not_called_fusion_that_got_worse() -> None:
    lines = {**LINES, 14: "e = d.sin()", 15: "f = e.cos()"}
    new = [kernel(["aten.sin.default"], ["d"], ["e"], 14), kernel(["aten.cos.default"], ["e"], ["f"], 15)]
    result = checked(document([*eager(), *new], [*compiled(), *new], lines=lines))
    assert (result.verdict, result.exit_code) == ("regression", 1)
    (finding,) = result.findings
    assert finding.message.startswith("new code came in with kernels of its own at block.py:14 `e = d.sin()`: ")
    more = checked(document([*eager(), eager()[2]], [*compiled(), *compiled()]))
    assert all(f.message.startswith("fusion got worse") for f in more.findings if f.severity == "error")

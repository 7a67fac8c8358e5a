"""The lock: text that reviews well, comes back the same, and is refused when it is not whole."""

from __future__ import annotations

from typing import Any

import pytest
from guard_documents import at, compiled, document, eager, graph, kernel, tensor

from fusionaudit.baseline import Group, Lock, format_lock, groups_of, lock_of, read_lock, write_lock
from fusionaudit.errors import AuditError
from fusionaudit.groups import bare


def test_groups_are_ops_shapes_and_lines_not_names() -> None:
    groups = groups_of(document())
    fused = next(g for g in groups if g.section.pass_name == "compiled")
    assert fused.ops == ("aten.mul", "aten.add", "aten.gelu")
    assert fused.reads == ("f32[1024,1024]",) * 3
    assert [r.code for r in fused.refs] == ["h = x * scale", "h = h + bias", "h = F.gelu(h)"]
    assert fused.refs[0].file == "block.py"
    assert fused.section.place == "block.py Block.forward"
    renamed = document(compiled_kernels=[{**k, "name": "triton_poi_fused_99"} for k in compiled()])
    assert groups_of(renamed) == groups


def test_the_text_is_stable_and_holds_one_group_a_line() -> None:
    text = write_lock(document())
    assert text == write_lock(document())
    assert (
        "aten.mul + aten.add + aten.gelu | f32[1024,1024] x3 -> f32[1024,1024] | 1 launch | 16777216 bytes | "
        'block.py:Block.forward "h = x * scale" & block.py:Block.forward "h = h + bias" & '
        'block.py:Block.forward "h = F.gelu(h)"'
    ) in text.splitlines()
    assert "torch 2.13.0\n" in text
    assert "target h100 132 SMs\n" in text
    assert text.endswith("end 6 groups\n")


def test_equal_kernels_of_a_section_are_counted() -> None:
    doc = document(eager_kernels=[*eager(), *eager()])
    groups = [g for g in groups_of(doc) if g.section.pass_name == "eager"]
    assert [g.launches for g in groups] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "doc",
    [
        document(),
        document(lines={10: 'h = f("a | b") & x  # c', 11: "y = '\\\\' & \"é\""}),
        document(breaks=[{"location": at(12), "reason": "print | builtin"}]),
        document(syncs=[{"name": "aten._local_scalar_dense.default", "location": None}]),
        document([kernel(["aten.mul"], [], [], {"file": "/a b/c:d.py", "line": 1, "function": "<lambda>"})]),
        document([kernel(["aten.mul"], [], [], {"file": "/a.py", "line": 1, "function": "a b\r:%\ud800\udce9"})]),
        document(lines={10: "x = '\ud800\r\x85'"}),
        document([kernel(["aten.mul"], [], [], {"file": "/a/b%20\n\u2028\x85é.py", "line": 1, "function": "f"})]),
        document(compiled_kernels=[{**kernel([], ["x"], ["y"], 10), "location": None, "global_bytes": None}]),
        document(graphs=[graph(symbols={"s0": 8})]),
        document([kernel(["aten._fused_adamw_"], [f"p{i}" for i in range(50)], ["q"], 10)]),
        document(
            compiled_kernels=[{**k, "graph": g} for g in ("0/0/forward", "1/0/forward") for k in compiled()],
            graphs=[graph(), graph("1/0/forward")],
        ),
    ],
    ids=[
        "plain", "quotes", "break", "sync", "odd file", "odd function", "odd line", "odder file", "unknown", "dynamic",
        "optimizer", "twins",
    ],
)  # fmt: skip
def test_a_lock_comes_back_the_same(doc: dict[str, object]) -> None:
    lock = lock_of(doc)
    back = read_lock(format_lock(lock).encode().decode())
    assert back.groups == lock.groups
    assert back.key == lock.key
    assert format_lock(back) == format_lock(lock)


def test_strides_that_are_not_row_major_are_part_of_a_group() -> None:
    turned = {"shape": [4, 8], "strides": [1, 4], "dtype": "bfloat16", "storage": "t"}
    doc = document(eager_kernels=[{**kernel(["aten.clone"], ["x"], ["y"], 10), "reads": [turned, turned]}])
    lock = lock_of(doc)
    assert lock.groups[0].reads[0] == "bf16[4,8](1,4)"
    assert read_lock(format_lock(lock)).groups == lock.groups


WHOLE = write_lock(document())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("hello\n", "not a fusionaudit lock"),
        (WHOLE[: len(WHOLE) // 2], "cut off|cannot read|should hold"),
        (WHOLE[:60], "cut off|not a fusionaudit lock"),
        (WHOLE.replace("end 6 groups\n", ""), "no end line"),
        (WHOLE.replace("format 1", "format 99"), "newer"),
        (WHOLE.replace("[eager", "<<<<<<< HEAD\n[eager"), "merge conflict"),
        ("\n".join(WHOLE.splitlines()[:-4] + WHOLE.splitlines()[-3:]), "should hold 6"),
        (WHOLE.replace("1 launch", "one launch"), ":11: cannot read"),
        (WHOLE.replace("torch 2.13.0\n", ""), "no torch line"),
        (WHOLE.replace("[1024,1024] x3", "[1024,1024] x9999999999"), ":18: .*1 to 40 tensors"),
        (WHOLE.replace("[1024,1024] x3", "[1024,1024] x0"), "1 to 40 tensors"),
        (WHOLE.replace("[1024,1024] x3", "[1024,1024] x²"), "not a tensor"),
        (WHOLE.replace("[1024,1024] x4", "[1024,1024] x" + "9" * 5000), "not a count"),
        (WHOLE.replace("format 1", "format ²"), "no format line"),
        (WHOLE.replace("format 1", "format 0"), "no format line"),
        (WHOLE.replace("format 1", "format " + "9" * 5000), "newer"),
        (WHOLE.replace("132 SMs", "²² SMs"), "target line"),
        (WHOLE.replace("1 launch", "-1 launches", 1), "not a count: '-1'"),
        (WHOLE.replace("1 launch", "1_0 launches", 1), "not a count"),
        (WHOLE.replace("1 launch ", "100000000000000000 launches ", 1), "at most 10,000,000 times"),
        (WHOLE.replace("16777216 bytes", "-5 bytes"), "not a count"),
        (WHOLE.replace("end 6", "end ٦"), "not a count"),
        (WHOLE.replace(" graph in", " graph #² in"), "not a count"),
        (WHOLE.replace("\naten.mm |", "\ndynamic -1\naten.mm |"), "not a count"),
        (WHOLE.replace("torch 2.13.0", "torch 2.13.0\ntorch 2.14.1"), "two torch lines"),
        (WHOLE.replace("\n[compiled", "\nend 4 groups\n[compiled"), "after the end line"),
        (WHOLE + WHOLE, "after the end line"),
    ],
)
def test_a_broken_lock_is_refused_with_exit_code_2(text: str, says: str) -> None:
    with pytest.raises(AuditError, match=says) as error:
        read_lock(text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("cut", range(0, len(WHOLE) - 1, 37))
def test_no_prefix_of_a_lock_passes_for_a_whole_one(cut: int) -> None:
    with pytest.raises(AuditError):
        read_lock(WHOLE[:cut])


def test_line_ends_of_another_system_are_read() -> None:
    assert read_lock(WHOLE.replace("\n", "\r\n")).groups == read_lock(WHOLE).groups


def test_sizes_that_the_data_decides_are_no_part_of_a_lock() -> None:
    def rows(count: int) -> dict[str, Any]:
        many, one = (count,), (count, 1)
        chain = [
            {
                **kernel(["aten.nonzero.default"], [], ["i"], 10),
                "reads": [tensor("x")],
                "writes": [tensor("i", shape=one)],
            },
            kernel(["aten.index.Tensor"], ["x"], [], 11),
            kernel(["aten.mul.Tensor"], ["y"], ["z"], 12, shape=many),
        ]
        chain[1] |= {"reads": [tensor("x"), tensor("i", "int64", many)], "writes": [tensor("y", shape=many)]}
        after = [
            kernel(["aten.nonzero"], ["x"], [], 10, graph="0/0/forward", call=0),
            kernel(["aten.clone.default"], ["out"], ["copy"], 12, shape=many),
        ]
        return document(chain, after)

    first, second = lock_of(rows(77)), lock_of(rows(91))
    assert format_lock(first) == format_lock(second)
    assert read_lock(format_lock(first)).groups == first.groups
    assert "aten.mul | f32[?] -> f32[?] | 1 launch | ? bytes" in format_lock(first)
    assert "aten.clone | f32[?] -> f32[?]" in format_lock(first)
    masked = kernel(["aten.index.Tensor"], ["x"], ["y"], 10, shape=(5,))
    masked["reads"].append(tensor("m", "bool", (9,)))
    assert lock_of(document([masked])).groups[0].writes == ("f32[?]",)


def test_an_audit_that_cannot_be_judged_makes_no_lock() -> None:
    doc = document()
    doc["notes"] = [
        {"kind": "warm-cache", "text": "the log is from a warm cache", "blocks": True, "remedy": "run again"}
    ]
    with pytest.raises(AuditError, match="warm cache"):
        write_lock(doc)


@pytest.mark.parametrize(
    ("code", "same"),
    [("  x = y  # why", "x = y"), ('x = "#"', 'x = "#"'), ("x = f(  # open", "x = f("), ("x   =  1", "x = 1")],
)
def test_comments_and_blanks_are_no_part_of_a_line(code: str, same: str) -> None:
    assert bare(code) == same


def test_code_after_a_graph_break_belongs_to_its_function() -> None:
    place = {"file": "/a/block.py", "line": 12, "function": "torch_dynamo_resume_in_forward_at_11"}
    groups = groups_of(document([kernel(["aten.gelu"], ["x"], ["y"], place)]))
    assert groups[0].refs[0].function == "forward"


def test_types_are_values() -> None:
    lock = lock_of(document())
    assert isinstance(lock, Lock)
    assert all(isinstance(g, Group) for g in lock.groups)
    assert lock.passes == ("eager", "compiled")

"""Variants: what the command line says, what the child applies, and what is told about the differences."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from guard_documents import MEGABYTE, document, graph, kernel
from test_diff import SPLIT

from fusionaudit.errors import AuditError
from fusionaudit.sweep import Variant, parse_variants, sweep

FP32, BF16 = Variant(dtype="fp32"), Variant(dtype="bf16")


def test_the_product_of_all_axes() -> None:
    variants = parse_variants(dtype="fp32,bf16", dynamic="on,off", options=["epilogue_fusion=true,false"])
    assert len(variants) == 8
    assert variants[0] == Variant(dtype="fp32", dynamic=True, options=(("epilogue_fusion", True),))
    assert variants[0].label == "dtype=fp32 dynamic=on epilogue_fusion=true"


def test_one_variant_is_compared_with_the_script_as_it_is() -> None:
    assert parse_variants(options=["max_fusion_size=4"]) == (Variant(), Variant(options=(("max_fusion_size", 4),)))


@pytest.mark.parametrize(
    "given",
    [{}, {"dtype": "fp12"}, {"dynamic": "maybe"}, {"options": ["x"]}, {"options": ["x="]}, {"dtype": "fp32,,bf16"}],
)
def test_wrong_axes_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(AuditError):
        parse_variants(**given)


def half(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def change(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**t, "dtype": "bfloat16"} for t in tensors]

    return [
        {**k, "reads": change(k["reads"]), "writes": change(k["writes"]), "global_bytes": k["global_bytes"] // 2}
        for k in kernels
    ]


def test_the_same_groups_in_another_dtype_are_no_finding() -> None:
    documents = {FP32: document(), BF16: document(compiled_kernels=half(document()["passes"][1]["kernels"]))}
    result = sweep(documents.__getitem__, [FP32, BF16])
    assert result.findings == ()
    assert result.exit_code == 0
    assert result.lines[1] == "dtype=bf16: 2 launches, 14.7 MB; the same groups"


def test_a_variant_that_splits_a_kernel_is_named() -> None:
    split = document(compiled_kernels=half(SPLIT), graphs=[graph(locations=((10, 11), (12,), (13,)))])
    result = sweep({FP32: document(), BF16: split}.__getitem__, [FP32, BF16])
    (finding,) = result.findings
    assert finding.rule == "FA117"
    assert finding.severity == "warning"
    assert finding.message.startswith("with dtype=bf16 other kernels than with dtype=fp32: compiled forward")
    assert "is now 2" in finding.message
    assert finding.location is not None
    assert finding.location.line == 10


def test_dynamic_sizes_alone_are_no_finding() -> None:
    on, off = Variant(dynamic=True), Variant(dynamic=False)
    result = sweep({off: document(), on: document(graphs=[graph(symbols={"s0": 1024})])}.__getitem__, [off, on])
    assert result.findings == ()


def test_a_variant_that_fails_is_named_and_the_others_go_on() -> None:
    def run(variant: Variant) -> dict[str, Any]:
        if variant == BF16:
            raise AuditError("the script failed")
        return document()

    result = sweep(run, [FP32, BF16, Variant(dtype="fp16")])
    assert result.exit_code == 0
    assert result.lines[1] == "dtype=bf16: cannot judge: the script failed"
    assert sweep(run, [BF16, FP32]).exit_code == 2
    assert sweep(run, [FP32, BF16]).exit_code == 2


def test_more_bytes_are_in_the_evidence() -> None:
    more = [*document()["passes"][1]["kernels"], kernel(["aten.sin"], ["d"], ["e"], 13, graph="0/0/forward", call=1)]
    (finding,) = sweep({FP32: document(), BF16: document(compiled_kernels=more)}.__getitem__, [FP32, BF16]).findings
    assert finding.evidence["pass_bytes"] == (7 * MEGABYTE, 9 * MEGABYTE)


APPLY = """
import torch
from fusionaudit.capture.variant import apply
apply({variant})
{code}
"""


def applied(variant: dict[str, Any], code: str) -> str:
    program = APPLY.format(variant=variant, code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_variant_is_applied_in_the_child() -> None:
    code = """
import torch._inductor.config as c
from fusionaudit.errors import AuditError
print(torch.ones(1).dtype, c.epilogue_fusion)
for wrong in ({"dtype": "int8"}, {"options": {"nonsense": 1}}, {"options": {"epilogue_fusion": "abc"}}):
    try:
        apply(wrong)
    except AuditError as error:
        print(error)
"""
    told = applied({"dtype": "bf16", "options": {"epilogue_fusion": False}}, code)
    assert "torch.bfloat16 False" in told
    for part in ("known: fp32, fp16, bf16, fp64", "no option 'nonsense'", "wants a bool"):
        assert part in told


def test_dynamic_holds_for_every_compile() -> None:
    code = """
plain = torch.compile
apply({"dynamic": True})
shapes = []
def backend(gm, inputs):
    shapes.append([type(i).__name__ for i in inputs])
    return gm
@torch.compile(backend=backend, dynamic=False)
def f(x):
    return x + 1
f(torch.zeros(3, 4))
torch.compile = plain
apply({"dynamic": False})
@torch.compile(backend=backend, dynamic=True)
def g(x):
    return x + 1
g(torch.zeros(3, 4))
print(["SymInt" in s for s in shapes])
"""
    assert applied({}, code) == "[True, False]"


def test_a_variant_whose_compiled_pass_launches_nothing_is_not_called_the_same() -> None:
    for empty in (document(compiled_kernels=[]), {**document(), "passes": document()["passes"][:1]}):
        result = sweep({FP32: document(), BF16: empty}.__getitem__, [FP32, BF16])
        assert result.lines[1] == "dtype=bf16: cannot judge: its compiled pass launches nothing"
        assert result.exit_code == 2

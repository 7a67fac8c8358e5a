"""The console report: what it says, that it fits, and that nothing in a capture can steer the terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from report_documents import HOSTILE, block, hostile, many, sum_abs, with_clean
from rich.console import Console

from fusionaudit.report import wording as w
from fusionaudit.report.console import render_console
from fusionaudit.report.rows import Column, columns, comparison, fold, timeline


def printed(document: dict[str, Any], width: int = 80, *, terminal: bool = False, verbose: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    render_console(document, console, verbose=verbose)
    return out.getvalue()


def test_verdict_comes_first_and_figures_follow() -> None:
    text = printed(sum_abs(), 120)
    first = text.splitlines()[0]
    assert "FA102 at sum_abs.py:12" in first
    assert "2.15 GB, 503 us (modelled)" in first
    assert re.search(r"global bytes \(modelled\)\s+3\.22 GB\s+1\.07 GB\s+0\.33x", text)
    assert re.search(r"GPU time \(measured\)\s+754 us\s+264 us\s+0\.35x", text)
    for words in ("why: Eager runs", "do: Compile loss", "verified: confirmed", "12 | return x.abs().sum()"):
        assert words in text
    assert re.search(r"0 vectorized_elementwise_kernel.*489 us\s+2\.15 GB\s+32\s+0$", text, re.M)
    assert "abs  f32[268435456] -> f32[268435456]  sum_abs.py:12" in text
    assert "- match-rate: 100% of 4 kernels" in text


@pytest.mark.parametrize("width", [40, 59, 60, 80, 100, 120])
@pytest.mark.parametrize(
    "document", [sum_abs(), block(), hostile(), with_clean()], ids=["sum_abs", "block", "hostile", "clean"]
)
def test_lines_fit(document: dict[str, Any], width: int) -> None:
    lines = printed(document, width, verbose=True).splitlines()
    assert max(map(len, lines)) <= width


def test_wide_consoles_show_more_of_a_name() -> None:
    narrow, wide = printed(sum_abs(), 80), printed(sum_abs(), 120)
    assert "vectorized_elementwi..<AbsFunctor<float>>" in narrow
    assert "vectorized_elementwise_kernel<AbsFunctor<float>>" in wide


def test_piped_output_and_no_color_have_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in printed(sum_abs())
    assert "\x1b[" in printed(sum_abs(), terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = re.findall(r"\x1b\[([\d;]*)m", printed(sum_abs(), terminal=True))
    codes = {int(c) for sequence in coloured for c in sequence.split(";") if c}
    assert not codes & {*range(30, 50), *range(90, 108)}


def test_hostile_names_stay_text() -> None:
    text = printed(hostile(), 120, verbose=True)
    assert not set(text) & {"\x1b", "\u202e", "\x07"}
    assert "<script>window.pwned=1</script>" in text
    assert "[bold]" in printed({**sum_abs(), "notes": [{"kind": "[bold]", "text": "[red]x", "blocks": False}]})


def test_deviceless_names_no_measured_time() -> None:
    text = printed(sum_abs("deviceless"))
    assert "measured" not in text
    assert "GPU time (predicted)" in text
    assert "bandwidth" not in text


def test_blocking_note_is_the_verdict() -> None:
    document = sum_abs()
    document["notes"].append({"kind": "warm-cache", "text": "the log shows a cache hit", "blocks": True, "remedy": "x"})
    assert printed(document).startswith("? Cannot judge: the log shows a cache hit; to do: x\n")


def test_no_kernels_and_no_findings() -> None:
    document = sum_abs()
    assert printed({**document, "findings": []}).startswith("+ No missed fusion found")
    assert printed({**document, "findings": document["findings"][1:]}).startswith("i No missed fusion worth acting on")
    assert "Nothing to judge" in printed({**document, "findings": [], "passes": []})


def test_a_refuted_finding_claims_no_saving() -> None:
    text = printed(block())
    assert "withdrawn: a run on the GPU showed no gain" in text
    assert "40.0 us (modelled)" not in text


def test_loops_are_folded() -> None:
    text = printed(block())
    assert "loop of 2 kernels x12:" in text
    assert re.search(r"\| vectorized_elem.* x12\s+37\.2 us", text)


def kernel(name: str) -> dict[str, Any]:
    return {"name": name, "ops": [], "shapes": [], "dtypes": [], "graph": None, "location": None}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("abc", [("a", 1), ("b", 1), ("c", 1)]),
        ("aab", [("a", 2), ("b", 1)]),
        ("xababab", [("x", 1), ("ab", 3)]),
        ("abab", [("a", 1), ("b", 1), ("a", 1), ("b", 1)]),
        ("aabaabaab", [("aab", 3)]),
        ("abcabcabcd", [("abc", 3), ("d", 1)]),
    ],
)
def test_fold(names: str, expected: list[tuple[str, int]]) -> None:
    folds = fold([kernel(n) for n in names])
    got = [("".join(k["name"] for k in f.kernels), f.times) for f in folds]
    assert got == expected
    assert "".join(m["name"] for f in folds for m in f.members) == names


def test_passes_with_different_bases_share_no_row() -> None:
    document = sum_abs()
    document["passes"][1]["per_step"]["time_basis"] = "predicted"
    rows = [r for r in comparison(document) if r.key == "gpu_time_ns"]
    assert [(r.basis, r.texts) for r in rows] == [("measured", ("754 us", "-")), ("predicted", ("-", "264 us"))]
    assert all(r.ratio is None for r in rows)


def test_clean_passes_give_gaps_and_no_columns_of_their_own() -> None:
    rows = {r.key: r.texts for r in comparison(with_clean())}
    assert rows["idle_ns"] == ("6.00 us", "4.00 us")
    assert rows["step_ns"] == ("760 us", "275 us")
    assert "Kernels, clean" not in printed(with_clean())
    eager, _ = columns(with_clean())
    line = timeline(eager)
    assert line.spans == ((0, 489_000), (495_000, 265_000))
    assert not line.slowed
    alone = timeline(Column(name="eager", p=eager.p, clean=None))
    assert alone.spans[1][0] == 1_999_000
    assert alone.slowed


def test_large_steps_are_cut_and_say_so() -> None:
    text = printed(many(2000, 500))
    assert len(text.splitlines()) < 250
    assert "more kernels; --verbose shows them" in text
    assert ".. 10 more; --verbose shows them" in text


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghijk", 8, "abc..ijk"), ("abcdef", 3, "abc"), ("a\x1bb", 9, "a\\x1bb")],
)
def test_shorten(text: str, width: int, expected: str) -> None:
    assert w.shorten(text, width) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0, "0 B"), (4, "4 B"), (8192, "8.19 kB"), (999_999, "1.00 MB"), (3 * 2**30, "3.22 GB"),
     (2**31, "2.15 GB"), (123_456_789, "123 MB"), (99_960, "100 kB"), (9_996, "10.0 kB")],
)  # fmt: skip
def test_format_bytes(value: int | None, expected: str) -> None:
    assert w.format_bytes(value) == expected


LAMBDA = "::[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)]"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("triton_red_fused_0", "triton_red_fused_0"),
        ("[CUDA memset]", "[CUDA memset]"),
        ("(x)", "(x)"),
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::AbsFunctor<float>, "
            "std::array<char *, (unsigned long)2>>(int, T2, T3)",
            "vectorized_elementwise_kernel<AbsFunctor<float>>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor<float>, "
            "std::array<char*, 2ul> >(int, at::native::AbsFunctor<float>, std::array<char*, 2ul>)",
            "vectorized_elementwise_kernel<AbsFunctor<float> >",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<(int)8, at::native::GeluCUDAKernelImpl("
            f"at::TensorIteratorBase &, at::native::GeluType){LAMBDA}, std::array<char *, "
            "(unsigned long)2>>(int, T2, T3)",
            "vectorized_elementwise_kernel<GeluCUDAKernelImpl>",
        ),
        (
            "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
            "float, at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)::[lambda("
            "float, float) (instance 1)]>, unsigned int, float, (int)4, (int)4>>(T3)",
            "reduce_kernel<ReduceOp<float, func_wrapper_t<float, sum_functor<float>>, uint, float>>",
        ),
        (
            "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
            "at::native::<unnamed>::TernaryOpScalarFunctor<c10::BFloat16, (int)2, (int)2, (int)0>, "
            "at::native::LerpFunctor<float>, float>(T1, T2, T3...)",
            "multi_tensor_apply_kernel<TernaryOpScalarFunctor<BFloat16>, LerpFunctor<float>, float>",
        ),
        (
            "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::BFloat16, float, (bool)0>(int, T2)",
            "vectorized_layer_norm_kernel<BFloat16, float>",
        ),
    ],
)
def test_kernel_labels(name: str, label: str) -> None:
    assert w.kernel_label(name) == label


def test_op_lists_and_hidden_characters() -> None:
    assert w.op_list(["aten.abs.default", "aten.abs.default", "aten.sum"]) == "abs x2, sum"
    assert w.plain(HOSTILE).endswith("\\x1b[31m\\u202e")
    assert w.tensor_text([8, 4], "unknown") == "?[8,4]"


def test_a_time_that_is_not_known_is_said() -> None:
    """Without a GPU a matmul has no time, so the step has none: the row stays, and a line says why."""
    document = sum_abs("deviceless")
    for p in document["passes"]:
        p["kernels"][0].update(duration_ns=None, category="matmul")
        p["per_step"]["gpu_time_ns"] = None
    text = printed(document)
    assert re.search(r"^GPU time +- +-$", text, re.M)
    assert "GPU time not known: kernels without a time (eager 1 matmul; compiled 1" in text
    assert "GPU time not known" not in printed(sum_abs("deviceless"))
    document["passes"][1]["per_step"]["gpu_time_ns"] = 1000
    assert re.search(r"^GPU time \(predicted\) +- +1\.00 us$", printed(document), re.M)


def test_many_suppressed_findings_are_counted_and_shown_on_demand() -> None:
    notes = [{"kind": "suppressed", "text": f"FA107 at a.py:{i} (compiled): no", "blocks": False} for i in range(14)]
    document = {**sum_abs(), "notes": notes}
    text = printed(document)
    assert "14 suppressed" in text.replace("\n  ", " ")
    assert text.count("FA107 at a.py") == 10
    assert "- suppressed: 4 more; --verbose shows them" in text
    assert printed(document, verbose=True).count("FA107 at a.py") == 14


def test_a_narrow_terminal_has_every_figure_and_kernels_by_name() -> None:
    text = printed(sum_abs(), 40)
    assert re.search(r"global bytes \(modelled\): eager 3\.22 GB,\s+compiled 1\.07 GB \(0\.33x\)", text)
    assert re.search(r"^   0 vect\S+\s+489 us\s+2\.15 GB$", text, re.M)

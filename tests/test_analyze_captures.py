"""What must hold on the recorded H200 captures, through the same command that a user gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusionaudit.cli import main
from fusionaudit.report.wording import verdict

CAPTURES = Path(__file__).parent / "data" / "captures"


def analyzed(name: str, log: str | None = None, *, code: int = 0) -> dict[str, Any]:
    found = CAPTURES / name if name.startswith("kineto/") else CAPTURES / f"{name}.sqlite"
    arguments = ["analyze", str(found), "--format", "json"]
    if log is not None:
        arguments += ["--inductor-log", str(CAPTURES / log)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["exit_code"] == code
    return document


def only_pass(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["passes"]
    return dict(found)


def launches(p: dict[str, Any]) -> list[dict[str, Any]]:
    return [k for k in p["kernels"] if k["category"] not in ("memcpy", "memset")]


@pytest.mark.parametrize(
    ("name", "elements", "time_ns"),
    [("nsys2023.4_sum_abs_eager", 1 << 28, 754_000), ("nsys2025.3_sum_abs_eager_n24", 1 << 24, 56_400)],
)
def test_sum_abs_eager(name: str, elements: int, time_ns: int) -> None:
    document = analyzed(name)
    p = only_pass(document)
    assert p["steps"] == 3
    assert p["per_step"]["launches"] == 2
    # abs reads and writes x, sum reads it: three times x, one scalar, and the 4-byte semaphore that is cleared.
    assert p["per_step"]["global_bytes"] == 3 * 4 * elements + 4 + 4
    assert p["per_step"]["gpu_time_ns"] == pytest.approx(time_ns, rel=0.01)
    assert p["per_step"]["bandwidth_share"] == pytest.approx(0.88 if elements == 1 << 28 else 0.74, abs=0.02)
    (finding,) = [f for f in document["findings"] if f["rule"] in ("FA101", "FA102")]
    assert finding["rule"] == "FA102"
    assert finding["avoidable_bytes"] == 2 * 4 * elements


@pytest.mark.parametrize(
    ("name", "elements"), [("nsys2023.4_sum_abs_compiled", 1 << 28), ("nsys2025.3_sum_abs_compiled_n24", 1 << 24)]
)
def test_sum_abs_compiled(name: str, elements: int) -> None:
    large = elements == 1 << 28
    document = analyzed(name, "sum_abs_compiled.torch_logs.txt" if large else "../inductor/sum_abs_n24.log.gz")
    p = only_pass(document)
    second_name = "triton_red_fused_abs_sum_1" if large else "triton_per_fused_abs_sum_1"
    assert [k["name"] for k in launches(p)] == ["triton_red_fused_abs_sum_0", second_name]
    assert not [f for f in document["findings"] if f["rule"] in ("FA101", "FA102")]
    first, second = launches(p)
    partials = 8192 if large else 2048
    assert (first["read_bytes"], first["write_bytes"]) == (4 * elements, partials)
    assert (second["read_bytes"], second["write_bytes"]) == (partials, 4)
    assert first["graph"] == second["graph"] == "0/0/inference"
    (split,) = [f for f in document["findings"] if f["rule"] == "FA111"]
    assert split["severity"] == "info"
    assert "split" in split["reason"]
    assert "numel/rnumel mismatch" in json.dumps(split), "Inductor's own words are there"


def test_block_compiled_finds_its_step_and_ties_every_triton_kernel() -> None:
    document = analyzed("nsys2023.4_block_compiled", "block_compiled.torch_logs.txt")
    p = only_pass(document)
    assert p["steps"] == 2
    assert len(launches(p)) == 52, "of 2,832 recorded"
    triton = [k for k in p["kernels"] if k["name"].startswith("triton_")]
    assert len(triton) == 18
    assert all(k["graph"] and k["ops"] for k in triton)
    in_graph = {g: [k["name"] for k in triton if k["graph"] == g] for g in ("0/0/forward", "0/0/backward")}
    assert [len(v) for v in in_graph.values()] == [4, 14]
    # The same name is in both graphs: position and graph tell them apart.
    assert "triton_poi_fused_gelu_view_2" in in_graph["0/0/forward"]
    assert [k["call"] for k in triton if k["graph"] == "0/0/forward"] == [0, 4, 6, 8]


@pytest.mark.parametrize("name", ["nsys2023.4_tiny_graph", "nsys2025.3_tiny_graph"])
def test_replayed_kernels_are_tied_to_their_calls(name: str) -> None:
    p = only_pass(analyzed(name, "tiny_graph.torch_logs.txt"))
    replayed = [k for k in launches(p) if k["replayed"]]
    assert len(replayed) == 61
    assert all(k["graph"] for k in replayed)
    calls = [k["call"] for k in replayed]
    assert calls == sorted(calls)
    assert len(set(calls)) == 41, "20 matmuls (one or two kernels each) and 21 Triton kernels"


def test_replays_of_the_script_s_own_cuda_graph_are_tied_to_the_compiled_graph(tmp_path: Path) -> None:
    """torch.profiler has neither ranges nor nodes for them: the launches of one replay are those of one graph."""
    capture = shutil.copytree(CAPTURES / "kineto" / "user_cuda_graph", tmp_path / "capture")  # analyze writes there
    document = json.loads(CliRunner().invoke(main, ["analyze", str(capture), "--format", "json"]).stdout)
    (p,) = [p for p in document["passes"] if p["name"] == "compiled"]
    assert p["steps"] == 6
    assert [(k["replayed"], bool(k["graph"]), k["call"]) for k in p["kernels"]] == [(True, True, 0), (True, True, 1)]
    # x once, then the partial sums out and in, and one number.
    assert p["per_step"]["global_bytes"] == 4 * (1 << 22) + 2 * 2048 + 4
    # The eager pass's step is a call before the replays.
    assert not any(n["kind"] == "opaque-graph" for n in document["notes"])


def test_a_function_that_is_compiled_at_each_turn_is_part_of_the_step(tmp_path: Path) -> None:
    """Each turn: a replay of f's CUDA graph (its input copied in before), and g, compiled anew for another name."""
    capture = shutil.copytree(CAPTURES / "kineto" / "compiled_anew", tmp_path / "capture")
    document = json.loads(CliRunner().invoke(main, ["analyze", str(capture), "--format", "json"]).stdout)
    (p,) = [p for p in document["passes"] if p["name"] == "compiled"]
    assert p["steps"] == 8
    assert [k["graph"] and k["graph"].split("/")[0] for k in p["kernels"]] == [None, "0", "0", "0", "1"]
    copied, product = p["kernels"][:2]
    assert (copied["ops"], product["ops"]) == (["aten._foreach_copy_.default"], ["aten.mm"])
    assert product["global_bytes"] == 3 * 512 * 512 * 4
    # The sine of a large angle takes 32 bytes of an array; nothing is spilled at 16 registers.
    assert p["kernels"][4]["local_memory_bytes"] == 32
    assert {(f["pass"], f["rule"]) for f in document["findings"] if f["severity"] != "info"} == {("compiled", "FA113")}


def test_a_template_that_unpacks_its_operand_is_slower_than_the_two_apart(tmp_path: Path) -> None:
    """2,167 us on the H200; cuBLAS took 1,361 us in the eager pass, and the int8 weights are 0.2 GB to unpack."""
    capture = shutil.copytree(CAPTURES / "kineto" / "slow_template", tmp_path / "capture")
    document = json.loads(CliRunner().invoke(main, ["analyze", str(capture), "--format", "json"]).stdout)
    (found,) = [f for f in document["findings"] if f["rule"] == "FA303"]
    assert found["severity"] == "warning"
    assert found["location"]["line"] == 11
    assert "matmul (1.36 ms, as in the eager pass)" in found["message"]
    assert found["saving_ns"] == pytest.approx(750_000, rel=0.02)


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.sqlite")), ids=lambda p: p.stem)
def test_match_rate_is_at_least_99_percent(path: Path) -> None:
    log = "tiny_graph.torch_logs.txt" if "graph" in path.stem else None
    p = only_pass(analyzed(path.stem, log, code=2 if "compiled" in path.stem else 0))
    assert p["unmatched_kernels"] <= 0.01 * len(p["kernels"])


@pytest.mark.parametrize(
    ("name", "log", "kind", "words"),
    [
        ("nsys2023.4_sum_abs_compiled", None, "missing-log", "100% of the step"),
        ("nsys2023.4_block_compiled", None, "missing-log", "18% of the step"),
        ("kineto/kineto_sum_abs_compiled.json.gz", None, "missing-log", "100% of the step"),
        ("kineto/kineto_sum_abs_eager.json.gz", None, "no-dataflow", "which op reads what another wrote"),
        ("kineto/kineto_block_eager.json.gz", None, "no-dataflow", "which op reads what another wrote"),
        ("nsys2023.4_sum_abs_compiled", "block_compiled.torch_logs.txt", "log-mismatch", "fits any graph"),
        ("nsys2025.3_sum_abs_compiled_n24", "sum_abs_compiled.torch_logs.txt", "log-mismatch", "does not have triton"),
        ("nsys2023.4_block_eager", "block_compiled.torch_logs.txt", "log-mismatch", "none of the log's graphs ran"),
    ],
)
def test_silence_about_what_is_not_known_is_not_all_fine(name: str, log: str | None, kind: str, words: str) -> None:
    document = analyzed(name, log, code=2)
    (note, *_) = [n for n in document["notes"] if n["kind"] == kind]
    assert note["blocks"]
    assert words in note["text"]
    assert note["remedy"]
    assert verdict(document)[0] == "blocked"


def test_contract_of_the_json() -> None:
    document = analyzed("nsys2023.4_sum_abs_eager")
    assert {"schema_version", "tool", "engine", "target", "passes", "findings", "notes", "exit_code"} <= set(document)
    assert document["schema_version"] == 1
    assert document["engine"] == "import"
    assert document["target"]["sm_count"] == 132
    p = only_pass(document)
    assert {"name", "steps", "per_step", "kernels"} <= set(p)
    assert {"launches", "distinct_kernels", "gpu_time_ns", "global_bytes", "basis"} <= set(p["per_step"])
    for kernel in p["kernels"]:
        assert {
            "name", "ops", "shapes", "dtypes", "duration_ns", "global_bytes", "basis", "registers",
            "local_memory_bytes", "graph", "location",
        } <= set(kernel)  # fmt: skip
    for finding in document["findings"]:
        assert {
            "rule", "pass", "severity", "message", "ops", "kernels", "location", "avoidable_bytes", "saving_ns",
            "basis", "reason", "fingerprint", "verification",
        } <= set(finding)  # fmt: skip


def test_the_same_input_gives_the_same_findings() -> None:
    first, second = (analyzed("nsys2023.4_block_compiled", "block_compiled.torch_logs.txt") for _ in range(2))
    assert [f["fingerprint"] for f in first["findings"]] == [f["fingerprint"] for f in second["findings"]]
    assert first["findings"] == second["findings"]


def test_a_log_of_another_gpu_is_not_judged(tmp_path: Path) -> None:
    """The same kernel names, made for an A100: the capture is an H200's."""
    text = (CAPTURES / "sum_abs_compiled.torch_logs.txt").read_text()
    made = "multi_processor_count=108, cc=80, major=8"
    log = tmp_path / "a100.txt"
    log.write_text(text.replace("multi_processor_count=132, cc=90, major=9", made))
    document = analyzed("nsys2023.4_sum_abs_compiled", str(log), code=2)
    (note,) = [n for n in document["notes"] if n["blocks"]]
    assert "its kernels were made for sm_80 with 108 SMs, and these ran on NVIDIA H200 (sm_90" in note["text"]
    assert note["remedy"]

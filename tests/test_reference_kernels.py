"""Every reference kernel compiles for every architecture without a GPU; registers and spills are a golden file."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from fusionaudit.errors import AuditError
from fusionaudit.reference_kernels.registry import REFERENCES
from fusionaudit.verify import compile as compiling
from fusionaudit.verify.compile import CompileError, compile_kernels, inline_headers, parse_resources, read_source

GOLDEN = Path(__file__).parent / "data" / "reference" / "registers.json"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCES = sorted({r.source for r in REFERENCES.values()})

needs_nvrtc = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("cuda.core") is None or find_spec("nvidia") is None,
    reason="cuda-core and nvidia-cuda-nvrtc are not installed (extra gpu)",
)


def names_of(source: str) -> list[str]:
    return sorted({k for r in REFERENCES.values() if r.source == source for k in r.kernels})


def test_every_kernel_file_belongs_to_a_reference():
    files = {p.name for p in compiling.KERNELS.glob("*.cu")}
    assert files == set(SOURCES)
    assert all(names_of(s) for s in SOURCES)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_registers_and_spills(source, arch, tmp_path, update_golden):
    compiled = compile_kernels(read_source(source), names_of(source), arch, cache=tmp_path)
    found = {n: [r.registers, r.spill_bytes] for n, r in sorted(compiled.resources.items())}
    assert sorted(found) == names_of(source)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if update_golden:
        golden.setdefault("kernels", {}).setdefault(source, {})[arch] = found
        golden["nvrtc"] = compiling.nvrtc_version()
        golden["kernels"] = {k: dict(sorted(v.items())) for k, v in sorted(golden["kernels"].items())}
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
        return
    expected = golden["kernels"][source][arch]
    if golden["nvrtc"] == compiling.nvrtc_version():
        assert found == expected
    for name, (registers, spilled) in found.items():  # another NVRTC may allocate a little differently
        assert abs(registers - expected[name][0]) <= 16, name
        assert bool(spilled) == bool(expected[name][1]), name


@needs_nvrtc
def test_only_the_kernel_that_is_meant_to_spill_spills():
    golden = json.loads(GOLDEN.read_text())["kernels"]
    spilling = {n for per_arch in golden.values() for found in per_arch.values() for n, (_, s) in found.items() if s}
    assert spilling == {"centre_columns<float, 64, 1024, 2>"}


@needs_nvrtc
def test_cache_is_used_and_a_corrupt_entry_is_built_again(tmp_path):
    source, name = read_source("gated.cu"), ["swiglu<float, 4, 2, unsigned>"]
    first = compile_kernels(source, name, "sm_90", cache=tmp_path)
    assert not first.from_cache
    second = compile_kernels(source, name, "sm_90", cache=tmp_path)
    assert second.from_cache
    assert (second.cubin, second.symbols, second.resources) == (first.cubin, first.symbols, first.resources)
    (entry,) = tmp_path.iterdir()
    whole = entry.read_bytes()
    for damaged in (whole[:-7], b"", whole[:200] + b"\0" + whole[201:]):
        entry.write_bytes(damaged)
        assert not compile_kernels(source, name, "sm_90", cache=tmp_path).from_cache
        assert compile_kernels(source, name, "sm_90", cache=tmp_path).from_cache
    assert not compile_kernels(source, name, "sm_80", cache=tmp_path).from_cache
    assert not compile_kernels(source + "\n", name, "sm_90", cache=tmp_path).from_cache


@needs_nvrtc
def test_a_read_only_cache_costs_only_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert not compile_kernels("template <int N> __global__ void k() {}", ["k<1>"], "sm_90", cache=blocked).from_cache


@needs_nvrtc
def test_compiler_error_is_one_line(tmp_path):
    with pytest.raises(CompileError, match=r"does not compile for sm_90.*undefined") as caught:
        compile_kernels('extern "C" __global__ void k() { undefined(); }', ["k"], "sm_90", cache=tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_cub_headers_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "cccl_include", lambda: None)
    with pytest.raises(AuditError, match=r"CUB headers not found.*nvidia-cuda-cccl"):
        compile_kernels(read_source("sum_abs.cu"), ["sum_abs<float, 512, 4, 4, 1>"], "sm_90", cache=tmp_path)


def test_headers_are_inlined_once():
    text = inline_headers('#include "block_reduce.cuh"\n#include "vector_access.cuh"\n')
    assert text.count("struct bfloat16") == 1
    assert '#include "' not in text


def test_ptxas_report():
    log = """ptxas info    : Compiling entry function '_Z1kv' for 'sm_90'
ptxas info    : Function properties for _Z1kv
ptxas         .     24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 44 bytes smem"""
    (found,) = parse_resources(log).values()
    assert (found.registers, found.spill_bytes, found.stack_bytes, found.shared_bytes) == (32, 36, 24, 44)


@pytest.mark.parametrize("path", sorted(compiling.KERNELS.glob("*.cu*")), ids=lambda p: p.name)
def test_positions_are_64_bit(path):
    """Lengths, rows and positions in kernel parameters are ``index_t`` (64-bit), never int."""
    text = re.sub(r"__launch_bounds__\([^)]*\)", "", path.read_text())
    for parameters in re.findall(r"__global__[^;{]*?\w+\(([^{;]*?)\)\s*\{", text):
        for parameter in re.split(r",(?![^<]*>)", parameters):
            kind = parameter.strip().rsplit(" ", 1)[0]
            assert kind in ("index_t", "float") or "*" in parameter, f"{path.name}: {parameter}"


@needs_nvrtc
def test_generated_chain_above_two_to_the_31_elements_compiles(tmp_path):
    from fusionaudit.tensors import Tensor
    from fusionaudit.trace.schema import Op
    from fusionaudit.verify.reference import make_subject

    for shape in ((2**31 + 1003,), (50000, 50001)):
        x, y = (Tensor.contiguous(shape, "bfloat16", name) for name in "xy")
        b = Tensor.contiguous(shape[-1:], "bfloat16", "b")
        op = Op(id=0, name="aten.mul.Tensor", inputs=(x, b), outputs=(y,), arguments=({"tensor": 0}, {"tensor": 1}))
        kernel = make_subject([op], [0], sm_count=132).kernel
        assert kernel is not None
        assert "unsigned long long" in kernel.source
        compile_kernels(kernel.source, ["chain"], "sm_90", cache=tmp_path)

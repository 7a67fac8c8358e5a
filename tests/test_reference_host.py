"""Reference kernels and generated chains run on CPU threads (g++) and are compared with eager in fp64."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

import pytest
import torch
from host_emulation import HostLaunch
from reference_cases import CHAINS, record

from fusionaudit.inductor.read import parse_log
from fusionaudit.reference_kernels import norm, softmax, transpose_cast
from fusionaudit.reference_kernels.registry import REFERENCES
from fusionaudit.verify.bench import check_reference, generated_bytes
from fusionaudit.verify.chain_source import decompose, generate, offset_of, position_type
from fusionaudit.verify.reference import check_kernel, make_subject

ELEMENTS = {"log_softmax": 50304, "cross_entropy": 32000, "tiny_kernels": 2000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host")


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_kernel_gives_what_eager_gives(name, folder):
    reference, launch = REFERENCES[name], HostLaunch(folder)
    dtype = torch.bfloat16 if torch.bfloat16 in reference.dtypes else reference.dtypes[0]
    inputs = reference.inputs(ELEMENTS.get(name, 9001), dtype, launch.device)
    for version in (None, *reference.variants.values()):
        check = check_reference(reference, launch, inputs, version)
        assert check.ok, check.text


@pytest.mark.parametrize("name", CHAINS)
def test_generated_chain_gives_what_eager_gives(name, folder):
    ops = record(*CHAINS[name]())
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    assert subject.kernel is not None, subject.problem
    subject.kernel = generate(subject.program, sm_count=2, threads=1)
    check, _, _ = check_kernel(subject, HostLaunch(folder), torch.device("cpu"))
    assert check.ok, check.text


@pytest.mark.parametrize("name", ["sum_abs_large", "softmax_by_hand", "row_sums", "outer_softmax", "column_sums"])
def test_generated_chain_with_whole_blocks(name, folder):
    ops = record(*CHAINS[name]())
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    check, _, _ = check_kernel(subject, HostLaunch(folder), torch.device("cpu"))
    assert check.ok, check.text


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim", "path", "kernel"),
    [
        ((9, 1300), -1, "shared", "softmax_shared<float, 64, 4"),
        ((7, 403), -1, "shared", "softmax_shared<float, 64, 1"),
        ((150, 72), 0, None, "softmax_outer<float, 8, 8, 4, {log}, 0>"),
        ((300, 24), 0, None, "softmax_outer<float, 8, 8, 4, {log}, 2>"),
        ((300, 22), 0, None, "softmax_outer<float, 16, 4, 2, {log}, 2>"),
        ((3, 37, 41), 1, None, "softmax_outer<float, 32, 2, 1, {log}, 0>"),
    ],
)
def test_softmax_walks_over_rows_and_columns(shape, dim, path, kernel, log, folder, monkeypatch):
    """More rows than blocks: what leaves and what comes in share their places; parts of columns; infinities and NaN."""
    monkeypatch.setattr(softmax, "SHARED_THREADS", 64)  # of the emulation's threads each costs
    monkeypatch.setattr(softmax, "OUTER_THREADS", 64)
    launch, x = HostLaunch(folder), torch.randn(shape) * 3
    x.select(dim, 5).fill_(float("-inf"))
    rows = x.movedim(dim, -1)
    rows[(2, *[0] * (x.dim() - 2))] = float("-inf")
    rows[(1, *[0] * (x.dim() - 2))][7] = float("nan")
    (y,) = softmax.fused(launch, x, dim, log=log, path=path)
    assert launch.names[-1].startswith(kernel.format(log=str(log).lower()))
    expected = (torch.log_softmax if log else torch.softmax)(x.double(), dim)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("with_mean", [False, True])
def test_norm_backward_with_many_rows_a_block(with_mean, folder):
    launch = HostLaunch(folder)
    dy, x, weight = torch.randn(70, 250), torch.randn(70, 250), torch.randn(250)
    mean = x.mean(-1) if with_mean else None
    rstd = x.var(-1).rsqrt()
    found = norm.backward(launch, dy, x, weight, rstd, mean)
    wide = [t.double() for t in (dy, x, weight, rstd)]
    expected = norm.layer_norm_backward(*wide, mean.double()) if with_mean else norm.rms_norm_backward(*wide)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(136, 80), (64, 64), (70, 66), (33, 129)])
def test_transpose_and_cast_of_any_shape(shape, dtype, folder):
    x = torch.randn(shape)
    (y,) = transpose_cast.fused(HostLaunch(folder), x, dtype)
    assert torch.equal(y.float(), x.t().to(dtype).float())


PLANTED = {
    "dropped tail": ("sum_abs", lambda t: re.sub(r"for \(index_t t = packs \* V[^\n]*\n", "\n", t)),
    "missing barrier": (
        "rms_norm",
        lambda t: t.replace("partial[warp] = value;\n    __syncthreads();", "partial[warp] = value;"),
    ),
    "wrong scale": ("layer_norm", lambda t: t.replace("/ C(cols) + C(eps)", "/ C(cols + 1) + C(eps)")),
    "unwritten elements": ("softmax", lambda t: t.replace("if (column(i) >= cols) continue;", "if (i) continue;")),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_is_caught(error, folder):
    name, change = PLANTED[error]
    reference, seen = REFERENCES[name], []

    def changed(text):
        seen.append(change(text) != text)
        return change(text)

    launch = HostLaunch(folder, changed)
    inputs = reference.inputs(9001, torch.float32, launch.device)
    assert not all(check_reference(reference, launch, inputs).ok for _ in range(5))
    assert any(seen)


@pytest.mark.parametrize("sizes", [(70000, 70001), (3, 2**31, 2), (2**33,), (5, 7, 11)])
def test_positions_above_two_to_the_31(sizes, tmp_path):
    """Coordinates and offsets as written into kernels, computed by a C++ compiler, against Python's integers."""
    count = 1
    for size in sizes:
        count *= size
    strides = [3 * 2**20 + 7 * d for d in range(len(sizes))]
    checks = []
    for index in (0, count // 2, count - 1):
        rest, expected = index, 0
        for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
            expected += rest % size * stride
            rest //= size
        kind = position_type(count)
        lines = " ".join(decompose("i", sizes, "d", kind))
        checks.append(
            f"{{ const {kind} i = ({kind})({index}ll); {lines}"
            f" if ({offset_of(strides, 'd')} != {expected}ll) return 1; }}"
        )
    source = tmp_path / "a.cpp"
    source.write_text("using index_t = long long; int main() {" + "\n".join(checks) + " return 0; }")
    subprocess.run(["g++", "-o", str(tmp_path / "a"), str(source)], check=True)
    assert subprocess.run([str(tmp_path / "a")]).returncode == 0


def test_bytes_of_what_torch_compile_made():
    text = gzip.decompress((Path(__file__).parent / "data" / "inductor" / "sum_abs.log.gz").read_bytes()).decode()
    (graph,) = parse_log(text).graphs
    # x once, 2048 partial sums out and in, one number.
    assert generated_bytes([graph.source]) == 4 * (1 << 28) + 2 * 4 * 2048 + 4
    assert generated_bytes([]) is None

"""The byte model of generated kernels: exact counts, on small kernel bodies and by brute force."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from fusionaudit.inductor.expressions import evaluate, integer
from fusionaudit.inductor.index_space import Region, Space, Value, add, sumset, union
from fusionaudit.inductor.kernel_body import MOST_LINES
from fusionaudit.inductor.kernels import Traffic, kernel_numels, traffic

HEAD = """
@triton_heuristics.{how}(
    size_hints={{'x': 2048}},
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'in_ptr1': '*i64', 'out_ptr0': '*bf16', 'xnumel': 'i32',
        'r0_numel': 'i32'}},
        'device': DeviceProperties(type='cuda', index=0)}},
    inductor_meta={{'kernel_name': 'k', 'mutated_arg_names': []}},
)
@triton.jit
def k(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
"""


def body(text: str, *, how: str = "pointwise", **numels: int) -> dict[str, Traffic]:
    """The traffic of a kernel with that body, by pointer."""
    sizes = "".join(f"    {name} = {value}\n" for name, value in numels.items())
    start = "    xindex = xoffset + tl.arange(0, XBLOCK)[:]\n    xmask = xindex < xnumel\n"
    lines = "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))
    return {t.arg: t for t in traffic("k", HEAD.format(how=how) + sizes + start + lines, {}) or ()}


def test_broadcast_and_rows() -> None:
    seen = body(
        """
x0 = (xindex % 512)
x1 = xindex // 512
tmp0 = tl.load(in_ptr0 + (x0), None)
tl.store(out_ptr0 + (x0 + 1024*x1), tmp0, None)""",
        xnumel=8192,
    )
    assert (seen["in_ptr0"].read, seen["out_ptr0"].write) == (512, 8192)
    assert seen["out_ptr0"].read == 0


def test_full_index_and_scalar() -> None:
    seen = body(
        """
x2 = xindex
tmp0 = tl.load(in_ptr0 + (x2), xmask)
tmp1 = tl.load(in_ptr1 + (0))
tl.store(out_ptr0 + (tl.full([1], 0, tl.int32).broadcast_to([XBLOCK])), tmp0, xmask)""",
        xnumel=100,
    )
    assert (seen["in_ptr0"].read, seen["in_ptr1"].read, seen["out_ptr0"].write) == (100, 1, 1)


def test_mask_of_a_cat_counts_only_its_part() -> None:
    """cat of 3 and 5 columns: each input is loaded where its mask holds."""
    seen = body(
        """
x0 = (xindex % 8)
x1 = xindex // 8
tmp0 = x0
tmp1 = tl.full([1], 0, tl.int64)
tmp2 = tmp0 >= tmp1
tmp3 = tl.full([1], 3, tl.int64)
tmp4 = tmp0 < tmp3
tmp5 = tl.load(in_ptr0 + (3*x1 + (x0)), tmp4 & xmask, other=0.0)
tmp6 = tmp0 >= tmp3
tmp9 = tl.load(in_ptr1 + (5*x1 + ((-3) + x0)), tmp6 & xmask, other=0.0)
tl.store(out_ptr0 + (xindex), tmp5, xmask)""",
        xnumel=80,
    )
    assert (seen["in_ptr0"].read, seen["in_ptr1"].read, seen["out_ptr0"].write) == (30, 50, 80)


def test_gather_counts_rows_touched() -> None:
    """An embedding of 20 tokens, 64 wide: 20 * 64 elements at most, however large the table."""
    seen = body(
        """
x1 = xindex // 64
x0 = (xindex % 64)
tmp0 = tl.load(in_ptr1 + (x1), xmask)
tmp6 = tl.load(in_ptr0 + (x0 + 64*tmp0), xmask)
tl.store(out_ptr0 + (xindex), tmp6, xmask)""",
        xnumel=1280,
    )
    assert (seen["in_ptr1"].read, seen["in_ptr0"].read, seen["in_ptr0"].indirect) == (20, 1280, True)


def test_looped_softmax_reads_its_row_again() -> None:
    text = """
for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
    r0_index = r0_offset + r0_base
    tmp0 = tl.load(in_ptr0 + (r0_index + 4096*xindex), None)
for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
    r0_index = r0_offset + r0_base
    tmp5 = tl.load(in_ptr0 + (r0_index + 4096*xindex), None)
    tl.store(out_ptr0 + (r0_index + 4096*xindex), tmp5, None)"""
    seen = body(text, how="reduction", xnumel=16, r0_numel=4096)
    assert (seen["in_ptr0"].read, seen["in_ptr0"].again) == (65536, 65536)
    assert (seen["out_ptr0"].write, seen["out_ptr0"].again) == (65536, 0)


def test_atomic_counts_both_ways() -> None:
    seen = body(
        """
x0 = (xindex % 8)
tmp0 = tl.load(in_ptr0 + (xindex), None)
tl.atomic_add(out_ptr0 + (x0), tmp0, None, sem='relaxed')""",
        xnumel=4096,
    )
    assert (seen["out_ptr0"].read, seen["out_ptr0"].write) == (8, 8)


def test_windows_that_overlap_count_once() -> None:
    """Two neighbours of each element (2-wide pooling, stride 1): n + 1 elements."""
    seen = body(
        """
tmp0 = tl.load(in_ptr0 + (xindex), None)
tmp1 = tl.load(in_ptr0 + (1 + xindex), None)
tl.store(out_ptr0 + (xindex), tmp0, None)""",
        xnumel=1000,
    )
    assert seen["in_ptr0"].read == 1001


def test_unknown_size_is_none_not_zero() -> None:
    seen = body("tmp0 = tl.load(in_ptr0 + (xindex), xmask)\ntl.store(out_ptr0 + (xindex), tmp0, xmask)")
    assert seen["in_ptr0"].read is None
    assert seen["out_ptr0"].write is None


def test_foreach_branches_have_their_own_sizes() -> None:
    seen = body(
        """
pid = tl.program_id(0)
if pid < num_xblocks_0:
    xnumel = 100
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (xindex), None)
elif pid < num_xblocks_1:
    xnumel = 7
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    tmp1 = tl.load(in_ptr1 + (xindex), None)""",
        how="foreach",
    )
    assert (seen["in_ptr0"].read, seen["in_ptr1"].read) == (100, 7)


def test_numels_follow_the_parameters() -> None:
    source = HEAD.format(how="reduction") + "    xnumel = 8\n    pass\n"
    assert kernel_numels("k", source, {"r0_numel": 3}) == {"x": 8, "r0_": 3}


@pytest.mark.parametrize("seed", range(60))
def test_sumset_is_exact_or_a_bound(seed: int) -> None:
    source = random.Random(seed)
    dims = [(source.choice((1, 2, 3, 4, 8, 16, 60)), source.randint(1, 9)) for _ in range(source.randint(0, 4))]
    true = len(
        {
            sum(c * i for (c, _), i in zip(dims, point, strict=True))
            for point in itertools.product(*(range(n) for _, n in dims))
        }
    )
    count, exact = sumset(dims)
    assert count == true if exact else count >= true


@pytest.mark.parametrize("seed", range(120))
def test_digits_match_enumeration(seed: int) -> None:
    """Random sums of ``x // d % m``, with // and % of them, against all values of x and r."""
    source = random.Random(seed)
    extents = {"x": source.choice((12, 24, 48, 96)), "r0_": source.choice((4, 6, 8))}
    space = Space(dict(extents))
    whole = {b: Value(terms=(((b, 1, None), 1),)) for b in extents}

    def atom() -> tuple[Value, object]:
        base = source.choice(("x", "x", "r0_"))
        divisor, modulus = source.choice((1, 2, 4)), source.choice((None, 2, 3, 4))
        value = space.floordiv(whole[base], divisor)
        value = value if modulus is None else space.modulo(value, modulus)
        return value, lambda p, b=base, d=divisor, m=modulus: p[b] // d if m is None else p[b] // d % m

    total, parts = Value(const=3), [lambda p: 3]
    for _ in range(source.randint(1, 3)):
        value, number = atom()
        factor = source.choice((1, 2, 5, 16))
        total = add(total, value, factor)
        parts.append(lambda p, f=factor, n=number: f * n(p))  # type: ignore[misc]
    if source.random() < 0.5:
        divisor = source.choice((2, 3, 4))
        inner = list(parts)
        total, parts = space.floordiv(total, divisor), [lambda p: sum(n(p) for n in inner) // divisor]
    points = [{"x": x, "r0_": r} for x in range(extents["x"]) for r in range(extents["r0_"])]
    true = len({sum(n(p) for n in parts) for p in points})
    region = space.region(total, {})
    assert region is not None
    if region.exact and not region.indirect:
        assert region.count == true
    assert region.count >= true


def test_union_of_parts() -> None:
    left, right = (Region(offset=o, dims=((1, 4), (16, 3)), count=12) for o in (0, 4))
    assert union([left, right]) == (24, True)
    assert union([left, left]) == (12, True)
    whole = Region(offset=0, dims=((1, 64),), count=64)
    assert union([left, right, whole]) == (64, True)


def test_expressions_are_arithmetic_only() -> None:
    import ast

    def value(text: str) -> object:
        return evaluate(ast.parse(text, mode="eval").body, {"s0": 12})

    assert value("512*s0 // 5 + max(1, s0)") == 512 * 12 // 5 + 12
    assert value("__import__('os').system('true')") is None
    assert value("9**9**9**9") is None
    assert value("s0.__class__") is None
    assert integer(ast.parse("s0 / 5", mode="eval").body, {"s0": 12}) is None


def source_of(lines: list[str]) -> str:
    start = "    xindex = xoffset + tl.arange(0, XBLOCK)[:]\n    xmask = xindex < xnumel\n    xnumel = 1024\n"
    return HEAD.format(how="pointwise") + start + "".join(f"    {line}\n" for line in lines)


LOAD, STORE = "tmp0 = tl.load(in_ptr0 + (xindex), xmask)", "tl.store(out_ptr0 + (xindex), tmp0, xmask)"


def test_a_body_that_nobody_can_follow_is_unknown_and_quick() -> None:
    def moved(*lines: str) -> object:
        return traffic("k", source_of([LOAD, *lines, STORE]), {})

    assert moved(*[f"tmp{i} = tmp0 * {i}" for i in range(1, 2000)]) is not None
    assert moved(*["pass"] * (MOST_LINES + 1)) is None
    assert moved("tmp0 = " + " + ".join(["tmp0"] * 2000)) is None, "too deep to be followed"


def test_a_long_sum_of_digits_takes_no_quadratic_time() -> None:
    digits = [f"y{i} = xindex // {i + 2}" for i in range(1500)]
    total = ["z = y0", *[f"z = z + y{i}" for i in range(1, 1500)]]
    started = time.process_time()
    (read, _) = traffic("k", source_of([*digits, *total, "tmp0 = tl.load(in_ptr0 + (z), xmask)", STORE]), {}) or ()
    assert read.read is None
    assert time.process_time() - started < 2, "seconds; 0.3 where it was written, quadratic: 20"

"""Source lines of the calls of a generated graph."""

from __future__ import annotations

from fusionaudit.findings import Location
from fusionaudit.inductor.graph_text import parse_graph
from fusionaudit.inductor.model import CompiledGraph, GeneratedCall, Node
from fusionaudit.inductor.read import _place_calls
from fusionaudit.tensors import Tensor


def test_a_library_call_has_the_line_of_its_own_node_where_a_kernel_goes_on_with_its_result():
    """The kernel that adds the bias names the convolution as its origin, too; another has a result of the same size."""

    def node(name, at, *inputs, size=4096):
        place = Location(file="/u/net.py", line=at, function="forward")
        op = "aten.convolution.default" if name.startswith("conv") else "placeholder"
        return Node(name=name, op=op, location=place, inputs=inputs, tensor=Tensor.contiguous((size,), "float32", name))

    def made(index, target, reads, write, *, kind="extern", nodes=()):
        read, written = (
            tuple(Tensor.contiguous((n,), "float32", f"b{n}") for n in sizes) for sizes in (reads, [write])
        )
        return GeneratedCall(
            index=index, target=target, kind=kind, aten=("aten.convolution",), nodes=nodes, reads=read,
            writes=written, category="convolution" if kind == "extern" else "pointwise",
        )  # fmt: skip

    nodes = (
        node("x", 1, size=300), node("w", 1, size=27), node("w1", 1, size=9),
        node("convolution", 5, "x", "w"), node("convolution_1", 9, "convolution", "w1"),
    )  # fmt: skip
    calls = (
        made(0, "extern_kernels.convolution", (300, 27), 4096),
        made(1, "triton_poi_fused_convolution_0", (4096,), 4096, kind="triton", nodes=("convolution",)),
        made(2, "extern_kernels.convolution", (4096, 9), 4096),
    )
    graph = CompiledGraph(id="0/0/inference", compile_id="0/0", kind="inference", nodes=nodes, calls=calls, kernels=())
    assert [c.location and c.location.line for c in _place_calls(graph, None)] == [5, 5, 9]


def _mm(index: int, *sizes: tuple[str, tuple[int, ...]]) -> GeneratedCall:
    """A matmul that reads all but the last buffer, and writes that."""
    *reads, write = (Tensor.contiguous(shape, "float32", name) for name, shape in sizes)
    return GeneratedCall(
        index=index, target="extern_kernels.mm", kind="extern", category="matmul", aten=("aten.mm",), nodes=(),
        reads=tuple(reads), writes=(write,),
    )  # fmt: skip


def _lines(text: str, *calls: GeneratedCall) -> list[int | None]:
    nodes = parse_graph(text.split("\n"))
    graph = CompiledGraph(id="0/0/backward", compile_id="0/0", kind="backward", nodes=nodes, calls=calls, kernels=())
    return [c.location and c.location.line for c in _place_calls(graph, None)]


def test_a_call_that_takes_an_operand_twice_has_its_line():
    text = """
    def forward(self, arg0_1: "f32[128, 128][128, 1]cuda:0"):
        # File: /u/net.py:8 in f, code: return torch.cumsum(x @ x, 0) + 1
        mm: "f32[128, 128][128, 1]cuda:0" = torch.ops.aten.mm.default(arg0_1, arg0_1);  arg0_1 = None
"""
    square = (128, 128)
    assert _lines(text, _mm(0, ("arg0_1", square), ("arg0_1", square), ("buf0", square))) == [8]


def test_matmuls_of_a_backward_have_their_lines():
    """What the forward saved has its name there (view_6, sum_1); a gradient of a weight has as many elements as one of
    an input. What comes as a size is no operand."""
    text = """
    def forward(self, s7: "Sym(s7)", primals_4: "f32[64, 256][256, 1]cuda:0", view_6: "f32[256, 64][64, 1]cuda:0", sum_1: "f32[256, 256][256, 1]cuda:0", tangents_1: "f32[256, 64][64, 1]cuda:0"):
        # File: /u/net.py:28 in forward, code: return self.down(h)
        permute_7: "f32[64, 256][1, 64]cuda:0" = torch.ops.aten.permute.default(tangents_1, [1, 0])
        mm_1: "f32[64, 256][256, 1]cuda:0" = torch.ops.aten.mm.default(permute_7, sum_1);  permute_7 = sum_1 = None
        # File: /u/net.py:26 in forward, code: h = self.up(x)
        permute_9: "f32[256, 256][1, 256]cuda:0" = torch.ops.aten.permute.default(sum_1, [1, 0])
        mm_3: "f32[256, 64][64, 1]cuda:0" = torch.ops.aten.mm.default(permute_9, view_6);  permute_9 = view_6 = None
"""  # noqa: E501
    up = _mm(0, ("sum_1", (256, 256)), ("view_6", (256, 64)), ("buf0", (256, 64)))
    down = _mm(1, ("tangents_1", (64, 256)), ("sum_1", (256, 256)), ("buf1", (64, 256)))
    assert _lines(text, up, down) == [26, 28]
    assert _lines(text, down, up) == [28, 26]
    sized = parse_graph((text + '        full: "f32[s7][1]cuda:0" = torch.ops.aten.full.default([s7], 0)').split("\n"))
    assert [n.inputs for n in sized][-2:] == [("permute_9", "view_6"), ()]

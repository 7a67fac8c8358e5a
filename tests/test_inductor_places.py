"""Source lines of the calls of a generated graph."""

from __future__ import annotations

from fusionaudit.findings import Location
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

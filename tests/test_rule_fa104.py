"""FA104: matmul epilogue left as kernels of its own."""

from __future__ import annotations

from dataclasses import replace

from builders import call, compiled, eager, graph, line, op, run, t, warnings

from fusionaudit.rules import fa104

A, W, C = t("a", 8192, 64), t("w", 64, 8192), t("c", 8192, 8192)


def test_a_bias_of_its_own_is_a_warning():
    (found,) = warnings(fa104, eager(op("mm", [A, W], C), op("add", [C, t("b", 8192)], t("d", 8192, 8192))))
    assert "addmm" in found.remedy


def test_an_activation_is_information():
    (found,) = run(fa104, eager(op("mm", [A, W], C), op("relu", [C], t("d", 8192, 8192))))
    assert found.severity == "info"


def test_compiled_epilogue_of_a_library_matmul_is_information():
    g = graph(
        call("extern_kernels.mm", [A, W], [C], kind="extern", kernel="matmul", aten=["mm"]),
        call("triton_poi_0", [C], [t("d", 8192, 8192)], aten=["relu"]),
        outputs=["d"],
    )
    (found,) = run(fa104, compiled(g))
    assert found.severity == "info"
    assert found.avoidable_bytes == 2 * 4 * 8192 * 8192


def layers(count: int, *, again: bool = False):
    """A matmul and an activation for each layer, from one line each; ``again``: something reads the product as well."""
    calls = []
    for i in range(count):
        made, out = t(f"c{i}", 1024, 1024), t(f"d{i}", 1024, 1024)
        calls += [
            call("extern_kernels.mm", [t(f"d{i - 1}", 1024, 1024), W], [made], kind="extern", kernel="matmul",
                 aten=["aten.mm"], at=7),
            call("triton_poi_0", [made], [out], aten=["aten.relu"], at=8),
        ]  # fmt: skip
        if again:
            calls.append(call("triton_red_1", [made], [t(f"n{i}")], aten=["aten.sum"], kernel="reduction"))
    return graph(*calls, outputs=[f"d{count - 1}"])


def test_layers_of_one_line_are_counted_and_added_up():
    (found,) = run(fa104, compiled(layers(4)))
    assert found.evidence["times"] == 4
    assert found.avoidable_bytes == 4 * 2 * (4 << 20)
    assert (
        "a generated kernel (relu) works 4 times a step on what the library's mm (script.py:7) wrote" in found.message
    )
    (twice,) = run(fa104, compiled(layers(4), runs=2))
    assert twice.avoidable_bytes == 2 * found.avoidable_bytes


def test_a_product_that_something_else_reads_is_still_written():
    (found,) = run(fa104, compiled(layers(4, again=True)))
    assert found.avoidable_bytes == 4 * (4 << 20)


def test_buffers_of_another_graph_are_others():
    """Both graphs call their buffers c and d: what one graph's matmul wrote is not what the other's kernel reads."""
    first = graph(call("extern_kernels.mm", [A, W], [C], kind="extern", kernel="matmul", aten=["mm"]), outputs=["c"])
    second = graph(call("triton_poi_0", [C], [t("d", 8192, 8192)], aten=["relu"]), inputs=[C], name="1/0/forward")
    assert not run(fa104, compiled(first, second))


def test_a_kernel_without_a_line_has_that_of_its_kind_or_of_the_matmul():
    g = layers(1)
    bare = replace(g, calls=tuple(replace(c, location=None) if c.kind == "triton" else c for c in g.calls))
    (found,) = run(fa104, compiled(bare))
    assert found.location == line(8)
    (found,) = run(fa104, compiled(replace(bare, kernels=())))
    assert found.location == line(7)


def test_a_graph_without_lines_has_that_of_the_eager_ops():
    """nn.Sequential: every line of the graph is torch's own."""
    g = layers(1)
    nowhere = replace(g, kernels=(), calls=tuple(replace(c, location=None) for c in g.calls))
    once = eager(op("mm", [A, W], C, at=28), op("relu", [t("e", 64)], t("f", 64), at=28))
    (found,) = [f for f in run(fa104, once, compiled(nowhere)) if f.pass_name == "compiled"]
    assert found.location == line(28)
    twice = eager(op("relu", [t("e", 64)], t("f", 64), at=28), op("relu", [t("f", 64)], t("h", 64), at=29))
    (found,) = [f for f in run(fa104, twice, compiled(nowhere)) if f.pass_name == "compiled"]
    assert found.location is None


def test_silent_on_addmm_alone_and_on_unrelated_work():
    assert not run(fa104, eager(op("addmm", [t("b", 8192), A, W], C), op("exp", [t("x", 64)], t("y", 64))))

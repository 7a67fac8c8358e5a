"""FA306: a rounding step that eager makes is gone."""

from __future__ import annotations

from builders import call, compiled, graph, line, run, t

from fusionaudit.inductor.model import Node
from fusionaudit.rules import fa306


def chain(dtype: str):
    nodes = [
        Node(name="mul", op="aten.mul.Tensor", location=line(3), inputs=("x",), tensor=t("", 64, dtype=dtype)),
        Node(name="add", op="aten.add.Tensor", location=line(3), inputs=("mul",), tensor=t("", 64, dtype=dtype)),
    ]
    made = call("triton_poi_0", [t("x", 64, dtype=dtype)], [t("y", 64, dtype=dtype)], nodes=["mul", "add"])
    return graph(made, outputs=["y"], nodes=nodes)


def test_a_product_that_is_not_rounded():
    (found,) = run(fa306, compiled(chain("bfloat16")))
    assert found.severity == "info"
    assert found.evidence["roundings"] == 1


def test_silent_on_float32():
    assert not run(fa306, compiled(chain("float32")))

"""Chains inside torch's own functions: the call is named, not lines that nobody can edit; trifles are no warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import MEGA, compiled, eager, op, program, run, t
from test_capture_recorder import ops, record

from fusionaudit.config import Config, Thresholds
from fusionaudit.findings import Finding, rank
from fusionaudit.rules import above_floor, fa101, fa102, fa103, run_rules
from fusionaudit.trace.schema import Op


def inside(library: str, found: Op) -> Op:
    assert found.location is not None
    return replace(found, location=replace(found.location, library=library))


def clip(*, foreach: bool) -> list[Op]:
    x, n = t("g", 64 * MEGA), t("n")
    body = [op("abs", [x], t("a", 64 * MEGA), at=5), op("sum", [t("a", 64 * MEGA)], n, at=5)]
    if foreach:
        body.append(op("aten._foreach_mul_.Tensor", [x, n], at=5, mutated=[0]))
    return [inside("torch.nn.utils.clip_grad_norm_", o) for o in body]


def test_a_call_that_could_be_better_is_named() -> None:
    (finding,) = run(fa102, eager(*clip(foreach=False)))
    assert finding.severity == "warning"
    assert "in torch.nn.utils.clip_grad_norm_" in finding.message
    assert finding.remedy == "use torch.nn.utils.clip_grad_norm_(..., foreach=True)"


def test_a_call_that_is_as_good_as_it_gets_is_information() -> None:
    (finding,) = run(fa102, eager(*clip(foreach=True)))
    assert finding.severity == "info"
    assert finding.reason == "inside torch.nn.utils.clip_grad_norm_, which takes all tensors at once already"


@pytest.mark.parametrize("rule", [fa101, fa102, fa103])
def test_a_script_that_compiles_itself_is_not_told_to_compile(rule: Any) -> None:
    x = t("x", 4096, 1024)
    body = [
        op("mul", [x, x], t("y", 4096, 1024)),
        op("exp", [t("y", 4096, 1024)], t("z", 4096, 1024)),
        op("sum", [t("z", 4096, 1024)], t("s", 4096, 1)) if rule is not fa101 else op("mm", [x, x], t("m", 4096, 4096)),
        op("div", [t("z", 4096, 1024), t("s", 4096, 1)], t("o", 4096, 1024)) if rule is fa103 else op("mm", [x, x]),
    ]
    found = [f for f in run(rule, eager(*body), compiled(), uses_compile=True) if f.pass_name == "eager"]
    assert found
    assert all(f.severity == "info" and "torch.compile" not in f.remedy for f in found)


def test_less_than_a_kernel_is_no_warning() -> None:
    tiny = Finding(rule="FA111", pass_name="compiled", severity="warning", message="", saving_ns=63)
    assert above_floor(tiny, Config()).severity == "info"
    assert above_floor(replace(tiny, saving_ns=2500), Config()).severity == "warning"
    assert above_floor(replace(tiny, saving_ns=None), Config()).severity == "warning"
    on_the_host = replace(tiny, rule="FA106")
    assert above_floor(on_the_host, Config()).severity == "warning"


def test_the_floor_holds_for_what_rules_find() -> None:
    """Measured: fusing saves a kernel of half a microsecond and the 0.9 us until the next one starts."""
    p = eager(op("abs", [t("x", 128)], t("y", 128)), op("neg", [t("y", 128)], t("z", 128)), engine="nsys")
    quick = replace(p, kernels=tuple(replace(k, duration_ns=500, time_basis="measured") for k in p.kernels))
    config = Config(thresholds=Thresholds(min_saving_ns=2000))
    (finding,) = [f for f in run_rules(program(quick), config) if f.rule == "FA101"]
    assert finding.saving_ns == 1400
    assert finding.severity == "info"


def test_the_recorder_names_torchs_functions_on_parameters(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)

    def step(_: Any) -> None:
        layer(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()

    found = ops(record(tmp_path, step))
    named = {o["location"].get("library") for o in found if o["location"] is not None}
    assert "torch.nn.utils.clip_grad_norm_" in named
    assert {n.rsplit(".", 1)[1] for n in named if n and n.startswith("torch.optim.")} == {"step"}
    forward = [o for o in found if o["name"] == "aten.addmm.default"]
    assert forward
    assert all("library" not in o["location"] for o in forward)


def test_what_leaves_nothing_to_do_comes_last_of_its_severity():
    inside = Finding(rule="FA102", pass_name="eager", severity="info", message="", saving_ns=12_500, avoidable_bytes=80,
                     remedy="nothing to edit here; torch.compile around it can fuse it")  # fmt: skip
    real = Finding(rule="FA104", pass_name="eager", severity="info", message="", saving_ns=4000)
    unknown = Finding(rule="FA107", pass_name="compiled", severity="info", message="")
    warning = replace(inside, severity="warning")
    assert rank([unknown, inside, real, warning]) == [warning, real, unknown, inside]

"""Findings below the floor of one that together are a large part of the step, each line a chain of two ops::

exp -> neg    (x 25 lines)  64 MiB each, beside one large matmul or none
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import MEGA, eager, op, program, t

from fusionaudit.config import Config, Thresholds, parse_config
from fusionaudit.findings import Finding
from fusionaudit.pipeline import audit_program
from fusionaudit.program.model import Pass, Program
from fusionaudit.report.wording import verdict
from fusionaudit.rules import run_rules
from fusionaudit.rules.sums import raise_sums

N = 16 * MEGA


def chains(count: int, rest_ns: int = 0) -> Pass:
    """``count`` chains of one line each, and something else that takes ``rest_ns``."""
    ops = []
    for i in range(count):
        ops += [
            op("exp", [t(f"x{i}", N)], t(f"a{i}", N), at=i + 1),
            op("neg", [t(f"a{i}", N)], t(f"y{i}", N), at=i + 1),
        ]
    if rest_ns:
        ops.append(op("sort", [t("s", N)], t("v", N), t("i", N), at=99))
    p = eager(*ops)
    if not rest_ns:
        return p
    *kernels, last = p.kernels
    return replace(p, kernels=(*kernels, replace(last, duration_ns=rest_ns, time_basis="predicted")))


def judged(p: Program, config: Config | None = None) -> list[Finding]:
    config = config or Config()
    return raise_sums(p, config, run_rules(p, config))


def warnings(found: list[Finding]) -> list[Finding]:
    return [f for f in found if f.severity == "warning"]


def test_many_small_findings_that_halve_the_step_are_warnings_until_less_than_the_floor_is_left() -> None:
    p = program(chains(26))
    assert not warnings(run_rules(p, Config()))
    found = judged(p)
    assert len(found) == 26
    assert len(warnings(found)) == 21  # 1.9 % each: five of them are below 10 %
    reason = warnings(found)[0].reason or ""
    assert "one of 26 findings that together save 50% of the step" in reason
    assert warnings(found)[0].evidence["small_findings"] == 26
    assert {f.fingerprint for f in found} == {f.fingerprint for f in run_rules(p, Config())}
    assert audit_program(p, fail_on="warning").exit_code == 1


def step_of(chain_share: float, count: int) -> Program:
    """``count`` chains whose savings together are about that share of the step."""
    busy = sum(k.duration_ns or 0 for k in chains(count).kernels)
    return program(chains(count, round(busy / 2 / chain_share - busy)))


def test_below_the_floor_of_the_sum_they_stay_information() -> None:
    assert not warnings(judged(step_of(0.09, 25)))
    assert len(warnings(judged(step_of(0.12, 25)))) == 5


def test_the_floor_follows_the_one_of_a_single_finding() -> None:
    p = program(chains(25))
    assert not warnings(judged(p, parse_config({"thresholds": {"min_time_share": 0.5}})))
    assert not warnings(judged(p, Config(select=("FA2",))))


def test_what_is_below_the_absolute_floor_does_not_add_up() -> None:
    p = program(chains(25))
    assert not warnings(judged(p, Config(thresholds=Thresholds(min_saving_ns=10**9))))


def test_what_torch_compile_takes_anyway_does_not_add_up() -> None:
    eager_pass = chains(25)
    compiled = replace(eager_pass, name="compiled", ops=(), kernels=(replace(eager_pass.kernels[0], graph="0/0"),))
    p = program(eager_pass, compiled, uses_compile=True)
    assert not warnings([f for f in judged(p) if f.pass_name == "eager"])


def test_kernels_count_once() -> None:
    p = step_of(0.09, 25)
    found = run_rules(p, Config())
    twice = [*found, *(replace(f, key="again") for f in found)]
    assert not warnings(raise_sums(p, Config(), twice))
    (warned, *rest) = found
    kept = raise_sums(p, Config(), [replace(warned, severity="warning"), *rest])
    assert len(warnings(kept)) == 1


def test_without_times_the_share_of_bytes_counts() -> None:
    p = chains(120)
    p = replace(p, kernels=tuple(replace(k, duration_ns=None, time_basis=None) for k in p.kernels))
    found = judged(Program(engine="deviceless", device=None, passes=(p,)))
    assert "together save 50% of the step" in (warnings(found)[0].reason or "")


def document(p: Program) -> dict[str, Any]:
    return audit_program(p).document


def test_the_headline_says_what_the_remarks_save_together() -> None:
    few = document(step_of(0.09, 25))
    one = few["findings"][0]
    tone, text = verdict(few)
    assert tone == "info"
    assert text.startswith("25 remarks, none worth acting on alone; together they save 3.36 GB, ")
    assert text.endswith(" (predicted) per step, 9% of it")
    alone = {**few, "findings": [one]}
    assert verdict(alone)[1] == "No missed fusion worth acting on; 1 remark"
    double = {**few, "findings": [*few["findings"], *few["findings"]]}
    assert verdict(double)[1].endswith(text.split("together they save")[1])
    idle = {**few, "findings": [{**f, "remedy": "nothing to do"} for f in few["findings"]]}
    assert verdict(idle)[1] == "No missed fusion worth acting on; 25 remarks"


def test_findings_that_are_left_out_do_not_count() -> None:
    p = step_of(0.3, 25)
    assert warnings(judged(p))
    assert not warnings(raise_sums(p, Config(), run_rules(p, Config())[:4]))

"""Kernels that draw random numbers: the draws are known, so results are checked exactly."""

from __future__ import annotations

import pytest
import torch
from host_emulation import HostLaunch
from reference_cases import CHAINS, record, rows

from fusionaudit.errors import AuditError
from fusionaudit.tensors import Tensor
from fusionaudit.trace.schema import Op
from fusionaudit.verify import candidates, reference
from fusionaudit.verify.candidates import make_versions
from fusionaudit.verify.chain import FIRST_SEED
from fusionaudit.verify.check import alike
from fusionaudit.verify.draws import uniforms, with_given_draws
from fusionaudit.verify.op_words import chance
from fusionaudit.verify.reference import check_kernel, make_subject
from fusionaudit.verify.replay import build_replay, draw_buffers

CPU = torch.device("cpu")


def subject_of(name: str):
    ops = record(*CHAINS[name]())
    return make_subject(ops, [op.id for op in ops], sm_count=2)


def test_draws_are_uniform_and_independent():
    u = uniforms(200_000, FIRST_SEED, CPU).double()
    assert 0 <= float(u.min()) < 1e-4
    assert 0.9999 < float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.003)
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.01)
    assert abs(float(torch.corrcoef(torch.stack((u[:-1], u[1:])))[0, 1])) < 0.01
    other = uniforms(200_000, FIRST_SEED + 1, CPU).double()
    assert abs(float(torch.corrcoef(torch.stack((u, other)))[0, 1])) < 0.01


@pytest.mark.parametrize(
    ("error", "change"),
    {
        "another draw": lambda t: t.replace(f"draws<{FIRST_SEED}u>", "draws<7u>"),
        "one counter on": lambda t: t.replace("return draws{base + offset};", "return draws{base + offset + 4};"),
        "another chance": lambda t: t.replace("float(0.7)", "float(0.69)"),
        "what is kept is dropped": lambda t: t.replace("= f_lt(", "= f_ge("),
    }.items(),
)
def test_a_planted_error_is_caught(error, change, tmp_path):
    changed = []

    def rewrite(text: str) -> str:
        changed.append(change(text) != text)
        return change(text)

    check, _, _ = check_kernel(subject_of("dropout"), HostLaunch(tmp_path, rewrite), CPU)
    assert changed == [True]
    assert not check.ok


def test_verdict_on_a_chain_that_draws(monkeypatch, tmp_path):
    """The kernel is checked with the numbers that it draws; the versions that are timed draw for themselves."""
    offered = {}

    def versions(ops, outputs, replay, buffers, exact, *, length, random):
        offered.update(random=random, exact=exact, names=[n.name for n in replay.module.graph.nodes])
        return candidates.Versions()

    times = {s: {"eager": summary(900), "reference": summary(300)} for s in ("cold", "warm")}
    monkeypatch.setattr(reference, "make_versions", versions)
    monkeypatch.setattr(reference, "time_versions", lambda *_: times)
    ops = record(*CHAINS["softmax_and_dropout"]())
    found = reference.verify_ops(ops, [op.id for op in ops], HostLaunch(tmp_path))
    assert (found.verdict, found.reference, found.saving_ns) == ("confirmed", "rows in registers", 600)
    assert found.max_error < 1e-5
    assert offered["random"]
    assert offered["exact"] is None
    assert any("bernoulli" in name or "dropout" in name for name in offered["names"])


def summary(ns: int):
    from fusionaudit.verify.timing import summary as of

    return of([ns] * 20)


def test_other_versions_are_compared_by_their_moments(monkeypatch):
    monkeypatch.setattr(candidates, "capture_graph", lambda run: (run, None))
    ops = record(lambda x: torch.nn.functional.dropout(x, 0.5, training=True) + 1, rows(200, 100))
    subject = make_subject(ops, [op.id for op in ops], sm_count=2)
    replay = build_replay(subject.ops, subject.outputs, CPU, random=True)
    buffers = draw_buffers(replay.inputs, CPU)

    def offered(change):
        def compiled(replay, options=None):
            def module(*tensors):
                return [change(t) for t in replay.module(*tensors)]

            return candidates.Replay(
                module=module, inputs=replay.inputs, outputs=replay.outputs, mutated=replay.mutated
            )

        monkeypatch.setattr(candidates, "compiled", compiled)
        return make_versions(subject.ops, subject.outputs, replay, buffers, None, random=True)

    assert "compile" in offered(lambda t: t).runs
    found = offered(lambda t: t * 1.1)
    assert "compile" not in found.runs
    assert "mean or root mean square off by" in found.missing["compile"]
    assert not alike([torch.zeros(3)], [torch.zeros(4)]).ok


def test_given_draws_take_the_place_of_the_ops():
    x, y, m = (Tensor.contiguous((40,), d, s) for s, d in (("x", "float32"), ("y", "float32"), ("m", "bool")))
    first, name = {"tensor": 0}, "aten.native_dropout.default"
    drop = Op(id=1, name=name, inputs=(x,), outputs=(y, m), arguments=(first, 0.1, True))
    assert chance(drop) == 0.9
    (op,), drawn = with_given_draws([drop], CPU)
    assert (op.name, op.arguments[2]) == ("aten.native_dropout_backward.default", 1 / 0.9)
    assert torch.equal(drawn["m"], uniforms(40, FIRST_SEED, CPU) < torch.tensor(0.9))
    for arguments in ((first, 0.1, False), (first, 1.0, True)):
        with pytest.raises(AuditError, match="draws nothing"):
            with_given_draws([Op(id=1, name=name, inputs=(x,), outputs=(y, m), arguments=arguments)], CPU)

"""FA204: host sync or copy inside the step."""

from __future__ import annotations

from builders import eager, line, op, run, t, warnings

from fusionaudit.program.model import HostSync
from fusionaudit.rules import fa204

WORK = op("exp", [t("x", 1024)], t("y", 1024))


def read(at: int) -> HostSync:
    return HostSync(name="aten._local_scalar_dense.default", location=line(at), bytes=4)


def test_reads_of_two_lines():
    found = warnings(fa204, eager(WORK, syncs=[read(8), read(9), read(9)]))
    assert {(f.location.line, f.evidence["syncs"]) for f in found if f.location is not None} == {(8, 1), (9, 2)}


def test_one_read_a_step_is_information():
    (found,) = run(fa204, eager(WORK, syncs=[read(8)]))
    assert found.severity == "info"


def test_said_once_for_both_passes():
    found = run(fa204, eager(WORK, syncs=[read(8), read(8)]), eager(WORK, name="compiled", syncs=[read(8), read(8)]))
    assert [f.pass_name for f in found] == ["eager"]


def test_silent_without_syncs():
    assert not run(fa204, eager(WORK))


def test_a_copy_and_its_synchronisation_are_one_wait():
    pair = [HostSync(name=n, location=line(8)) for n in ("cudaMemcpyAsync", "cudaStreamSynchronize")]
    (found,) = run(fa204, eager(WORK, engine="nsys", syncs=pair))
    assert found.severity == "info"
    assert found.evidence["syncs"] == 1


def test_two_ops_that_read_on_one_line_are_two_waits():
    """``tgt[pos, labels[pos]] = 1.0`` looks for the places of a mask twice."""
    names = ("aten.index.Tensor", "aten.index_put_.default")
    pair = [HostSync(name=n, location=line(8)) for n in names]
    (found,) = warnings(fa204, eager(WORK, syncs=pair))
    assert found.evidence["syncs"] == 2
    assert "2 in the step" in found.message


def test_information_where_the_compiled_script_does_not_wait():
    found = run(fa204, eager(WORK, syncs=[read(8), read(8)]), eager(WORK, name="compiled"), uses_compile=True)
    assert [f.severity for f in found] == ["info"]


def test_it_says_what_the_script_wrote():
    (found,) = run(fa204, eager(WORK, syncs=[HostSync(name="aten._to_copy.default", location=line(8), bytes=4)]))
    assert "a copy to the host: .cpu(), .tolist() or .numpy()" in found.message
    (found,) = run(fa204, eager(WORK, syncs=[read(8)]))
    assert ".item()" in found.message
    (found,) = run(fa204, eager(WORK, syncs=[HostSync(name="torch.cuda.synchronize", location=line(8))]))
    assert "torch.cuda.synchronize" in found.message

"""Local memory of loaded Triton kernels, for the kineto engine."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from builders import call as made
from builders import compiled, graph, t

from fusionaudit.capture.loaded_kernels import loaded_kernels, write_loaded_kernels
from fusionaudit.program.local_memory import with_local_memory


class Tuner:
    """What is read of Inductor's CachingAutotuner."""

    def __init__(self, name, *figures):
        self.inductor_meta = {"kernel_name": name}
        self.launchers = [SimpleNamespace(n_regs=r, n_spills=s) for r, s in figures]


def spread(registers, local=None):
    one = graph(made("triton_poi_fused_add_0", [t("a", 64)], [t("b", 64)]), outputs=["b"])
    return compiled(one, registers=registers, local_memory_bytes=local)


def test_words_become_bytes_and_what_has_no_figures_is_left_out():
    found = loaded_kernels([Tuner("a", (255, 18), (64, 0)), Tuner("b", (None, None)), Tuner(None, (8, 0))])
    assert found == {"a": [{"registers": 255, "local_bytes": 72}, {"registers": 64, "local_bytes": 0}]}


def test_the_file_holds_what_the_process_has_loaded(tmp_path, monkeypatch):
    module = SimpleNamespace(CachingAutotuner=Tuner)
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", module)
    kept = Tuner("triton_red_fused_sum_0", (40, 2))
    write_loaded_kernels(tmp_path / "resources.json")
    data = json.loads((tmp_path / "resources.json").read_text())
    assert data == {"kernels": {kept.inductor_meta["kernel_name"]: [{"registers": 40, "local_bytes": 8}]}}


def test_no_file_without_inductor(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", SimpleNamespace())
    write_loaded_kernels(tmp_path / "resources.json")
    assert not (tmp_path / "resources.json").exists()


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([(255, 64), (32, 0)], 64),
        ([(32, 0)], None),  # another configuration ran
        ([(255, 64), (255, 0)], None),  # two kernels of one name
    ],
)
def test_a_kernel_takes_the_figure_of_its_registers(figures, expected):
    resources = {"kernels": {"triton_poi_fused_add_0": [{"registers": r, "local_bytes": b} for r, b in figures]}}
    told = with_local_memory(spread(255), resources)
    assert told.kernels[0].local_memory_bytes == expected
    assert ["register spills of 1 Triton kernel" in n.text for n in told.notes] == [True] * (expected is None)


def test_what_the_trace_tells_stays():
    resources = {"kernels": {"triton_poi_fused_add_0": [{"registers": 255, "local_bytes": 64}]}}
    (kernel,) = with_local_memory(spread(255, local=16), resources).kernels
    assert kernel.local_memory_bytes == 16


def test_a_damaged_file_tells_nothing():
    told = with_local_memory(spread(255), {"kernels": {"triton_poi_fused_add_0": 3}})
    assert told.kernels[0].local_memory_bytes is None
    assert len(told.notes) == 1

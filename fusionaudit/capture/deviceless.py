"""The engine without a GPU: a script runs on the CPU while Inductor lowers its graphs for a named target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from fusionaudit.capture.gpu_tensors import GpuTensors
from fusionaudit.capture.no_arithmetic import NeedsValue, WithoutValues
from fusionaudit.capture.patches import Patches
from fusionaudit.device import Device


class DevicelessSession:
    """Everything that one pass of a deviceless audit needs around the run of the user's script.

    Enter it before the recorder's own mode: the redirect must lie under it. ``pass_name`` is ``eager`` (compiled code
    is run eagerly) or ``compiled`` (graphs are lowered; ``folder`` gets torch_logs.txt and resources.json). With
    ``shapes_only`` nothing is computed: where the script needs a value the recording ends, ``on_stop`` is told, and
    NeedsValue ends the script. ``resources=False`` leaves the kernels uncompiled. All patches are undone on exit.
    AuditError from the constructor or ``__enter__``: torch too old, Triton missing, a private name moved.
    """

    def __init__(
        self, *, device: Device, folder: Path, pass_name: str, shapes_only: bool = False, recorder: Any = None,
        resources: bool = True, on_stop: Callable[[NeedsValue], None] | None = None,
    ) -> None:  # fmt: skip
        from fusionaudit.capture.stand_in import require_torch

        require_torch()
        self.device = device
        self.tensors = GpuTensors()
        self.lowering: Any = None
        self._folder = Path(folder)
        self._pass_name = pass_name
        self._without_values = WithoutValues(self._stopped) if shapes_only else None
        self._on_stop = on_stop
        self._recorder = recorder
        self._resources = resources
        self._patches = Patches()

    def __enter__(self) -> DevicelessSession:
        try:
            self._enter()
        except BaseException:
            self._patches.undo()
            raise
        return self

    def _enter(self) -> None:
        from fusionaudit.capture.attention import choose_attention
        from fusionaudit.capture.cuda_api import redirect_api
        from fusionaudit.capture.cuda_composites import cuda_composites
        from fusionaudit.capture.eager_autocast import cuda_autocast
        from fusionaudit.capture.factories import allocate_on_cpu
        from fusionaudit.capture.lowering import Lowering
        from fusionaudit.capture.nested import refuse_nested
        from fusionaudit.capture.read_by_host import read_by_host
        from fusionaudit.capture.redirect import redirect_tensors
        from fusionaudit.capture.spawned import explain_spawned
        from fusionaudit.capture.stand_in import stand_in
        from fusionaudit.capture.user_triton import intercept_triton

        patches, recorder = self._patches, self._recorder
        stand_in(patches, self.device)
        redirect_api(
            patches, on_sync=self._sync, on_opaque=lambda name: self._opaque(name, ()),
            total_memory=self.device.memory_bytes or 80 * 2**30,
        )  # fmt: skip
        allocate_on_cpu(patches, self.tensors)
        redirect_tensors(patches, self.tensors, self._without_values)
        read_by_host(patches, self.tensors, self._sync)
        choose_attention(patches, self.device, self.tensors)
        cuda_composites(patches, self.tensors)
        cuda_autocast(patches, self.tensors)
        refuse_nested(patches)
        explain_spawned(patches)
        intercept_triton(patches, lambda name, tensors: self._opaque(f"triton.{name}", tensors))
        if recorder is not None:
            patches.put(recorder, "device_of", self.tensors.device_of)
            self.tensors.on_first = self._first_on_gpu
        if self._pass_name in ("eager", "clean_eager"):
            torch.compiler.set_stance("force_eager")
            patches.on_undo(lambda: torch.compiler.set_stance("default"))
        else:
            self._log(patches)
            self.lowering = Lowering(self.tensors, self._graph_called, without_values=self._without_values)
            self.lowering.install(patches)
        if recorder is not None:
            patches.put(recorder, "lower_mode", self._mode)
        patches.enter(self._mode())

    def _mode(self) -> Any:
        """The redirect's mode for one thread."""
        from fusionaudit.capture.redirect import RedirectMode

        return RedirectMode(self.tensors, without_values=self._without_values)

    def _log(self, patches: Patches) -> None:
        from fusionaudit.capture.logs import ArtifactLog

        log = ArtifactLog(self._folder / "torch_logs.txt")
        patches.on_undo(log.close)

    # -- what the recorder is told -----------------------------------------------------------------------------------

    def _sync(self, name: str) -> None:
        if self._recorder is not None:
            self._recorder.sync(name)

    def _first_on_gpu(self) -> None:
        """The script names a GPU from here on: what it did before was the host's."""
        self._recorder.lines.write({"kind": "gpu"})

    def _graph_called(self, name: str, symbols: dict[str, int], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if self._recorder is not None:
            self._recorder.graph_call(
                name, symbols=symbols, inputs=[t for t in inputs if isinstance(t, torch.Tensor)],
                outputs=[t for t in outputs if isinstance(t, torch.Tensor)],
            )  # fmt: skip

    def _opaque(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        if self._recorder is not None and (self.lowering is None or not self.lowering.running):
            self._recorder.opaque(name, tensors)

    def _stopped(self, stop: NeedsValue) -> None:
        if self._recorder is not None:
            self._recorder.stop(stop.asked, stop.location)
        if self._on_stop is not None:
            self._on_stop(stop)

    # -- the end -----------------------------------------------------------------------------------------------------

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.write_resources()
        finally:
            self._patches.undo()

    def write_resources(self) -> None:
        """Compile the kernels and write what the compiler says of them: once, while the patches are in place."""
        if self.lowering is None or not self._resources:
            return
        self._resources = False
        from torch.utils._python_dispatch import _disable_current_modes

        from fusionaudit.capture.ptxas import resources

        with _disable_current_modes():
            graphs = {g.id: resources(g.source, self.device) for g in self.lowering.lowered}
        path = self._folder / "resources.json"
        notes = [{"kind": "unmeasured", "text": text} for text in self.lowering.unmeasured.notes]
        path.write_text(json.dumps({"graphs": graphs, "notes": notes}, indent=1) + "\n")

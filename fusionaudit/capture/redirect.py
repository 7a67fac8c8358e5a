"""What a script says about the GPU is carried out on CPU tensors that stand for GPU tensors.

Two levels. A dispatch mode sees each aten op that asks for a CUDA device (``torch.zeros(3, device="cuda")``,
``x.to("cuda")``), makes it on the CPU and remembers which storages stand for the GPU's; Dynamo does not look into
dispatch modes, so it traces the script's own CUDA literals. A few ``torch.Tensor`` attributes answer for the
stand-ins (``x.device``, ``x.is_cuda``) or must not copy twice (``.cuda()``, ``.to``).
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusionaudit.capture.attention import cpu_equivalents
from fusionaudit.capture.calls import tensors_of
from fusionaudit.capture.formulas import asked_by_formula
from fusionaudit.capture.gpu_tensors import CUDA, GpuTensors, real_device, storage_key
from fusionaudit.capture.no_arithmetic import WithoutValues, run_without_kernel
from fusionaudit.capture.patches import Patches

CPU = torch.device("cpu")
_moving = threading.local()
"""``to_host`` is true on a thread while the script itself moves a tensor from the GPU to the host."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_INFRA = tuple(torch._C._TorchDispatchModeKey.__members__.values())  # type: ignore[attr-defined]


def tracing() -> bool:
    """True while Dynamo, AOTAutograd or a fake mode handles ops on this thread: then nothing may be redirected."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _INFRA)  # type: ignore[attr-defined]


class RedirectMode(TorchDispatchMode):
    """Runs what asks for CUDA on the CPU, and tells :class:`GpuTensors` where each result belongs.

    Must lie under the recorder's mode (be entered before it), so that results are placed when the recorder looks.
    """

    supports_higher_order_operators = True

    def __init__(self, tensors: GpuTensors, *, without_values: WithoutValues | None) -> None:
        super().__init__()
        self._tensors = tensors
        self._without_values = without_values
        self._equivalents = cpu_equivalents()
        self._last_on_gpu = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile works under this mode (torch 2.10 and newer)."""
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Older torch skips compilation under any mode that is not its own."""
        return not hasattr(TorchDispatchMode, "ignore_compile_internals")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if tracing():
            return func(*args, **kwargs)
        inputs = tensors_of((args, kwargs))
        if any(type(t) not in _PLAIN for t in inputs):
            return func(*args, **kwargs)
        wanted, args, kwargs = self._host_arguments(args, kwargs, bool(inputs))
        if inputs:
            self._last_on_gpu = any(self._tensors.holds(t) for t in inputs)
        elif wanted is False and self._tensors.tracking and self._last_on_gpu and asked_by_formula():
            wanted = True  # zeros for a gradient, on the stand-in's device
        if self._without_values is None:
            result = self._compute(func, args, kwargs)
        else:
            on_host = not self._for_gpu(inputs, wanted)
            result = self._without_values.run(self._compute, func, args, kwargs, on_host=on_host)
        self._place(inputs, result, wanted)
        if func is torch.ops.aten._pack_padded_sequence.default:
            # How many sequences each time step has: the host's, wherever the sequences are.
            self._tensors.place(result[1], on_gpu=False)
        return result

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._equivalents.get(func, func)(*args, **kwargs)
        except NotImplementedError:
            # No CPU kernel (a CUDA-only op, a custom extension): its result has the right shape and no values.
            return run_without_kernel(func, args, kwargs)

    def _for_gpu(self, inputs: list[torch.Tensor], wanted: bool | None) -> bool:
        """Whether the op's work is the GPU's: what stays on the host has values also without arithmetic."""
        if wanted:
            return True
        if inputs:
            return any(self._tensors.holds(t) for t in inputs)
        return not self._tensors.tracking

    def _host_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], has_inputs: bool
    ) -> tuple[bool | None, tuple[Any, ...], dict[str, Any]]:
        """Arguments with every device made the CPU; whether a GPU was asked for (``None``: no device named)."""
        wanted: bool | None = None
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.device) and value.type in ("cuda", "cpu"):
                wanted = value.type == "cuda"
        if wanted is False and has_inputs and not getattr(_moving, "to_host", False):
            # Autograd and C++ name the device that the stand-in really is on (type_as, a cast's backward, zeros_like,
            # a change of memory format): the result is where its inputs are.
            wanted = None
        if wanted:
            self._tensors.first_placed()
            args = tuple(CPU if isinstance(v, torch.device) else v for v in args)
            kwargs = {k: CPU if isinstance(v, torch.device) else v for k, v in kwargs.items()}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return wanted, args, kwargs

    def _place(self, inputs: list[torch.Tensor], result: Any, wanted: bool | None) -> None:
        tensors = self._tensors
        outputs = tensors_of(result)
        if not outputs:
            return
        known = {storage_key(t) for t in inputs}
        fresh = [t for t in outputs if storage_key(t) not in known]
        if not fresh:
            return
        if not tensors.tracking:
            # Factories and casts name the CPU also where the script names no device: that decides nothing yet. Results
            # of host tensors stay there; an optimizer's step counter is a CPU scalar in GPU scripts too.
            counter = not inputs and fresh[0].dim() == 0 and _called_by_optimizer()
            if not counter and (not inputs or any(tensors.holds(t) for t in inputs)):
                return
            wanted = False
        elif wanted is None and inputs:
            wanted = any(tensors.holds(t) for t in inputs)
        for tensor in fresh:
            tensors.place(tensor, on_gpu=bool(wanted))


def _called_by_optimizer() -> bool:
    frame, depth = sys._getframe(2), 0
    while frame is not None and depth < 12:
        if "/torch/optim/" in frame.f_code.co_filename:
            return True
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return False


def _refuse_values(patches: Patches, without_values: WithoutValues) -> None:
    """What hands out values without an op."""
    for name in ("tolist", "numpy", "__array__"):

        def give(self: torch.Tensor, *args: Any, _name: str = name, **kwargs: Any) -> Any:
            if type(self) in _PLAIN and not tracing() and without_values.lacking(self):
                without_values.refuse(f".{_name.strip('_')}()")
            return _plain[_name](self, *args, **kwargs)

        patches.set(torch.Tensor, name, give)


_plain = {name: getattr(torch.Tensor, name) for name in ("tolist", "numpy", "__array__")}


def redirect_tensors(patches: Patches, tensors: GpuTensors, without_values: WithoutValues | None) -> None:
    """Make the attributes of ``torch.Tensor`` that know about devices answer for the stand-ins."""
    if without_values is not None:
        _refuse_values(patches, without_values)
    base: Any = torch._C.TensorBase  # type: ignore[attr-defined]
    base_to, base_device, base_is_cuda = base.to, base.device, base.is_cuda

    def stands_for_gpu(tensor: torch.Tensor) -> bool:
        return type(tensor) in _PLAIN and tensors.tracking and tensors.holds(tensor)

    def device(self: torch.Tensor) -> torch.device:
        real: torch.device = base_device.__get__(self)
        return CUDA if real.type == "cpu" and stands_for_gpu(self) else real

    def is_cuda(self: torch.Tensor) -> bool:
        return bool(base_is_cuda.__get__(self)) or stands_for_gpu(self)

    @functools.wraps(base_to)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if type(self) not in _PLAIN or tracing():
            if type(kwargs.get("device")) is int:  # of `.cuda()` in traced code: a number needs an accelerator
                kwargs["device"] = torch.device("cuda", kwargs["device"])
            return base_to(self, *args, **kwargs)  # type: ignore[no-any-return]
        other = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("other")
        if other is not None:
            rest = {k: v for k, v in kwargs.items() if k != "other"}
            return to(self, device(other), other.dtype, *args[1:], **rest)
        rest = dict(kwargs)
        copying = rest.pop("copy", False)
        try:
            target, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **rest)
        except (TypeError, RuntimeError):
            return base_to(self, *args, **kwargs)  # type: ignore[no-any-return]
        if target is None or target.type not in ("cuda", "cpu") or real_device(self).type != "cpu":
            return base_to(self, *args, **kwargs)  # type: ignore[no-any-return]
        if target.type == "cuda":
            tensors.first_placed()
        moves = stands_for_gpu(self) != (target.type == "cuda")
        if target.type == "cpu" and not tensors.tracking:
            moves = False
        if not moves and not copying and dtype in (None, self.dtype) and memory_format in (None, torch.preserve_format):
            return self
        options: dict[str, Any] = {"dtype": dtype, "non_blocking": non_blocking}
        if memory_format is not None:
            options["memory_format"] = memory_format
        if moves:
            options["device"] = target
        elif not copying:
            return base_to(self, dtype=dtype, non_blocking=non_blocking, memory_format=memory_format)  # type: ignore[no-any-return]
        _moving.to_host = moves and target.type == "cpu"
        try:
            return torch.ops.aten._to_copy.default(self, **options)  # type: ignore[no-any-return]
        finally:
            _moving.to_host = False

    def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
        return self.to("cuda", non_blocking=non_blocking, **kwargs)

    def cpu(self: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return self.to("cpu", **kwargs)

    patches.put(torch.Tensor, "device", property(device))
    patches.put(torch.Tensor, "is_cuda", property(is_cuda))
    patches.put(torch.Tensor, "to", to)
    patches.put(torch.Tensor, "cuda", cuda)
    patches.put(torch.Tensor, "cpu", cpu)
    patches.put(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self)
    patches.put(torch.Tensor, "is_pinned", lambda self, *args, **kwargs: False)
    patches.put(torch.Tensor, "get_device", lambda self: 0 if is_cuda(self) else -1)
    # torch.tensor(2.0, device="cuda") moves its value with dispatch modes off unless this is set.
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    patches.on_undo(lambda: torch._C._set_only_lift_cpu_tensors(before))

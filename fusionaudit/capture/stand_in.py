"""The GPU that is not there: what torch, Inductor and Triton ask of a device is answered for the target.

Nothing of CUDA is initialised. The answers are those that decide what Inductor generates (SM count, compute capability,
registers and threads per SM, memory sizes) and those without which its code would not run (streams, current device).
"""

from __future__ import annotations

import ctypes
import importlib
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fusionaudit.capture.patches import Patches, moved
from fusionaudit.capture.traced_gradients import quiet_gradients
from fusionaudit.device import Device
from fusionaudit.errors import AuditError

_CUDA_SLOT, _PRIVATE_SLOT, _DEVICE_TYPES = 1, 20, 21
"""c10::DeviceType: CUDA, PrivateUse1 and the number of types; fixed by torch's serialization format."""
_NO_DEVICE = "fusionaudit_none"
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
"""c10::impl::device_guard_impl_registry, exported by libc10 since 1.0 (C10_API)."""


def require_torch() -> None:
    """AuditError where torch is too old or Triton is missing: the engine cannot work there at all."""
    version = tuple(int("".join(filter(str.isdigit, p)) or 0) for p in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):  # the first with a device guard written in Python (_no_op_guard)
        raise AuditError(
            f"deviceless needs torch 2.10 or newer, this is {torch.__version__}",
            remedy="upgrade torch; with a GPU, --engine nsys and --engine kineto work with torch 2.9 too",
        )
    try:
        importlib.import_module("triton")
    except ImportError:
        raise AuditError("deviceless needs triton, which is not installed", remedy="pip install triton") from None


def properties(device: Device) -> types.SimpleNamespace:
    """The target as ``torch.cuda.get_device_properties`` would describe it; missing figures get an H100's."""
    major, minor = device.compute_capability or (9, 0)
    return types.SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        multi_processor_count=device.sm_count or 132,
        warp_size=device.warp_size,
        regs_per_multiprocessor=device.registers_per_sm or 65536,
        max_threads_per_multi_processor=device.threads_per_sm or 2048,
        max_threads_per_block=1024,
        total_memory=device.memory_bytes or 80 * 2**30,
        L2_cache_size=device.l2_bytes or 50 * 2**20,
        shared_memory_per_block=device.shared_bytes_per_block or 49152,
        shared_memory_per_block_optin=device.shared_bytes_per_block_optin or 232448,
        shared_memory_per_multiprocessor=device.shared_bytes_per_sm or 233472,
        gcnArchName=device.arch or "" if device.vendor == "amd" else "",
        is_integrated=0,
        is_multi_gpu_board=0,
        clock_rate=1_980_000,
        memory_clock_rate=2_619_000,
        memory_bus_width=5120,
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        uuid="00000000-0000-0000-0000-000000000000",
    )


def triton_target(device: Device) -> Any:
    """Triton's name for the target: ``GPUTarget("cuda", 90, 32)`` or ``GPUTarget("hip", "gfx942", 64)``."""
    from triton.backends.compiler import GPUTarget

    if device.vendor == "amd":
        return GPUTarget("hip", device.arch or "gfx942", device.warp_size)
    major, minor = device.compute_capability or (9, 0)
    return GPUTarget("cuda", major * 10 + minor, device.warp_size)


class _Driver:
    """Triton's active driver: knows the target and has no device."""

    def __init__(self, device: Device) -> None:
        self._target = triton_target(device)
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda index=0: {
                "max_shared_mem": device.shared_bytes_per_block_optin or 232448,
                "multiprocessor_count": device.sm_count or 132,
                "max_num_regs": device.registers_per_sm or 65536,
                "warpSize": device.warp_size,
            }
        )

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, index: int) -> None:
        return None

    def get_current_stream(self, index: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda


def stand_in(patches: Patches, device: Device) -> None:
    """Make this process answer for the target until the patches are undone."""
    _no_op_guard(patches)
    quiet_gradients(patches)
    _torch_cuda(patches, device)
    _interfaces(patches, device)
    _triton(patches, device)
    _fake_tensors(patches)


def _no_op_guard(patches: Patches) -> None:
    """Give C++ a device guard for CUDA that does nothing: slicing and autograd of fake CUDA tensors ask for one.

    torch does the same in a CUDA build without a GPU (``_ensureCUDADeviceGuardSet``); a CPU build has none to replace.
    The guard is torch's own for devices written in Python; it always answers device 0.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    accelerators = getattr(torch._C, "_acc", None)
    register = getattr(accelerators, "register_python_privateuseone_device_guard", None)
    if register is None:
        raise moved("torch._C._acc.register_python_privateuseone_device_guard")
    try:
        slots = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(ctypes.CDLL(str(library)), _GUARDS)
    except (OSError, ValueError):
        raise moved("libc10's table of device guards") from None
    before, other = slots[_CUDA_SLOT], slots[_PRIVATE_SLOT]
    if "guard" not in _kept:
        _kept["guard"] = _guard_class(accelerators)()
        register(_kept["guard"])
        _kept["slot"] = slots[_PRIVATE_SLOT]
        slots[_PRIVATE_SLOT] = other
    slots[_CUDA_SLOT] = _kept["slot"]
    patches.on_undo(lambda: slots.__setitem__(_CUDA_SLOT, before))
    # FakeTensorMode would install another guard over this one.
    patches.set(torch._C, "_ensureCUDADeviceGuardSet", lambda: None, optional=True)
    if before:
        _other_accelerator()


_kept: dict[str, Any] = {}
"""The guard and its address: C++ keeps the pointer, so they live as long as the process."""


def _guard_class(accelerators: Any) -> type:
    base: Any = accelerators.DeviceGuard

    class Guard(base):  # type: ignore[misc]
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.CUDA  # type: ignore[attr-defined]

    return Guard


def _other_accelerator() -> None:
    """In a CUDA build, name another accelerator than CUDA, one that is all Python and does nothing.

    The autograd engine of a CUDA build asks the accelerator for its contexts and streams, and CUDA has none here. This
    is torch's own way to register a device in Python; it cannot be taken back in this process.
    """
    registration = importlib.import_module("torch.utils.backend_registration")
    setup = getattr(registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise moved("torch.utils.backend_registration._setup_privateuseone_for_python_backend")
    if not hasattr(torch, _NO_DEVICE):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setup(rename=_NO_DEVICE)
        getattr(torch, _NO_DEVICE).get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # checkpoint asks


def _torch_cuda(patches: Patches, device: Device) -> None:
    facts = properties(device)
    capability = (facts.major, facts.minor)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "get_device_properties": lambda index=None: facts,
        "get_device_capability": lambda index=None: capability,
        "get_device_name": lambda index=None: facts.name,
        "get_arch_list": lambda: [f"sm_{facts.major}{facts.minor}"],
        "is_bf16_supported": lambda including_emulation=True: capability >= (8, 0),
        "is_tf32_supported": lambda: capability >= (8, 0),
        "can_device_access_peer": lambda index, peer: False,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "get_rng_state": lambda index="cuda": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "set_rng_state": lambda state, index="cuda": None,
        "set_rng_state_all": lambda states: None,
        "is_current_stream_capturing": lambda: False,
        "_get_rng_state_offset": lambda index="cuda": 0,
        "_set_rng_state_offset": lambda offset, index="cuda": None,
    }
    for name, answer in answers.items():
        patches.set(torch.cuda, name, answer, optional=name.startswith(("_", "is_")))
    patches.set(torch.cuda.random, "get_rng_state", answers["get_rng_state"])
    patches.set(torch.cuda.random, "set_rng_state", answers["set_rng_state"])
    if device.vendor == "amd":
        patches.set(torch.version, "hip", torch.version.hip or "6.4.0")
    else:
        patches.set(torch.version, "cuda", torch.version.cuda or "13.0")
    for name, value in {
        "_cuda_getCurrentRawStream": 0, "_cuda_getDevice": 0, "_cuda_cudaCachingAllocator_is_enabled": True,
        "_cuda_isCurrentStreamCapturing": False,
    }.items():  # fmt: skip
        patches.put(torch._C, name, lambda *args, _answer=value: _answer)


def _interfaces(patches: Patches, device: Device) -> None:
    from torch._dynamo import device_interface

    facts = properties(device)
    compute: int | str = facts.gcnArchName if device.vendor == "amd" else facts.major * 10 + facts.minor
    cuda = device_interface.CudaInterface
    for owner in (cuda, cuda.Worker):
        patches.set(owner, "get_device_properties", staticmethod(lambda index=None: facts))
        patches.set(owner, "current_device", staticmethod(lambda: 0))
        patches.set(owner, "set_device", staticmethod(lambda index: None))
    patches.set(cuda, "is_available", staticmethod(lambda: True))
    patches.set(cuda, "device_count", staticmethod(lambda: 1))
    patches.set(cuda, "get_compute_capability", staticmethod(lambda index=None: compute))
    patches.set(cuda, "synchronize", staticmethod(lambda index=None: None))
    patches.set(cuda, "get_raw_stream", staticmethod(lambda index=0: 0))
    patches.set(cuda, "exchange_device", staticmethod(lambda index: 0), optional=True)
    patches.set(cuda, "maybe_exchange_device", staticmethod(lambda index: 0), optional=True)
    patches.set(cuda, "is_triton_capable", staticmethod(lambda index=None: True), optional=True)
    patches.set(cuda, "raise_if_triton_unavailable", staticmethod(lambda index=None: None), optional=True)
    # torch registers cuda only where it was built with it.
    if not hasattr(device_interface, "get_interface_for_device"):
        raise moved("torch._dynamo.device_interface.get_interface_for_device")
    try:
        device_interface.get_interface_for_device("cuda")
    except NotImplementedError:
        device_interface.register_interface_for_device("cuda", cuda)
        device_interface.register_interface_for_device("cuda:0", cuda)
    from torch._inductor.runtime import hints

    for cached in (hints.DeviceProperties.create,):
        clear = getattr(cached, "cache_clear", None)
        if clear is not None:
            clear()
            patches.on_undo(clear)


def _triton(patches: Patches, device: Device) -> None:
    import torch._inductor.scheduler as scheduler
    import torch.utils._triton as helpers
    from triton.runtime import driver

    stub = _Driver(device)
    # Triton 3.6 and newer keep it as _active, behind a property; older ones as active.
    slot = "_active" if hasattr(driver, "_active") else "active"
    before = getattr(driver, slot)
    driver.set_active(stub)
    patches.on_undo(lambda: setattr(driver, slot, before))
    patches.set(helpers, "has_triton", lambda *args, **kwargs: True)
    patches.set(scheduler, "has_triton", lambda *args, **kwargs: True)
    patches.set(helpers, "triton_hash_with_backend", lambda *args: "deviceless")
    for name in ("torch._inductor.fx_passes.pad_mm", "torch._inductor.kernel.mm_grouped", "torch._inductor.codecache"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        patches.set(module, "has_triton", lambda *args, **kwargs: True, optional=True)


def _fake_tensors(patches: Patches) -> None:
    from torch._subclasses import fake_tensor

    mode = fake_tensor.FakeTensorMode
    # What torch itself answers where there is no GPU; it would now believe that there is one.
    if isinstance(vars(mode).get("avoid_device_init"), property):
        patches.set(mode, "avoid_device_init", property(lambda self: True))
    else:
        initialise = mode.__init__

        def without_device(self: Any, *args: Any, **kwargs: Any) -> None:
            initialise(self, *args, **kwargs)
            self.avoid_device_init = True

        patches.set(mode, "__init__", without_device)
    patches.set(fake_tensor, "init_gpu_context", lambda *args: None, optional=True)
    patches.set(fake_tensor, "init_cuda_context", lambda *args: None, optional=True)

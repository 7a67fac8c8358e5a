"""Launch compiled kernels on torch tensors, on torch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from fusionaudit.errors import AuditError
from fusionaudit.reference_kernels.reference import Argument
from fusionaudit.verify.compile import GPU_EXTRA, compile_kernels, read_source


class GpuLaunch:
    """A ``Launch`` for the current CUDA device; kernels are compiled for it on first use and kept.

    With ``poison`` every buffer that :meth:`empty` gives is filled with NaN or an odd bit pattern first.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise AuditError("no CUDA device", remedy="verify and bench need an NVIDIA GPU")
        try:
            try:
                import cuda.core as core
                from cuda.core import Device
            except ImportError:
                import cuda.core.experimental as core
                from cuda.core.experimental import Device
        except ImportError as error:
            raise AuditError(f"cuda.core is not installed: {error}", remedy=GPU_EXTRA) from None
        index = torch.cuda.current_device()
        torch.cuda.current_stream().synchronize()  # makes torch's context before cuda.core takes it
        self._core, self._device = core, Device(index)
        self._device.set_current()
        properties = torch.cuda.get_device_properties(index)
        self.arch = f"sm_{properties.major}{properties.minor}"
        self.sm_count = properties.multi_processor_count
        self.l2_bytes: int = properties.L2_cache_size
        self.shared_bytes_per_block: int = getattr(
            properties, "shared_memory_per_block_optin", properties.shared_memory_per_block
        )
        self.poison = False
        self._tickets: torch.Tensor | None = None
        self.device = torch.device("cuda", index)
        self._kernels: dict[tuple[str, str], Any] = {}
        self._shared: dict[tuple[str, str], int] = {}
        self._streams: dict[int, Any] = {}

    def kernel(self, source: str, name: str) -> Any:
        """The loaded kernel; compiled on first use."""
        key = (source, name)
        if key not in self._kernels:
            text = read_source(source) if source.endswith(".cu") and "\n" not in source else source
            compiled = compile_kernels(text, [name], self.arch)
            code = self._core.ObjectCode.from_cubin(compiled.cubin)
            self._kernels[key] = (code, code.get_kernel(compiled.symbols[name]))
        return self._kernels[key][1]

    def _stream(self) -> Any:
        handle = torch.cuda.current_stream().cuda_stream
        if handle not in self._streams:
            self._streams[handle] = self._core.Stream.from_handle(handle)
        return self._streams[handle]

    def _allow_shared(self, key: tuple[str, str], kernel: Any, shared_bytes: int) -> None:
        if shared_bytes <= max(48 * 1024, self._shared.get(key, 0)):
            return
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = kernel.handle if hasattr(kernel, "handle") else kernel._handle
        (status,) = driver.cuKernelSetAttribute(attribute, shared_bytes, handle, self._device.device_id)
        if int(status):
            raise AuditError(f"the device refuses {shared_bytes} bytes of shared memory a block ({status.name})")
        self._shared[key] = shared_bytes

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A buffer on the device."""
        out = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return poisoned(out) if self.poison else out

    def tickets(self, count: int) -> torch.Tensor:
        """int32 zeros, kept from call to call; kernels leave them zeroed."""
        if self._tickets is None or self._tickets.numel() < count:
            self._tickets = torch.zeros(max(count, 1024), dtype=torch.int32, device=self.device)
        return self._tickets

    def __call__(
        self,
        source: str,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Argument],
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Launch; asynchronous, as torch's own kernels."""
        kernel = self.kernel(source, name)
        self._allow_shared((source, name), kernel, shared_bytes)
        config = self._core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
        self._core.launch(self._stream(), config, kernel, *map(marshal, args))


def marshal(value: Argument) -> Any:
    """A kernel argument for cuda.core: pointers and integers are 8 bytes, floats 4."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if value is None:
        return 0
    return ctypes.c_float(value) if isinstance(value, float) else int(value)


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor filled with NaN, or for integers with a value that no reference writes."""
    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        return tensor.fill_(float("nan"))
    tensor.view(torch.uint8).fill_(0x7F)
    return tensor

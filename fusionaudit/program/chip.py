"""What of the target decides whether one kernel finds its data on the chip again."""

from __future__ import annotations

from dataclasses import dataclass

from fusionaudit.device import Device


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Where rows can stay: what a block can hold (its shared memory), what the blocks that run together find again in
    the L2 cache, and how many run together with a row each (one for each SM). An H100's (datasheet) where no target is
    known."""

    block_bytes: int = 227 << 10
    l2_bytes: int = 50 << 20
    sms: int = 132


def chip_of(device: Device | None) -> Chip:
    """The target's."""
    plain = Chip()
    if device is None:
        return plain
    return Chip(
        block_bytes=device.shared_bytes_per_block_optin or plain.block_bytes,
        l2_bytes=device.l2_bytes or plain.l2_bytes,
        sms=device.sm_count or plain.sms,
    )

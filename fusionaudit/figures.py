"""How figures are put into words, in messages and reports alike: one style of units, plurals without brackets."""

from __future__ import annotations

from collections.abc import Sequence

_BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


def figure(value: float) -> str:
    """Three significant digits without an exponent: ``3.22``, ``754``, ``0.0123``."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.995 else f"{value:.3g}"


def _scaled(value: float, units: Sequence[tuple[int, str]], smallest: str) -> str:
    for factor, unit in units:
        if abs(value) >= factor * 0.9995:
            return f"{figure(value / factor)} {unit}"
    return f"{value:.0f} {smallest}"


def scaled_bytes(value: float) -> str:
    """Bytes in decimal units (``3.22 GB``), as datasheets give bandwidth."""
    return _scaled(value, _BYTE_UNITS, "B")


def scaled_ns(value: float) -> str:
    """A time (``754 us``)."""
    return _scaled(value, _TIME_UNITS, "ns")


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def launched(launches: int, others: int) -> str:
    """``48 launches``, ``48 launches and 11 copies and fills``: what runs on the device, in the report's two rows."""
    text = counted(launches, "launch", "launches")
    return text + (f" and {counted(others, 'copy or fill', 'copies and fills')}" if others else "")


def times(count: int) -> str:
    """``once``, ``2 times``."""
    return "once" if count == 1 else f"{count:,} times"

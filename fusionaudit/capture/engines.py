"""Which engine this machine can run, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusionaudit.capture.environment import Facts, device_of, probe
from fusionaudit.capture.nsys import INSTALL, Nsys, find_nsys
from fusionaudit.device import find_target
from fusionaudit.errors import AuditError

DEFAULT_TARGET = "h100"
ASKED_FOR_GPU = ("CUDA", "NVIDIA driver")
"""What torch says in a process that wants a GPU and has none."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The engine, the nsys it uses (if any), the facts of the machine, and the reason in words."""

    engine: str
    nsys: Nsys | None
    facts: Facts
    why: str


def choose_engine(wanted: str, *, nsys_option: str | None, python: str) -> Choice:
    """``auto``: nsys with a GPU and a usable nsys, kineto with a GPU, else deviceless. AuditError where the wanted
    engine cannot be had."""
    nsys = find_nsys(nsys_option) if wanted in ("auto", "nsys") else None
    if wanted == "nsys" and nsys is None:
        raise AuditError("nsys is not installed here", remedy=f"{INSTALL}; or use --engine kineto")
    facts = probe(python)
    no_gpu = facts.reason or "torch sees none"
    if wanted == "kineto" and facts.gpu is None:
        raise AuditError(f"the kineto engine needs a GPU: {no_gpu}", remedy="use --engine deviceless")
    if wanted == "nsys" and facts.gpu is None:
        return Choice(
            engine="nsys", nsys=nsys, facts=facts, why=f"asked for; no GPU ({no_gpu}): no kernel will be seen"
        )
    if wanted == "deviceless" or facts.gpu is None:
        why = "asked for" if wanted == "deviceless" else f"no GPU ({no_gpu})"
        why += "; nothing is measured, launches are predicted"
        return Choice(engine="deviceless", nsys=None, facts=facts, why=why)
    name = facts.gpu["name"]
    if wanted == "kineto":
        return Choice(engine="kineto", nsys=None, facts=facts, why=f"asked for; {name}")
    if nsys is not None:
        return Choice(engine="nsys", nsys=nsys, facts=facts, why=f"nsys {nsys.text}, {name}")
    return Choice(engine="kineto", nsys=None, facts=facts, why=f"{name}; nsys not found")


def no_gpu_hint(engine: str, facts: Facts, error: str) -> str:
    """What to add to a script's last word where it asked for a GPU and there is none (nsys runs CPU scripts, too)."""
    if engine == "deviceless" or facts.gpu is not None or not any(word in error for word in ASKED_FOR_GPU):
        return ""
    return "; no GPU is there: use --engine deviceless, which needs none"


def check_target(engine: str, target: str | None) -> None:
    """AuditError where the target is not known, or the engine that is asked for takes none: nothing has run yet."""
    if target is not None:
        find_target(target)
        if engine in ("nsys", "kineto"):
            raise AuditError("--target is for the deviceless engine", remedy="add --engine deviceless")


def device_for(choice: Choice, target: str | None) -> dict[str, Any] | None:
    """The GPU that the audit is about, for the manifest: the target of a deviceless run, else the machine's own."""
    if choice.engine == "deviceless":
        return find_target(target or DEFAULT_TARGET).to_json()
    if target is not None:
        raise AuditError("--target is for the deviceless engine", remedy="add --engine deviceless")
    return None if choice.facts.gpu is None else device_of(choice.facts.gpu).to_json()

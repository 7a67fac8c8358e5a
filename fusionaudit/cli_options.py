"""Options that several commands share, and what is refused before anything runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fusionaudit.errors import AuditError


class GivenPath(click.Path):
    """A path that is not empty: ``--out ""`` would be the folder one stands in."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty path", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds: ``nan`` is in no range, and nothing waits for ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds) or seconds > _LONGEST_S:
            self.fail(f"{value} is no number of seconds up to {_LONGEST_S:,}", param, ctx)
        return seconds


_LONGEST_S = 1_000_000
"""What threading can wait for on every platform, and eleven days."""
PATH = GivenPath()


def progress(quiet: bool) -> Callable[[str], None] | None:
    return None if quiet else lambda text: click.echo(f"fusionaudit: {text}", err=True)


def capture_options(command: Callable[..., Any], *, engine: str = "auto") -> Callable[..., Any]:
    """The options of every command that runs a script. ``engine``: what ``--engine`` is where it is not given."""
    for option in reversed(
        [
            click.argument("script", required=False, type=click.Path()),
            click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
            click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m."),
            click.option("--out", type=PATH, help="Folder of the capture and its audit.db."),
            click.option(
                "--engine",
                type=click.Choice(["auto", "nsys", "kineto", "deviceless"]),
                default=engine,
                show_default=True,
                help="How to capture; auto takes the first that this machine can do.",
            ),
            click.option(
                "--target", help="GPU that deviceless lowers for: h100 (default), h200, b200, ..., FILE.json."
            ),
            click.option("--passes", help="Comma list of compiled, clean (default: both). Eager always runs first."),
            click.option("--steps", type=click.IntRange(1), help="Use this many steady steps at the end."),
            click.option("--warmup", type=click.IntRange(0), help="Leave out this many steps at the start."),
            click.option("--nsys", metavar="PATH", help="The nsys program."),
            click.option("--timeout", type=Seconds(min=1), help="Stop a pass after this many seconds."),
            click.option("--shapes-only", is_flag=True, help="Deviceless without arithmetic: fake tensors only."),
            click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
        ]
    ):
        command = option(command)
    return command


def _hint_at_order(script: str, arguments: Sequence[str]) -> None:
    """One line where a word behind the script is an option of the command: it went to the script."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    own = {name for param in context.command.params if isinstance(param, click.Option) for name in param.opts}
    words = itertools.takewhile(lambda word: word != "--", arguments)
    found = next((w for word in words if (w := word.partition("=")[0]) in own), None)
    if found is not None:
        command = f"fusionaudit {context.command.name} {found} ... {script}"
        click.echo(f"fusionaudit: {found} went to the script; for fusionaudit it stands before it: {command}", err=True)


def run_options(*, machine_output: bool = False, **given: Any) -> Any:
    """RunOptions from the options above; usage errors are AuditErrors."""
    from fusionaudit.capture.session import RunOptions

    if not given["script"]:
        raise AuditError("no script given", remedy="fusionaudit run SCRIPT.py [ARGS]")
    if given["script"].startswith("-"):
        remedy = "--help lists the options; everything after SCRIPT goes to the script; a file of that name is ./-NAME"
        raise AuditError(f"no such option: {given['script']}", remedy=remedy)
    passes = tuple(p.strip() for p in given["passes"].split(",") if p.strip()) if given["passes"] else ()
    if given["passes"] is not None and not passes:
        raise AuditError("--passes names no pass", remedy="known: eager, compiled, clean")
    unknown = sorted(set(passes) - {"eager", "compiled", "clean"})
    if unknown:
        raise AuditError(f"unknown pass {unknown[0]!r}", remedy="known: eager, compiled, clean")
    script, is_module = given["script"], given["is_module"]
    _hint_at_order(script, given["arguments"])
    return RunOptions(
        script=None if is_module else script,
        module=script if is_module else None,
        arguments=tuple(given["arguments"]),
        out=given["out"],
        engine=given["engine"],
        passes=passes,
        steps=given["steps"],
        warmup=given["warmup"],
        nsys=given["nsys"],
        timeout_s=given["timeout"],
        target=given["target"],
        quiet=given["quiet"],
        shapes_only=given["shapes_only"],
        machine_output=machine_output,
        progress=progress(given["quiet"]),
    )

"""The guard's commands: ``baseline``, ``check``, ``diff``, ``sweep``. Added to the main command by ``cli``."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fusionaudit.cli_errors import answered
from fusionaudit.errors import AuditError
from fusionaudit.files import write_whole

PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}
FORMATS = ("console", "json", "html", "markdown", "sarif", "junit", "github")
DIFF_FORMATS = ("console", "json", "markdown", "html")
SWEEP_FORMATS = ("console", "json", "markdown")


def _config() -> Any:
    from fusionaudit.config import load_config

    return load_config(Path.cwd())


def _echo(lines: Sequence[str], *, err: bool = False) -> None:
    """Lines in the width of the terminal (80 where there is none); what a lock or a script says cannot steer it."""
    from fusionaudit.explain import wrapped

    click.echo(wrapped(lines, max(shutil.get_terminal_size((80, 24)).columns, 40)), err=err)


def _limits(config: Any) -> Any:
    from fusionaudit.limits import limits_from

    return limits_from(config.check)


def _diff_text(before: Any, after: Any, sides: tuple[str, str], fmt: str) -> str:
    """The comparison of two locks in one of the formats."""
    from fusionaudit.diff import compare
    from fusionaudit.diff_formats import diff_json, diff_markdown
    from fusionaudit.explain import diff_lines

    if fmt == "json":
        return json.dumps(diff_json(before, after, sides), indent=1)
    if fmt == "markdown":
        return diff_markdown(before, after, sides)
    if fmt == "html":
        from fusionaudit.report.html import render_diff_html

        return render_diff_html(asdict(compare(before, after)), old=sides[0], new=sides[1])
    return "\n".join(diff_lines(before, after, sides))


def add_guard_commands(
    main: click.Group,
    *,
    capture_options: Callable[..., Callable[..., Any]],
    run_options: Callable[..., Any],
    guarded: Callable[[Callable[..., int | None]], Callable[..., None]],
    render: Callable[..., None],
) -> None:
    """Register the four commands. The helpers are those of ``cli``; they are handed over so that it can import this."""

    gate_options = functools.partial(capture_options, engine="deviceless")

    @main.command(context_settings=PASS_THROUGH)
    @gate_options
    @click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("fusion.lock"), show_default=True)
    @guarded
    def baseline(output: Path, **given: Any) -> int:
        """Write the fusion groups of SCRIPT to a lock file, for `check`. Runs without a GPU unless --engine differs."""
        from fusionaudit import gate

        document = gate.audited(run_options(**given), _config())
        _echo([gate.save_lock(document, output)])
        return 0

    @main.command(context_settings=PASS_THROUGH)
    @gate_options
    @click.option("--lock", type=click.Path(path_type=Path), default=Path("fusion.lock"), show_default=True)
    @click.option("--update", is_flag=True, help="Write the lock anew after the comparison, and exit 0.")
    @click.option("--format", "fmt", type=click.Choice(FORMATS), default="console", show_default=True)
    @guarded
    def check(lock: Path, update: bool, fmt: str, **given: Any) -> int:
        """Run SCRIPT (or take an audit folder) and compare its fusion groups with the lock.

        Runs without a GPU unless --engine differs. Exit 0: the same or better. 1: a regression or other kernels.
        2: cannot judge (other target, torch or Triton, a broken lock, a missing pass).
        """
        from fusionaudit import gate
        from fusionaudit.check import CANNOT_JUDGE, document_with, thresholds

        config = _config()
        limits = _limits(config)
        try:
            if not update:
                gate.load_lock(lock)  # a broken lock is said before minutes are spent on the capture
            document = gate.audited(run_options(machine_output=fmt != "console", **given), config)
            result = gate.check_document(document, lock, limits, update=update)
        except AuditError:
            _echo([CANNOT_JUDGE, thresholds(limits), "groups: none compared"], err=fmt != "console")
            raise
        if fmt == "console":
            _echo(result.lines)
        else:
            _echo(result.lines, err=True)
            render(document_with(document, result), fmt, None, diff=asdict(result.changes) if result.changes else None)
        if given["out"] is not None and (given["out"] / "audit.db").exists():
            from fusionaudit.store import save

            save(document_with(document, result), given["out"] / "audit.db")
        return result.exit_code

    @main.command()
    @click.argument("old", type=click.Path(path_type=Path))
    @click.argument("new", type=click.Path(path_type=Path))
    @click.option("--format", "fmt", type=click.Choice(DIFF_FORMATS), default="console", show_default=True)
    @click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file.")
    @guarded
    def diff(old: Path, new: Path, fmt: str, output: Path | None) -> int:
        """Compare two locks, audits, captures or exports group by group, also of other torch versions or GPUs.

        --format json is one object with a schema_version; with markdown it is a comment for a pull request. Exit 0
        whatever changed (`check` is the gate), 2 where the two ran no pass in common.
        """
        from fusionaudit import gate
        from fusionaudit.explain import diff_lines

        config = _config()
        before, after = gate.lock_from(old, config), gate.lock_from(new, config)
        sides = str(old), str(new)
        if fmt == "console" and output is None:
            _echo(diff_lines(before, after, sides))
        else:
            text = _diff_text(before, after, sides, fmt)
            if output is None:
                click.echo(text)
                answered()
            else:
                write_whole(output, text + "\n")
        if not set(before.passes) & set(after.passes):
            raise AuditError(
                f"the two ran no pass in common ({', '.join(before.passes)}; {', '.join(after.passes)})",
                remedy="capture both with the same passes",
            )
        return 0

    @main.command(context_settings=PASS_THROUGH)
    @capture_options
    @click.option("--dtype", help="Default dtypes, e.g. fp32,bf16 (also fp16, fp64).")
    @click.option("--dynamic", help="on,off: torch.compile with symbolic sizes and without.")
    @click.option("--option", "option", multiple=True, help="An Inductor option and its values: KEY=V1,V2. Repeatable.")
    @click.option("--format", "fmt", type=click.Choice(SWEEP_FORMATS), default="console", show_default=True)
    @guarded
    def sweep(dtype: str | None, dynamic: str | None, option: tuple[str, ...], fmt: str, **given: Any) -> int:
        """Audit SCRIPT in several variants and say which variant changes which fusion group (FA117).

        --format json is one object with a schema_version; with markdown it is a table of the variants. Exit 0 whatever
        differs, 2 where fewer than two variants can be judged.
        """
        import tempfile
        from dataclasses import replace

        from fusionaudit.sweep import parse_variants, sweep_json, sweep_markdown, sweep_script

        variants = parse_variants(dtype=dtype, dynamic=dynamic, options=option)
        options = run_options(machine_output=True, **given)
        with tempfile.TemporaryDirectory(prefix="fusionaudit-sweep-") as place:
            result = sweep_script(replace(options, out=options.out or Path(place)), variants, config=_config())
        if fmt == "console":
            _echo(result.lines)
        else:
            click.echo(json.dumps(sweep_json(result), indent=1) if fmt == "json" else sweep_markdown(result))
        return result.exit_code

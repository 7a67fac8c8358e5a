"""The guard's commands: ``baseline``, ``check``, ``diff``, ``sweep``. Added to the main command by ``cli``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}
FORMATS = ("console", "json", "html", "markdown", "sarif", "junit", "github")


def _config() -> Any:
    from fusionaudit.config import load_config

    return load_config(Path.cwd())


def _limits(config: Any) -> Any:
    from fusionaudit.check import limits_from

    return limits_from(config.check)


def add_guard_commands(
    main: click.Group,
    *,
    capture_options: Callable[[Callable[..., Any]], Callable[..., Any]],
    run_options: Callable[..., Any],
    guarded: Callable[[Callable[..., int | None]], Callable[..., None]],
    render: Callable[..., None],
) -> None:
    """Register the four commands. The helpers are those of ``cli``; they are handed over so that it can import this."""

    @main.command(context_settings=PASS_THROUGH)
    @capture_options
    @click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("fusion.lock"), show_default=True)
    @guarded
    def baseline(output: Path, **given: Any) -> int:
        """Write the fusion groups of SCRIPT to a lock file, for `check`. Deviceless unless --engine says otherwise."""
        from fusionaudit import gate

        document = gate.audited(run_options(**given), _config())
        click.echo(gate.save_lock(document, output))
        return 0

    @main.command(context_settings=PASS_THROUGH)
    @capture_options
    @click.option("--lock", type=click.Path(path_type=Path), default=Path("fusion.lock"), show_default=True)
    @click.option("--update", is_flag=True, help="Write the lock anew after the comparison, and exit 0.")
    @click.option("--format", "fmt", type=click.Choice(FORMATS), default="console", show_default=True)
    @guarded
    def check(lock: Path, update: bool, fmt: str, **given: Any) -> int:
        """Run SCRIPT (or take an audit folder) and compare its fusion groups with the lock.

        Exit 0: the same or better. 1: a regression or other kernels. 2: cannot judge (other target, torch or Triton,
        a broken lock, a missing pass).
        """
        from fusionaudit import gate
        from fusionaudit.check import document_with

        config = _config()
        limits = _limits(config)
        if not update:
            gate.load_lock(lock)  # a broken lock is said before minutes are spent on the capture
        document = gate.audited(run_options(machine_output=fmt != "console", **given), config)
        result = gate.check_document(document, lock, limits, update=update)
        if fmt == "console":
            click.echo("\n".join(result.lines))
        else:
            click.echo("\n".join(result.lines), err=True)
            render(document_with(document, result), fmt, None, diff=asdict(result.changes) if result.changes else None)
        if given["out"] is not None and (given["out"] / "audit.db").exists():
            from fusionaudit.store import save

            save(document_with(document, result), given["out"] / "audit.db")
        return result.exit_code

    @main.command()
    @click.argument("old", type=click.Path(path_type=Path))
    @click.argument("new", type=click.Path(path_type=Path))
    @click.option("--format", "fmt", type=click.Choice(("console", "html")), default="console", show_default=True)
    @click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file.")
    @guarded
    def diff(old: Path, new: Path, fmt: str, output: Path | None) -> int:
        """Compare two locks, audits, captures or exports group by group, also of other torch versions or GPUs."""
        from fusionaudit import gate
        from fusionaudit.explain import diff_lines

        config = _config()
        before, after = gate.lock_from(old, config), gate.lock_from(new, config)
        if fmt == "html":
            from fusionaudit.diff import compare
            from fusionaudit.report.html import render_diff_html

            text = render_diff_html(asdict(compare(before, after)), old=str(old), new=str(new))
        else:
            text = "\n".join(diff_lines(before, after))
        if output is None:
            click.echo(text)
        else:
            output.write_text(text + "\n")
        return 0

    @main.command(context_settings=PASS_THROUGH)
    @capture_options
    @click.option("--dtype", help="Default dtypes, e.g. fp32,bf16 (also fp16, fp64).")
    @click.option("--dynamic", help="on,off: torch.compile with symbolic sizes and without.")
    @click.option("--option", "option", multiple=True, help="An Inductor option and its values: KEY=V1,V2. Repeatable.")
    @guarded
    def sweep(dtype: str | None, dynamic: str | None, option: tuple[str, ...], **given: Any) -> int:
        """Audit SCRIPT in several variants and say which variant changes which fusion group (FA117)."""
        import tempfile
        from dataclasses import replace

        from fusionaudit.sweep import parse_variants, sweep_script

        variants = parse_variants(dtype=dtype, dynamic=dynamic, options=option)
        options = run_options(machine_output=True, **given)
        with tempfile.TemporaryDirectory(prefix="fusionaudit-sweep-") as place:
            result = sweep_script(replace(options, out=options.out or Path(place)), variants, config=_config())
        click.echo("\n".join(result.lines))
        return result.exit_code

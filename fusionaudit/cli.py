"""The command line: parse, call one library function, render. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import io
import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import click

from fusionaudit import __version__
from fusionaudit.cli_errors import Commands, answered, guarded
from fusionaudit.cli_guard import PASS_THROUGH, add_guard_commands
from fusionaudit.cli_options import PATH, capture_options, progress, run_options
from fusionaudit.errors import DAMAGE, AuditError, damaged
from fusionaudit.files import write_whole
from fusionaudit.report.formats import TEXT_FORMATS, rendered

FORMATS = ("console", *TEXT_FORMATS)
SEVERITY = click.Choice(["info", "warning", "error"])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fusionaudit")
def main() -> None:
    """Audit kernel fusion in PyTorch programs.

    Says which kernels run, how many bytes they move through global memory, which chains should be one kernel and
    are not, why, and what fusing them is worth. Works with no GPU too.

    \b
      fusionaudit run train.py           audit a script
      fusionaudit check train.py         fail where fusion got worse than fusion.lock
      fusionaudit doctor                 what this machine can do
    """


def _render(
    document: dict[str, Any],
    fmt: str,
    output: Path | None,
    *,
    verbose: bool = False,
    diff: dict[str, Any] | None = None,
) -> None:
    """Write the document in one format to a file or stdout."""
    if fmt == "console":
        from rich.console import Console

        from fusionaudit.report.console import render_console

        if output is None:
            render_console(document, Console(), verbose=verbose)
            return
        written = io.StringIO()
        render_console(document, Console(file=written, width=120), verbose=verbose)
        write_whole(output, written.getvalue())
        return
    try:
        text = rendered(document, fmt, diff=diff)
        text += "\n" if text and not text.endswith("\n") else ""
    except DAMAGE as problem:
        raise damaged("the audit", problem) from None
    if output is None:
        click.echo(text, nl=False)
        answered()
    else:
        write_whole(output, text)
        click.echo(f"wrote {output}", err=True)


def _config() -> Any:
    from fusionaudit.config import load_config

    return load_config(Path.cwd())


@main.command(context_settings=PASS_THROUGH)
@capture_options
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="console", show_default=True)
@click.option("--html/--no-html", "write_html", default=True, help="Write report.html beside audit.db.")
@click.option("--open", "open_report", is_flag=True, help="Open report.html.")
@click.option(
    "--verify/--no-verify", "verify", default=None, help="Prove findings on the GPU (default: if there is one)."
)
@click.option("--fail-on", type=SEVERITY, help="Exit 1 where a finding has this severity or more.")
@click.option("-v", "--verbose", is_flag=True, help="Every kernel and every finding.")
@guarded
def run(
    fmt: str, write_html: bool, open_report: bool, verify: bool | None, fail_on: Any, verbose: bool, **given: Any
) -> int:
    """Run SCRIPT with its ARGS in passes and report its fusion.

    Options go before SCRIPT; everything after it belongs to the script.
    """
    from fusionaudit import pipeline

    config = _config()
    options = run_options(machine_output=fmt != "console", **given)
    capture = pipeline.capture_script(options)
    result = pipeline.audit(capture, config=config, fail_on=fail_on)
    document = result.document
    if verify or (verify is None and document["engine"] in ("nsys", "kineto")):
        from fusionaudit.store import save
        from fusionaudit.verify.audit import verify_audit

        document = verify_audit(document, progress=options.progress)
        save(document, capture / "audit.db")
    if write_html:
        page = capture / "report.html"
        write_whole(page, rendered(document, "html"))
        if options.progress:
            options.progress(f"report: {page}")
        if open_report:
            click.launch(str(page))
    _render(document, fmt, None, verbose=verbose)
    return result.exit_code


@main.command()
@click.argument("paths", nargs=-1, required=True, type=PATH)
@click.option(
    "--inductor-log",
    type=PATH,
    help="Stderr of the run with TORCH_LOGS=output_code,fusion, or its TORCH_TRACE folder.",
)
@click.option("--out", type=PATH, help="Folder for audit.db.")
@click.option("--steps", type=click.IntRange(1), help="Use this many steady steps at the end.")
@click.option("--warmup", type=click.IntRange(0), help="Leave out this many steps at the start.")
@click.option("--nsys", metavar="PATH", help="The nsys program, to export an .nsys-rep.")
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="console", show_default=True)
@click.option("-o", "--output", type=PATH, help="Write the report to this file.")
@click.option("--fail-on", type=SEVERITY, help="Exit 1 where a finding has this severity or more.")
@click.option("-v", "--verbose", is_flag=True, help="Every kernel and every finding.")
@guarded
def analyze(
    paths: tuple[Path, ...], inductor_log: Path | None, out: Path | None, steps: int | None, warmup: int | None,
    nsys: str | None, fmt: str, output: Path | None, fail_on: Any, verbose: bool,
) -> int:  # fmt: skip
    """Audit what was captured before: a capture folder, or exports of Nsight Systems or torch.profiler.

    PATHS: a capture folder, .sqlite, .nsys-rep, .json or .json.gz. Needs no GPU.
    """
    from fusionaudit import pipeline

    result = pipeline.analyze(
        paths,
        inductor_log=inductor_log,
        out=out,
        config=_config(),
        fail_on=fail_on,
        warmup=warmup,
        steps=steps,
        nsys=nsys,
    )
    _render(result.document, fmt, output, verbose=verbose)
    return result.exit_code


@main.command()
@click.argument("audit", type=PATH)
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="console", show_default=True)
@click.option("-o", "--output", type=PATH, help="Write to this file.")
@click.option("--open", "open_report", is_flag=True, help="Open the written file.")
@click.option("-v", "--verbose", is_flag=True, help="Every kernel and every finding.")
@guarded
def report(audit: Path, fmt: str, output: Path | None, open_report: bool, verbose: bool) -> int:
    """Show an AUDIT (a folder with audit.db, or the file) again, in any format."""
    from fusionaudit.store import load

    document = load(audit)
    if open_report and output is None:
        if fmt != "html":
            raise AuditError("--open needs --format html or -o FILE")
        output = (audit if audit.is_dir() else audit.parent) / "report.html"
    _render(document, fmt, output, verbose=verbose)
    if open_report:
        click.launch(str(output))
    return 0


@main.command()
@click.argument("audit", type=PATH)
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="console", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@guarded
def verify(audit: Path, fmt: str, quiet: bool) -> int:
    """Prove the findings of an AUDIT with real fused kernels on this machine's GPU.

    Each finding becomes confirmed (with the measured saving), refuted or inconclusive; the audit keeps the result.
    """
    from fusionaudit.store import AUDIT_DB, load, save
    from fusionaudit.verify.audit import verify_audit

    document = verify_audit(load(audit), progress=progress(quiet))
    save(document, audit / AUDIT_DB if audit.is_dir() else audit)
    _render(document, fmt, None)
    return 0


@main.command()
@click.argument("patterns", nargs=-1)
@click.option("--n", "sizes", multiple=True, type=click.IntRange(1), help="Elements; repeatable.")
@click.option("--dtype", "dtypes", multiple=True, help="float32, bfloat16, float16, float64; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@guarded
def bench(
    patterns: tuple[str, ...], sizes: tuple[int, ...], dtypes: tuple[str, ...], as_json: bool, quiet: bool
) -> int:
    """Compare naive, hand-fused CUDA, torch.compile, cuda.compute and CUDA graphs on this GPU.

    PATTERNS: sum_abs, scale_bias_relu, softmax, layer_norm, ... (default: all).
    """
    from rich.console import Console

    from fusionaudit.verify.bench import bench as measure
    from fusionaudit.verify.bench_table import render_bench

    result = measure(patterns or None, sizes or None, dtypes or None, progress=progress(quiet))
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        render_bench(result, Console())
    return 0


@main.command()
@click.option("--targets", is_flag=True, help="List the GPUs that the deviceless engine knows.")
@guarded
def doctor(targets: bool) -> int:
    """Say what this machine can do, and how to get what is missing."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if targets:
        from fusionaudit.device import TARGETS

        table = Table("target", "name", "SMs", "GB/s", "L2 MiB", "source", box=None)
        for key, device in TARGETS.items():
            table.add_row(
                key, device.name, str(device.sm_count), f"{(device.peak_bandwidth_bytes_per_s or 0) / 1e9:.0f}",
                f"{(device.l2_bytes or 0) / 2**20:.0f}", device.source,
            )  # fmt: skip
        console.print(table)
        return 0
    from fusionaudit.capture.environment import doctor as examine

    table = Table("", "what", "found", box=None)
    marks = {"ok": "[green]ok[/green]", "missing": "[yellow]--[/yellow]", "warning": "[yellow]!![/yellow]"}
    for check in examine():
        detail = escape(check.detail) + (f"\n[dim]-> {escape(check.remedy)}[/dim]" if check.remedy else "")
        table.add_row(marks.get(check.status, check.status), check.name, detail)
    console.print(table)
    return 0


@main.command()
@click.argument("code", required=False)
@guarded
def rules(code: str | None) -> int:
    """List the rules, or explain one (CODE)."""
    import inspect

    from fusionaudit.rules import RULES

    if code is None:
        for rule in RULES:
            click.echo(f"{rule.CODE}  {rule.TITLE}")
        return 0
    for rule in RULES:
        if code.upper() == rule.CODE:
            width = max(40, min(shutil.get_terminal_size((80, 24)).columns, 100))
            # The first paragraph is the title.
            paragraphs = f"{rule.CODE}: {inspect.cleandoc(rule.__doc__ or rule.TITLE)}".split("\n\n")
            texts = [textwrap.fill(" ".join(p.split()), width, break_on_hyphens=False) for p in paragraphs]
            click.echo("\n\n".join(texts))
            return 0
    raise AuditError(f"no rule {code}", remedy=f"known: {', '.join(r.CODE for r in RULES)}")


add_guard_commands(main, capture_options=capture_options, run_options=run_options, guarded=guarded, render=_render)

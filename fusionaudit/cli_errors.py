"""How a command ends that could not do its work: a line on stderr, an exit code, an answer where a program reads it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from fusionaudit import __version__
from fusionaudit.errors import EXIT_ERROR, AuditError

_ANSWERED = "fusionaudit.answered"
"""Key of click's context where stdout has its report already."""

_WORDS = "fusionaudit.words"
"""Key of click's context where the words of the command line are."""

_ANSWERS = ("json", "html", "markdown", "sarif", "junit", "github")
"""Formats that a program or a page takes: an error is one of these too, not an empty stdout."""


def answered() -> None:
    """Say that stdout has what was asked for: an error after it adds nothing there."""
    click.get_current_context().meta[_ANSWERED] = True


def _echo_error(fmt: str, text: str, *, remedy: str, exit_code: int) -> None:
    """The error in the format that was asked for, as an audit that came to nothing."""
    from fusionaudit.report.document import error_document
    from fusionaudit.report.formats import rendered

    document = error_document(text, remedy=remedy, exit_code=exit_code, version=__version__)
    click.echo(rendered(document, fmt).rstrip("\n"))


def _tell(error: AuditError, given: dict[str, Any]) -> None:
    """The error on stderr; where a program reads stdout, also there: it gets an answer in every case."""
    click.echo(f"fusionaudit: {error.message}", err=True)
    if error.remedy:
        click.echo(f"  -> {error.remedy}", err=True)
    context = click.get_current_context(silent=True)
    fmt = "json" if given.get("as_json") else given.get("fmt")
    if context is not None and fmt in _ANSWERS and not given.get("output") and not context.meta.get(_ANSWERED):
        _echo_error(fmt, error.message, remedy=error.remedy, exit_code=error.exit_code)


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """Turns an AuditError into one line and its exit code; what the command returns is the exit code."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs)
        except AuditError as error:
            _tell(error, kwargs)
            code = error.exit_code
        except KeyboardInterrupt:
            click.echo("fusionaudit: interrupted", err=True)
            code = 130
        except BrokenPipeError:
            # The reader of a pipe went away (`| head`): nothing is wrong. Keep Python from failing again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except OSError as error:
            _tell(AuditError(f"{error.filename or 'file system'}: {error.strerror or error}"), kwargs)
            code = EXIT_ERROR
        except Exception as error:
            if os.environ.get("FUSIONAUDIT_DEBUG"):
                raise
            what = f"a defect in fusionaudit: {type(error).__name__}: {error}"
            remedy = "set FUSIONAUDIT_DEBUG=1 for the traceback, and report it with the capture"
            _tell(AuditError(what, remedy=remedy), kwargs)
            code = EXIT_ERROR
        sys.exit(code or 0)

    return wrapper


def _format_asked_for(group: click.Group, words: Sequence[str]) -> str | None:
    """The format that words which could not be parsed ask for on stdout, by the options before a script."""
    name, rest = next(((w, words[i + 1 :]) for i, w in enumerate(words) if not w.startswith("-")), ("", ()))
    command = group.commands.get(name)
    options = [p for p in command.params if isinstance(p, click.Option)] if command else []
    valued = {o for p in options if not (p.is_flag or p.count) for o in p.opts} or {"--format"}
    asked, to_file = "", False
    left = iter(rest)
    for word in left:
        option, equals, value = word.partition("=")
        if not option.startswith("-"):
            if command is not None and not command.context_settings.get("allow_interspersed_args", True):
                break  # the script: what follows is its own
            continue
        if option in valued and not equals:
            value = next(left, "")
        asked = value if option == "--format" else "json" if option == "--json" else asked
        to_file = to_file or option in ("-o", "--output")
    return asked if asked in _ANSWERS and not to_file else None


@contextlib.contextmanager
def _answering(group: click.Group, words: Sequence[str]) -> Iterator[None]:
    """An error of click's own is answered on stdout too where the words ask for a format; click shows it on stderr."""
    try:
        yield
    except click.UsageError as error:
        fmt = _format_asked_for(group, words)
        if fmt is not None:
            remedy = f"see `{error.ctx.command_path if error.ctx is not None else 'fusionaudit'} --help`"
            _echo_error(fmt, error.format_message(), remedy=remedy, exit_code=error.exit_code)
        raise


class Commands(click.Group):
    """A group whose parse errors are answered on stdout too, as :func:`guarded` does for all others."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        """As click's; the words are kept for :meth:`invoke`."""
        words = list(args)
        with _answering(self, words):
            context = super().make_context(info_name, args, *more, **extra)
        context.meta[_WORDS] = words
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Parse and run the command that the words name."""
        with _answering(self, ctx.meta.get(_WORDS, ())):
            return super().invoke(ctx)

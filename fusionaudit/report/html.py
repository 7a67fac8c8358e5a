"""The audit as one HTML file: no network, works from ``file://``, safe with any text that a capture carries.

Static parts (verdict, passes, findings, Inductor, notes) are written here through jinja2 with autoescape; the timeline,
plot and kernel table are drawn by the page's script from a JSON block. The content security policy allows that one
script and style by hash, and nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fusionaudit.figures import counted
from fusionaudit.report import cards, regions
from fusionaudit.report import wording as w
from fusionaudit.report.page_data import page_data
from fusionaudit.report.private import public_environment, scrub, scrub_document, scrub_text
from fusionaudit.report.rows import columns

Document = dict[str, Any]

_SCRIPTS = ("page.js", "timeline.js", "plot.js", "table.js")
_TEMPLATES = Path(__file__).parent / "templates"
_TOP_FINDINGS = 6
_OPEN_CARDS = 3


def render_html(document: Document, diff: dict[str, Any] | None = None) -> str:
    """The page. ``diff``: a ``dataclasses.asdict`` of :class:`fusionaudit.diff.Changes`, shown as its own section."""
    document = scrub_document(document)
    tone, sentence = w.verdict(document)
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in _SCRIPTS)
    found = cards.finding_cards(document)
    return _environment().get_template("page.html").render(
        document=document,
        tone=tone,
        sentence=sentence,
        target=w.target_line(document),
        passes=[c.p for c in columns(document)],
        clean=any(c.clean for c in columns(document)),
        comparison=cards.comparison_rows(document),
        cards=found,
        top=found[:_TOP_FINDINGS],
        open_cards=_OPEN_CARDS,
        inductor=cards.inductor_views(document),
        most_decisions=cards.MOST_DECISIONS,
        regions=regions.regions(document),
        region_time=regions.time_label(document),
        region_note=regions.NOTE,
        diff=cards.diff_view(scrub(diff)),
        environment=_facts(document),
        data=_json_block(page_data(document)),
        style=Markup(style),
        script=Markup(script),
        policy="default-src 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'",
    )  # fmt: skip


def render_diff_html(diff: dict[str, Any], *, old: str, new: str) -> str:
    """A page of a diff alone (two locks have no audit behind them). ``diff`` as for :func:`render_html`."""
    view = cards.diff_view(scrub(diff))
    style = _asset("page.css")
    kinds = [row["kind"] for row in view["rows"]] if view else []
    worse = sum(kind in ("split", "removed") for kind in kinds)
    sentence = (
        f"{len(kinds)} group{'' if len(kinds) == 1 else 's'} changed, {worse} split or gone"
        if kinds
        else "No group changed"
    )
    return (
        _environment()
        .get_template("diff.html")
        .render(
            diff=view,
            sentence=sentence,
            tone="warning" if worse else "info" if kinds else "ok",
            old=scrub_text(old),
            new=scrub_text(new),
            style=Markup(style),
            policy=f"default-src 'none'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'",
        )
    )


def _facts(document: Document) -> list[tuple[str, str]]:
    facts = [
        ("fusionaudit", str(document["tool"].get("version") or "")),
        ("engine", document["engine"]),
        ("made", document.get("created") or ""),
    ]
    for key, value in public_environment(document["environment"]).items():
        if value not in (None, "", [], {}):
            facts.append((w.plain(key).replace("_", " "), w.plain(_flat(value))))
    source = document["target"].get("source")
    if source:
        facts.append(("target figures", w.plain(source)))
    return [(k, v) for k, v in facts if v]


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items() if v not in (None, ""))
    if isinstance(value, (list, tuple)):
        return " ".join(_flat(v) for v in value)
    return str(value)


def _json_block(data: Any) -> Markup:
    """JSON that cannot end the script element or open a comment in it: ``<``, ``>`` and ``&`` are escaped."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(value: Any) -> Any:
    """Every text that a template writes has its control characters made visible."""
    return w.plain_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["counted"] = counted
    return environment

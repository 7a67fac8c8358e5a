"""Every text format of a report by name. Each writer is imported only when it is asked for."""

from __future__ import annotations

import json
from typing import Any

TEXT_FORMATS = ("json", "html", "markdown", "perfetto", "sarif", "junit", "github")


def rendered(document: dict[str, Any], fmt: str, *, diff: dict[str, Any] | None = None) -> str:
    """The document as text in one of the formats other than ``console``; ``diff``: changes, for HTML."""
    if fmt == "json":
        return json.dumps(document, indent=1)
    if fmt == "html":
        from fusionaudit.report.html import render_html

        return render_html(document, diff)
    if fmt == "markdown":
        from fusionaudit.report.markdown import render_markdown

        return render_markdown(document)
    if fmt == "perfetto":
        from fusionaudit.report.perfetto import render_perfetto

        return render_perfetto(document)
    if fmt == "sarif":
        from fusionaudit.report.sarif import render_sarif

        return render_sarif(document)
    if fmt == "junit":
        from fusionaudit.report.junit import render_junit

        return render_junit(document)
    from fusionaudit.report.github import render_github

    return render_github(document)

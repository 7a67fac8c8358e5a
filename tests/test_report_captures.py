"""Reports of the real captures: every format renders, figures agree, the page is small and opens in silence."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from perfetto_format import check_trace
from rich.console import Console

from fusionaudit.pipeline import analyze
from fusionaudit.report.console import render_console
from fusionaudit.report.html import render_html
from fusionaudit.report.markdown import render_markdown
from fusionaudit.report.perfetto import render_perfetto
from fusionaudit.report.rows import comparison, shown_passes
from fusionaudit.store import load

DATA = Path(__file__).parent / "data" / "captures"


def _captures() -> dict[str, tuple[Path, Path | None]]:
    out = {}
    for trace in sorted([*DATA.glob("*.sqlite"), *DATA.glob("kineto/*.json.gz")]):
        # nsys2023.4_block_compiled.sqlite belongs to block_compiled.torch_logs.txt; Kineto traces have no log.
        script = trace.name.removesuffix(".sqlite").split("_", 1)[1].removesuffix("_n24")
        log = DATA / f"{script}.torch_logs.txt"
        out[trace.name] = (trace, log if trace.suffix == ".sqlite" and log.exists() else None)
    return out


CAPTURES = _captures()


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("audits")
    out = {}
    for name, (trace, log) in CAPTURES.items():
        result = analyze([trace], inductor_log=log, out=folder / name)
        out[name] = result.document
        # Reports read the database: it must give back what was said.
        assert load(folder / name) == json.loads(json.dumps(result.document))
    return out


@pytest.mark.parametrize("name", CAPTURES)
def test_every_format_says_the_same(audits: dict[str, dict[str, Any]], name: str) -> None:
    document = audits[name]
    out = io.StringIO()
    render_console(document, Console(file=out, width=80), verbose=True)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    page, markdown = render_html(document), render_markdown(document)
    assert len(page.encode()) < 3_000_000
    assert len(markdown) < 65_536
    for row in comparison(document):
        for figure in row.texts:
            assert figure in out.getvalue()
            assert figure in page
            assert figure in markdown
    data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
    at = {field: i for i, field in enumerate(data["fields"])}
    shown = [p for p in shown_passes(document) if p["kernels"]]
    for number, p in enumerate(shown):
        kinds = [k for k in data["kinds"] if k[at["pass"]] == number]
        assert sum(k[at["count"]] for k in kinds) == len(p["kernels"])
        assert sum(k[at["time"]] for k in kinds) == sum(k["duration_ns"] for k in p["kernels"])
    found = document["findings"]
    assert f'Findings <span class="count">{len(found)}</span>' in page
    for finding in found:
        assert finding["fingerprint"] in page
    events = check_trace(render_perfetto(document))
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == sum(len(p["kernels"]) for p in document["passes"])


def test_pages_open_without_a_message(audits: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    browser = pytest.importorskip("report_browser", reason="selenium not installed")
    if lacking := browser.missing():
        pytest.skip(lacking)
    with browser.browser() as driver:
        for name, document in audits.items():
            page = tmp_path / f"{name}.html"
            page.write_text(render_html(document), encoding="utf-8")
            driver.get(page.as_uri())
            assert driver.get_log("browser") == []
            timing = "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime"
            assert driver.execute_script(timing) < 2000
            browser.size(driver, 400, 900)
            assert driver.execute_script("return document.documentElement.scrollWidth") <= 400
            browser.size(driver, 1280, 900)

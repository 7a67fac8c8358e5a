"""The page in a real headless Chromium: no console error, sort, filter, hover, fold, themes, keyboard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_documents import block, hostile, many, sum_abs

from fusionaudit.report.html import render_html

browser_module = pytest.importorskip("report_browser", reason="selenium not installed")
lacking = browser_module.missing()
pytestmark = pytest.mark.skipif(lacking is not None, reason=str(lacking))


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser_module.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    out = {}
    documents = {
        "sum_abs": sum_abs(),
        "block": block(),
        "hostile": hostile(),
        "many": many(),
        "deviceless": sum_abs("deviceless"),
    }
    for name, document in documents.items():
        path = Path(folder / f"{name}.html")
        path.write_text(render_html(document), encoding="utf-8")
        out[name] = path.as_uri()
    return out


def opened(driver: Any, url: str, scheme: str = "light") -> Any:
    browser_module.size(driver, 1280, 900)
    browser_module.prefer(driver, scheme)
    driver.get(url)
    return driver


def script(driver: Any, text: str, *arguments: Any) -> Any:
    return driver.execute_script(text, *arguments)


def click(driver: Any, element: Any) -> None:
    script(driver, "arguments[0].click()", element)


def rows(driver: Any, column: int) -> list[str]:
    query = "return [...document.querySelectorAll('tr[data-kind]')].map(r => r.cells[arguments[0]].textContent)"
    return list(script(driver, query, column))


@pytest.mark.parametrize("name", ["sum_abs", "block", "hostile", "many"])
def test_loads_without_console_message(driver: Any, pages: dict[str, str], name: str) -> None:
    driver.get_log("browser")
    opened(driver, pages[name])
    script(driver, "document.getElementById('theme').click()")
    assert driver.get_log("browser") == []
    assert script(driver, "return window.pwned") is None
    assert script(driver, "return performance.getEntriesByType('resource').length") == 0


def test_policy_stops_inline_handlers_and_network(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["sum_abs"])
    script(
        driver,
        "const b = document.createElement('button'); b.setAttribute('onclick', 'window.pwned = 1');"
        "document.body.append(b); b.click();"
        "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i);",
    )
    time.sleep(0.2)
    assert script(driver, "return window.pwned") is None
    blocked = " ".join(e["message"] for e in driver.get_log("browser"))
    assert "img-src" in blocked or "default-src" in blocked


def test_sort_filter_and_search(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["sum_abs"])
    assert rows(driver, 7) == ["489 us", "265 us", "262 us", "2.30 us"]
    heads = driver.find_elements("css selector", "#kernel-table thead button")
    time_head = next(h for h in heads if h.text.startswith("time"))
    click(driver, time_head)
    click(driver, time_head)
    assert rows(driver, 7) == ["2.30 us", "262 us", "265 us", "489 us"]
    assert time_head.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    driver.find_element("id", "search").send_keys("triton_per")
    assert rows(driver, 7) == ["2.30 us"]
    script(
        driver,
        "const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input'));"
        "const f = document.getElementById('filter-pass'); f.value = 'eager'; f.dispatchEvent(new Event('input'));",
    )
    assert rows(driver, 1) == ["eager", "eager"]
    assert "754 us" in driver.find_element("css selector", "#kernel-table tfoot").text


def test_rows_unfold_and_copy(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["sum_abs"])
    first = driver.find_element("css selector", "#kernel-table .name button")
    script(driver, "arguments[0].focus()", first)
    first.send_keys("\ue007")
    detail = driver.find_element("css selector", "tr.detail").text
    assert "void at::native::vectorized_elementwise_kernel" in detail
    assert "finding 1" in detail
    assert first.get_attribute("aria-expanded") == "true"
    script(driver, "document.getElementById('copy').click()")
    time.sleep(0.3)
    assert driver.find_element("id", "copy-live").text.startswith("4 rows copied")


def test_hover_on_timeline_and_plot(driver: Any, pages: dict[str, str]) -> None:
    from selenium.webdriver import ActionChains

    opened(driver, pages["sum_abs"])
    canvas = driver.find_element("id", "timeline-canvas")
    script(driver, "arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", canvas)
    height = canvas.size["height"]
    ActionChains(driver).move_to_element_with_offset(canvas, -300, 22 + 18 + 10 - height // 2).perform()
    tip = driver.find_element("id", "tip")
    assert "489 us (measured), 2.15 GB" in tip.text
    dot = driver.find_elements("css selector", "#plot .dot")[0]
    script(driver, "arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", dot)
    ActionChains(driver).move_to_element(dot).perform()
    assert "of peak" in tip.text


def test_keyboard(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["block"])
    canvas = driver.find_element("id", "timeline-canvas")
    script(driver, "arguments[0].focus()", canvas)
    canvas.send_keys("n", "n")
    assert "nvjet" in driver.find_element("id", "timeline-live").text
    plot = driver.find_element("id", "plot")
    plot.send_keys("\ue014")
    assert "us" in driver.find_element("id", "plot-live").text
    names = script(
        driver,
        "return [...document.querySelectorAll('button, input, select, canvas, summary, [tabindex]')]"
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length",
    )
    assert names == 0


def test_findings_fold_and_links_open_them(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["many"])
    card = driver.find_element("id", "finding-5")
    assert card.get_attribute("open") is None
    click(driver, driver.find_element("css selector", "a[href='#finding-5']"))
    time.sleep(0.1)
    assert card.get_attribute("open") is not None
    click(driver, card.find_element("tag name", "summary"))
    assert card.get_attribute("open") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(driver: Any, pages: dict[str, str], scheme: str) -> None:
    opened(driver, pages["sum_abs"], scheme)
    script(driver, "localStorage.clear(); delete document.documentElement.dataset.theme")
    opened(driver, pages["sum_abs"], scheme)
    back = "return getComputedStyle(document.body).backgroundColor"
    before = script(driver, back)
    level = sum(int(n) for n in before[4:-1].split(","))
    assert (level > 600) == (scheme == "light")
    script(driver, "document.getElementById('theme').click()")
    assert script(driver, back) != before
    script(driver, "localStorage.clear()")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["sum_abs", "block", "hostile"])
def test_nothing_sticks_out(driver: Any, pages: dict[str, str], name: str, width: int) -> None:
    opened(driver, pages[name])
    browser_module.size(driver, width, 900)
    time.sleep(0.1)
    assert script(driver, "return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["sum_abs", "block", "deviceless"])
def test_lines_are_whole_on_a_phone(driver: Any, pages: dict[str, str], name: str) -> None:
    opened(driver, pages[name])
    browser_module.size(driver, 400, 900)
    time.sleep(0.1)
    query = "[...document.querySelectorAll(arguments[0])].filter(e => e.textContent)"
    for places in (".top .where", ".card .meta .mono", "#kernel-table tbody .where"):
        assert script(driver, f"return {query}.length", places) > 0
        hidden = f"{query}.filter(e => e.getBoundingClientRect().right > 400 || e.scrollWidth > e.offsetWidth)"
        assert script(driver, f"return {hidden}.map(e => e.textContent)", places) == []
    browser_module.size(driver, 1280, 900)


def test_deviceless_shows_no_measured_time(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["deviceless"])
    text = script(driver, "return document.body.innerText")
    assert "measured" not in text
    assert "time (predicted)" in text
    assert "Nsight" not in text


def test_prints(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["block"])
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(pdf["data"]) > 20_000


def test_a_step_of_50000_kernels_can_be_searched(driver: Any, pages: dict[str, str]) -> None:
    opened(driver, pages["many"])
    before = rows(driver, 7)
    box = driver.find_element("id", "search")
    box.send_keys("functor_12")
    after = rows(driver, 7)
    assert after
    assert before != after
    box.send_keys("_no_kernel_has_this_name")
    assert rows(driver, 7) == []

"""How fast the page is with 50,000 kernels in each of two passes: ``python tests/benchmarks/report_speed.py``.

Prints the median and the worst of ten tries for the load and each action, beside the limits of 2 s and 100 ms.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from report_browser import browser
from report_documents import many

from fusionaudit.report.html import render_html

TRIES = 10
SET = "e.dispatchEvent(new Event('input'))"
ACTIONS = {
    "sort": "document.querySelectorAll('#kernel-table thead button')[7].click()",
    "search": f"const e = document.getElementById('search'); e.value = 'functor_12'; {SET}",
    "filter": f"const e = document.getElementById('filter-pass'); e.value = 'eager'; {SET}",
    "zoom": "document.getElementById('zoom-in').click()",
    "whole": "document.getElementById('zoom-all').click()",
    "colour": "const e = document.getElementById('timeline-colour'); e.value = 'finding';"
    "e.dispatchEvent(new Event('change'))",
    "theme": "document.getElementById('theme').click()",
    "fold": "document.querySelector('#finding-0 summary').click()",
    "hover": "const e = document.getElementById('timeline-canvas');"
    "e.dispatchEvent(new PointerEvent('pointermove', {clientX: 400, clientY: e.getBoundingClientRect().top + 50}))",
}


def timed(driver: Any, action: str) -> float:
    """Milliseconds from the action to the frame after it. The page forbids evaluating text: each is its own script."""
    return float(
        driver.execute_async_script(
            f"""
            const done = arguments[arguments.length - 1], start = performance.now();
            (() => {{ {action} }})();
            requestAnimationFrame(() => {{
              const channel = new MessageChannel();
              channel.port1.onmessage = () => done(performance.now() - start);
              channel.port2.postMessage(0);
            }});"""
        )
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        page = Path(folder) / "many.html"
        page.write_text(render_html(many()), encoding="utf-8")
        print(f"page: {page.stat().st_size / 1e6:.1f} MB")
        loads = []
        for _ in range(TRIES):
            driver.get(page.as_uri())
            entry = "performance.getEntriesByType('navigation')[0]"
            loads.append(driver.execute_script(f"return {entry}.loadEventEnd - {entry}.startTime"))
        print(f"{'load':8} median {statistics.median(loads):6.0f} ms  worst {max(loads):6.0f} ms  limit 2000 ms")
        driver.set_script_timeout(20)
        for name, action in ACTIONS.items():
            times = [timed(driver, action) for _ in range(TRIES)]
            print(f"{name:8} median {statistics.median(times):6.0f} ms  worst {max(times):6.0f} ms  limit  100 ms")


if __name__ == "__main__":
    main()

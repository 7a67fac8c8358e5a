"""A headless Chromium for the page tests: Debian's, driven through its own chromedriver. Nothing is downloaded."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
)  # fmt: skip


def missing() -> str | None:
    """What the browser tests lack on this machine, or ``None``."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (apt-get install chromium chromium-driver)" if absent else None


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A driver with a profile of its own; the console's log is kept."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            size(driver, width, height)
            yield driver
        finally:
            driver.quit()


def size(driver: Any, width: int, height: int) -> None:
    """Set the viewport (a window cannot be narrower than 500 px)."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def prefer(driver: Any, scheme: str) -> None:
    """The system's colour scheme: ``light`` or ``dark``."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def screenshot(page: Path, out: Path, *, width: int, height: int, scheme: str) -> None:
    """A picture of the page's top ``height`` pixels, for eyes."""
    with browser(width, height) as driver:
        prefer(driver, scheme)
        driver.get(page.resolve().as_uri())
        driver.save_screenshot(str(out))
        print([e["message"] for e in driver.get_log("browser")])


if __name__ == "__main__":
    source, target, wide, tall, colours = sys.argv[1:6]
    screenshot(Path(source), Path(target), width=int(wide), height=int(tall), scheme=colours)

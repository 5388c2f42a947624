"""A real browser without a window, that reaches nothing but this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from presence import missing

BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip


class Browser:
    """What a test does with a browser."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def size(self, width: int, height: int = 900) -> None:
        """Makes the page's area that wide, which windows of their own accord are not below some 500 px."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        )

    def scheme(self, name: str) -> None:
        """Prefers `light` or `dark`."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def open(self, address: str) -> None:
        """Goes to a page."""
        self.driver.get(address)

    def text(self) -> str:
        """What the page shows."""
        return str(self.driver.execute_script("return document.body.innerText"))

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the page wrote to the console since the last call, refused loads and broken policies among it."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, place: Path) -> None:
        """The whole page as a PNG."""
        height = int(self.run("return document.documentElement.scrollHeight"))
        width = int(self.run("return document.documentElement.clientWidth"))
        self.size(width, height)
        self.driver.save_screenshot(str(place))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty profile."""
    if not BROWSER.exists() or not DRIVER.exists():
        missing("chromium with chromedriver")
    with TemporaryDirectory(prefix="ledger-browser-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = str(BROWSER)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options, ChromeService(str(DRIVER)))
        try:
            yield Browser(driver)
        finally:
            driver.quit()

"""A headless Chromium for the tests of pages; without it, or without selenium, they are skipped with the reason."""

import pathlib
import shutil
import time

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --force-device-scale-factor=1 --window-size=1400,1000"
).split()
SECONDS = 30  # most that a page may take to draw itself, on a busy machine


class Browser:
    """A page in Chromium, and what it draws."""

    def __init__(self, driver, downloads):
        self.driver, self.downloads = driver, downloads

    def run(self, script, *given):
        """Run JavaScript with `arguments`; return its value."""
        return self.driver.execute_script(script, *given)

    def wait(self, condition, what):
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"waited {SECONDS} s for {what}: {self.log()}"
            time.sleep(0.01)

    def open(self, path, address=""):
        """Open a page anew, with the state in `address`, and wait until it is drawn."""
        self.driver.get("about:blank")
        self.driver.get(f"{pathlib.Path(path).as_uri()}{'#' if address else ''}{address}")
        self.wait("document.documentElement.dataset.drawn", "the page to be drawn")

    def act(self, action):
        """Do something after which the page draws itself, and wait until it has."""
        drawn = self.run("return document.documentElement.dataset.drawn")
        action()
        self.wait(f"document.documentElement.dataset.drawn > {drawn}", "the page to be drawn again")

    def press(self, *keys):
        """Press keys, one after the other, where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def choose(self, id, value):
        """Choose an option of a list."""
        script = "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
        self.run(script + "box.dispatchEvent(new Event('change', { bubbles: true }));", id, value)

    def text(self, id):
        return self.run("return document.getElementById(arguments[0]).textContent", id)

    def state(self):
        """The state of the page in its address, {short name: value}."""
        self.wait("document.documentElement.dataset.address === 'current'", "the address")
        parts = self.run("return location.hash.slice(1)").split("&")
        return dict(part.split("=") for part in parts if part)

    def colours(self, cells, panel=0):
        """The colours, red, green and blue, in the middle of cells (row, column) of an enlarged map."""
        return self.run(
            """const canvas = document.querySelectorAll("#maps canvas")[arguments[1]], at = canvas.dataset;
            const context = canvas.getContext("2d");
            return arguments[0].map(([q, k]) => Array.from(context.getImageData(
              Math.floor((Number(at.x) + (k + 0.5) * at.cell) * at.ratio),
              Math.floor((Number(at.y) + (q + 0.5) * at.cell) * at.ratio), 1, 1).data).slice(0, 3));""",
            [[int(q), int(k)] for q, k in cells],
            panel,
        )

    def save(self, id, name):
        """Press a button that saves a file, wait for it, and return its path."""
        path = self.downloads / name
        self.run("document.getElementById(arguments[0]).click()", id)
        end = time.monotonic() + SECONDS
        while not (path.exists() and path.stat().st_size):
            assert time.monotonic() < end, f"waited {SECONDS} s for {name}: {[*self.downloads.iterdir()]}"
            time.sleep(0.01)
        return path

    def log(self):
        """What the page wrote to the console since the last call, without advice on pixels that these tests read."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        return [message for message in said if "willReadFrequently" not in message]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: pip install -e '.[browser]'"
    )
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed: apt-get install chromium chromium-driver")
    downloads = tmp_path_factory.mktemp("downloads")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    several = {"profile.default_content_setting_values.automatic_downloads": 1}
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads), **several})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    from selenium.webdriver.chrome.service import Service

    # The path of the driver is given, because selenium would otherwise look for one to download.
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(SECONDS)
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # else there are no focus events
    yield Browser(driver, downloads)
    driver.quit()


@pytest.fixture
def browser(chromium):
    """The browser; the test fails if the page wrote to the console."""
    chromium.log()
    yield chromium
    assert chromium.log() == []


@pytest.fixture
def scheme(browser):
    """Sets the colour scheme of the system, `light` or `dark`."""

    def choose(value):
        features = [{"name": "prefers-color-scheme", "value": value}] if value else []
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    yield choose
    choose(None)


@pytest.fixture
def window(browser):
    """Sets the size of the window."""

    def choose(width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    yield choose
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

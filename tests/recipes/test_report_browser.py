"""A report in a real browser: on a desktop and on a phone, in light and dark mode, without a network."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from tests.recipes.running import RECIPES
from tests.recipes.test_report import make, write_suite

SCREENS = {"desktop": (1280, 900), "phone": (390, 844)}
# Blink's own numbers: 0 is dark, 1 is light.
SCHEMES = {"dark": 0, "light": 1}
CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
# Added to a copy: what the browser made of the page. The page itself has no script.
MEASURE = """<script>addEventListener("load", () => {
  const all = (selector, of) => [...document.querySelectorAll(selector)].map(of);
  const inside = (element) => element.closest(".scroll") !== null;
  const outside = all("main *", (e) => [e, e.getBoundingClientRect()]).filter(([e, r]) => !inside(e));
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    too_wide: outside.filter(([e, r]) => r.right > innerWidth + 0.5).map(([e]) => e.outerHTML.slice(0, 80)),
    background: getComputedStyle(document.body).backgroundColor,
    images: all("img", (i) => ({natural: i.naturalWidth, shown: i.clientWidth, source: i.currentSrc.slice(-40)})),
    tables: all(".scroll", (s) => ({scrolls: s.scrollWidth > s.clientWidth + 1, height: s.clientHeight})),
    letters: all("p, li, td", (e) => parseFloat(getComputedStyle(e).fontSize)),
    loaded: performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 30)),
  }), "*");
});</script>"""
# A window is never narrower than 500 pixels; a frame is as narrow as a phone.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><title></title>
<script>onmessage = (message) => { document.title = message.data; };</script>
<iframe src="measured.html" style="border: 0; width: %dpx; height: %dpx"></iframe>"""


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    done = subprocess.run([RECIPES.parent / "scripts/debian.sh", "browser"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_suite(folder / "runs")
    return make(folder / "out", folder / "runs").out / "report.html"


def browse(page: Path, folder: Path, screen: str, scheme: str, *more: str) -> str:
    width, height = SCREENS[screen]
    options = [
        f"--window-size={width},{height}",
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
    ]
    done = subprocess.run([*CHROMIUM, *options, *more, page.as_uri()], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measure(page: Path, folder: Path, screen: str, scheme: str) -> dict[str, Any]:
    copy = folder / "measured.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME % SCREENS[screen], encoding="utf-8")
    dom = browse(frame, folder, screen, scheme, "--dump-dom", "--virtual-time-budget=5000")
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_fits_and_is_readable(page: Path, tmp_path: Path, screen: str, scheme: str) -> None:
    seen = measure(page, tmp_path, screen, scheme)
    assert seen["width"] == SCREENS[screen][0]
    assert seen["page"] <= seen["width"] and seen["too_wide"] == []  # the page does not scroll sideways
    assert all(table["height"] > 30 for table in seen["tables"])
    assert screen == "desktop" or any(table["scrolls"] for table in seen["tables"])
    assert min(seen["letters"]) >= 12
    assert seen["background"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
    assert len(seen["images"]) == 5 and all(image["natural"] == 920 for image in seen["images"])
    assert min(image["shown"] for image in seen["images"]) >= 350
    assert all(name.startswith("data:") for name in seen["loaded"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_figures_follow_the_colour_scheme(page: Path, tmp_path: Path) -> None:
    sources = {scheme: measure(page, tmp_path, "phone", scheme)["images"] for scheme in SCHEMES}
    pairs = zip(sources["light"], sources["dark"], strict=True)
    assert all(light["source"] != dark["source"] for light, dark in pairs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("scheme", "mean"), [("light", (0.8, 1.0)), ("dark", (0.05, 0.3))])
def test_a_screenshot_shows_something(page: Path, tmp_path: Path, scheme: str, mean: tuple[float, float]) -> None:
    browse(page, tmp_path, "phone", scheme, f"--screenshot={tmp_path / 'shot.png'}")
    pixels = imread(tmp_path / "shot.png")[..., :3]
    assert pixels.shape[:2] == (844, 390)
    assert mean[0] < pixels.mean() < mean[1] and np.std(pixels) > 0.05

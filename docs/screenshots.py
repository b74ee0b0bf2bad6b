"""Take the pictures of the page for the docs, in a real browser: wide, narrow, dark and printed.

    python docs/screenshots.py [RECORD.json]     write docs/pictures/page-*.png; needs chromium and `pip install playwright`

RECORD holds a `run` and a `tuning`; the default is a committed one: `hasten speedtest` on an H100. Nothing is measured. The
PNG files depend on the browser and its fonts, so they are no generated files that CI compares.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
from playwright.sync_api import sync_playwright

from hasten.measurement.diagnose import diagnose
from hasten.records import Run, Tuning
from hasten.reports.page.page import PageInput, page

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "results" / "gpu" / "nvidia_h100_80gb_hbm3" / "speedtest" / "superres.json"
PICTURES = ROOT / "docs" / "pictures"
MOST_HEIGHT = 1400  # pixels of a screen that are kept
SCREENS = {
    "wide": {"viewport": {"width": 1100, "height": 900}},
    "narrow": {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "print": {"viewport": {"width": 794, "height": 1123}},  # A4 at 96 dots per inch
}


def main(record: Path = RECORD) -> None:
    """Draw the page of a record, and photograph it."""
    told = json.loads(record.read_text(encoding="utf-8"))
    run, tuning = msgspec.convert(told["run"], Run), msgspec.convert(told["tuning"], Tuning)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        file = Path(folder, "page.html")
        file.write_text(page(PageInput(run=run, diagnosis=diagnose(run), tuning=tuning)), encoding="utf-8")
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, settings in SCREENS.items():
            tab = browser.new_page(**settings)
            if name == "print":
                tab.emulate_media(media="print")
            tab.goto(file.as_uri())
            height = min(MOST_HEIGHT, tab.evaluate("document.documentElement.scrollHeight"))
            tab.set_viewport_size({"width": settings["viewport"]["width"], "height": height})
            tab.screenshot(path=PICTURES / f"page-{name}.png")
            print(f"wrote docs/pictures/page-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))

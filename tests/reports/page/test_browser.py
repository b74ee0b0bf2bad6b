"""The page in a real browser: it asks for nothing, draws everything, and can be read, reached and printed."""

import os
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.slow

CONTRAST = """() => {
  const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/rgba\\(0, 0, 0, 0\\)|transparent/.test(colour)) return rgb(colour);
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("h1, h2, h3, p, li, td, th, small, code, span, figcaption, summary, a, svg text")) {
    const box = node.getBoundingClientRect();
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !box.width) continue;
    const style = getComputedStyle(node);
    const ink = rgb(node.namespaceURI.includes("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${node.tagName}.${node.className} ${ratio.toFixed(2)}: ${node.textContent.slice(0, 40)}`);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs chromium; `apt-get install chromium`")
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(html, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, file):
    """The page at a width, with what went wrong while it opened."""
    contexts = []

    def open_at(width=1000, *, unfolded=True, **settings):
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        tab = context.new_page()
        tab.troubles = []
        tab.on("console", lambda message: tab.troubles.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: tab.troubles.append(str(error)))
        tab.on(
            "request",
            lambda asked: tab.troubles.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None,
        )
        tab.goto(file.as_uri())
        if unfolded:
            tab.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        return tab

    yield open_at
    for context in contexts:
        context.close()


def test_it_opens_without_a_request_and_without_an_error(opened):
    assert opened(offline=True).troubles == []


@pytest.mark.parametrize("width", [320, 1000, 1920])
def test_every_chart_is_drawn_and_nothing_overflows(opened, width):
    tab = opened(width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    shown = ".narrow" if width == 320 else ".wide"
    drawings = tab.locator(f".drawing{shown}")
    assert drawings.count() == 6
    for drawing in drawings.all():
        box = drawing.bounding_box()
        assert box is not None and box["height"] > 40 and box["width"] > 100
        assert drawing.locator("[role='graphics-symbol'][aria-label]").count() > 0
        assert box["x"] + box["width"] <= width + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1000])
def test_text_is_legible(opened, scheme, width):
    assert opened(width, color_scheme=scheme).evaluate(CONTRAST) == []


def test_dark_is_dark(opened):
    colour = "getComputedStyle(document.body).backgroundColor"
    assert opened(color_scheme="dark").evaluate(colour) != opened(color_scheme="light").evaluate(colour)


def test_hovering_tells_a_figure(opened):
    tab = opened()
    tab.locator("#timeline").scroll_into_view_if_needed()
    tab.locator("#timeline .wide [role='graphics-symbol'][aria-label^='main: data wait']").first.hover()
    tip = tab.locator("#tip")
    assert tip.is_visible() and tip.inner_text().startswith("main: data wait 60.0 ms")
    tab.mouse.move(0, 0)
    assert not tip.is_visible()


def test_the_keyboard_reaches_every_figure(opened):
    tab = opened()
    tab.locator("#timeline .wide").focus()
    heard = []
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
        heard.append(tab.locator("#tip").inner_text())
    assert len(set(heard)) == 3
    tab.keyboard.press("ArrowLeft")
    assert tab.locator("#tip").inner_text() == heard[1]
    tab.keyboard.press("Escape")
    assert not tab.locator("#tip").is_visible()


@pytest.mark.parametrize("width", [360, 1000])
def test_the_bars_and_their_labels_fit_beside_each_other(opened, width):
    tab = opened(width, unfolded=False)
    rows = tab.locator(".bars .row")
    assert rows.count() >= 4
    for row in rows.all():
        bar, label = (row.locator(part).bounding_box() for part in (".bar", ".label"))
        assert label["x"] >= bar["x"] + bar["width"] and label["x"] + label["width"] <= width
        assert abs((label["y"] + label["height"] / 2) - (bar["y"] + bar["height"] / 2)) < 12, "on one line"


def test_details_are_folded_until_a_link_leads_into_them(opened):
    tab = opened(unfolded=False)
    assert not tab.locator("#machine").is_visible()
    tab.evaluate("location.hash = '#machine'")
    tab.wait_for_timeout(200)
    assert tab.locator("#machine").is_visible()


def test_the_next_command_is_copied(opened):
    tab = opened(permissions=["clipboard-read", "clipboard-write"])
    tab.locator(".next button").click()
    tab.wait_for_timeout(200)
    assert tab.locator(".next button").inner_text() == "Copied"


def test_paper_gets_every_chart(opened, tmp_path):
    tab = opened(400)
    tab.emulate_media(media="print")
    assert tab.locator(".drawing.wide").evaluate_all("all => all.every(d => d.getBoundingClientRect().height > 40)")
    path = tmp_path / "page.pdf"
    tab.pdf(path=str(path), format="A4")
    assert path.stat().st_size > 20_000
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", str(path), "-"], capture_output=True, text=True, check=True).stdout
        for title in ("Where the step goes", "What was tried", "The machine over time"):
            assert title in text

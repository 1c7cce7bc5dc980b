"""The pages in a real browser: no error, no network, keys work, axe finds nothing, many spans are drawn."""

import json
import re
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

import cedar
from cedar.watch.page import page as as_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make browser")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium"),
]


def add_one(x: int) -> int:
    return x + 1


def pipeline():
    return cedar.from_items([{"x": i} for i in range(5000)]).map(add_one, "x").shuffle(seed=1).batch(50)


@contextmanager
def opened(url):
    """A page in a browser without a network but our own; its errors are collected."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.errors = []
        page.on("console", lambda message: page.errors.append(message.text))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("requestfailed", lambda request: page.errors.append(request.url))
        page.context.set_offline(url.startswith("file:"))
        page.goto(url)
        yield page
        browser.close()


def faults(page):
    """What axe finds: names, contrast, labels."""
    return [(each["id"], each["nodes"][0]["html"]) for each in axe.Axe().run(page).response["violations"]]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with pipeline().loader(trace=folder / "run.json", executor="threads", workers=2) as loader:
        for _ in loader:
            time.sleep(0.002)
        loader.report().html(folder / "run.html")
        return folder / "run.html", loader.report()


def test_a_report_opens_offline_without_an_error_and_passes_axe(report):
    path, figures = report
    with opened(path.as_uri()) as page:
        assert page.title() == "cedar: 5,000 rows"
        assert figures.summary in page.inner_text("main")
        assert page.locator("svg").count() == 2
        assert faults(page) == []
        assert page.errors == []


def test_the_timeline_answers_to_keys(report):
    path, _ = report
    with opened(path.as_uri()) as page:
        said = page.locator("#cedar-at")
        whole = said.inner_text()
        assert whole.startswith("0.000 to ")
        assert "the trainer" in whole
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.id") != "cedar-lanes":
            page.keyboard.press("Tab")

        def pressed(key):
            before = said.inner_text()
            page.keyboard.press(key)
            page.wait_for_function("before => document.getElementById('cedar-at').textContent !== before", arg=before)
            return [float(each) for each in said.inner_text().partition(" s:")[0].split(" to ")]

        end = float(whole.partition(" to ")[2].partition(" s")[0])
        start, stop = pressed("+")
        assert stop - start == pytest.approx(end / 2, abs=0.002)
        right = pressed("ArrowRight")
        assert right[0] == pytest.approx(start + end / 10, abs=0.002)
        assert pressed("ArrowLeft")[0] == pytest.approx(start, abs=0.002)
        assert pressed("Home") == [0.0, end]
        page.keyboard.press("Tab")  # the keys are not caught
        assert page.evaluate("document.activeElement.id") != "cedar-lanes"
        assert page.errors == []


def test_a_hundred_thousand_spans_are_drawn_and_moved_through(report, tmp_path):
    _, figures = report
    spans = [(f"process 1, {i % 16}", ("map(f)", "read", "filter(g)")[i % 3], i * 1e-4, 1.5e-3) for i in range(100_000)]
    path = tmp_path / "many.html"
    path.write_text(as_page(figures, spans), encoding="utf-8")
    with opened(path.as_uri()) as page:
        assert "100,000 spans in 16 threads" in page.get_attribute("#cedar-lanes", "aria-label")
        page.focus("#cedar-lanes")
        for key in ("+", "+", "ArrowRight", "+", "ArrowLeft", "-", "Home"):
            page.keyboard.press(key)
        page.wait_for_function("document.getElementById('cedar-at').textContent.startsWith('0.000')")
        seconds = page.evaluate("""async () => {
            const start = performance.now();
            for (let i = 0; i < 10; i++) {
                document.getElementById('cedar-lanes').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}));
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
            }
            return (performance.now() - start) / 1000 / 10;
        }""")
        assert seconds < 5  # it answers at all; how fast is not a test's affair
        drawn = page.evaluate("""() => {
            const canvas = document.querySelector('canvas');
            const pixels = canvas.getContext('2d').getImageData(200, 0, 50, 16 * 18).data;
            return pixels.some((value) => value > 0);
        }""")
        assert drawn
        assert page.errors == []


def test_what_a_file_says_is_no_script(report, tmp_path):
    _, figures = report
    nasty = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    spans = [(nasty, nasty, 0.0, 1.0)]
    changed = json.loads(json.dumps(figures.operators)) | {nasty: 1.0}
    path = tmp_path / "nasty.html"
    made = replace(figures, operators=changed, notes=(nasty,), deaths=(nasty,), graph=((nasty, ()),), summary=nasty)
    path.write_text(as_page(made, spans), encoding="utf-8")
    with opened(path.as_uri()) as page:
        assert page.title() == "cedar: 5,000 rows"
        assert "taken" in page.inner_text("main")
        assert page.errors == []


def test_the_live_page_follows_the_run_and_says_when_it_is_over():
    with pipeline().repeat().loader(serve="127.0.0.1:0", executor="inline") as loader:
        batches = iter(loader)
        next(batches)
        with opened(loader.url.replace("/status", "/")) as page:
            assert "50 rows" in page.inner_text("h1")
            assert faults(page) == []
            for _ in range(19):
                next(batches)
            sync_api.expect(page.locator("h1")).to_have_text(re.compile("^1,000 rows"))
            assert page.inner_text("#cedar-state") == "running"
            assert page.errors == []
            loader.close()
            sync_api.expect(page.locator("#cedar-state")).to_have_text(re.compile("^no run answers"))
            assert "1,000 rows" in page.inner_text("h1")

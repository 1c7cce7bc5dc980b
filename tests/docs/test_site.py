"""The built site: links lead somewhere, public names have their place, pages work in a browser (``make docs-test``)."""

import functools
import http.server
import os
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("CEDAR_SITE", ""))
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif("CEDAR_SITE" not in os.environ, reason="no site was built: make docs-test")


class Parsed(HTMLParser):
    """What a page links to, what can be linked to in it, and images without a description."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors, self.bare = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[each] for each in ("id", "name") if given.get(each)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("href") and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        if tag == "img" and not given.get("alt"):
            self.bare.append(given.get("src"))


@pytest.fixture(scope="module")
def pages():
    """Address -> what is in it."""
    return {
        "/" + str(path.relative_to(SITE)).removesuffix("index.html"): Parsed(path.read_text())
        for path in sorted(SITE.rglob("*.html"))
    }


def target(address):
    path = unquote(address)
    return SITE / (path.lstrip("/") + ("index.html" if path.endswith("/") else ""))


def test_links_and_anchors_lead_somewhere(pages):
    broken = []
    for address, page in pages.items():
        for link in [*page.links, *page.loaded]:
            if urlsplit(link).scheme or address == "/404.html":  # its links begin with the address of the site
                continue
            parts = urlsplit(urljoin(address, link))
            found = pages.get(parts.path)
            if found is None and not target(parts.path).is_file():
                broken.append((address, link))
            elif found is not None and parts.fragment and unquote(parts.fragment) not in found.anchors:
                broken.append((address, link))
    assert broken == []


def test_a_page_loads_nothing_from_other_hosts(pages):
    foreign = [(address, each) for address, page in pages.items() for each in page.loaded if urlsplit(each).netloc]
    assert [each for each in foreign if each[0] != "/404.html"] == []


def test_images_have_descriptions(pages):
    assert [(address, page.bare) for address, page in pages.items() if page.bare] == []


def test_public_names_have_a_place(pages):
    spec = __import__("importlib.util").util.spec_from_file_location("public", ROOT / "docs" / "site" / "public.py")
    public = __import__("importlib.util").util.module_from_spec(spec)
    spec.loader.exec_module(public)
    anchors = set().union(*(page.anchors for address, page in pages.items() if address.startswith("/reference/")))
    names = {f"{module}.{name}": path for module, known in public.public().items() for name, path in known.items()}
    assert [name for name, path in names.items() if name not in anchors and path not in anchors] == []
    methods = [name for name in dir(__import__("cedar").Pipeline) if name[0] != "_"]
    shown = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith("cedar.pipeline.")}
    assert set(methods) - shown <= {"given", "node", "subject"}


def test_llms_txt_lists_every_page(pages):
    listed = set(re.findall(r"\]\(https://[^/]+(/[^)]*)\)", (SITE / "llms.txt").read_text()))
    assert {address for address in pages if address.endswith("/")} == listed


# ---- in a browser ----------------------------------------------------------------------------------------------------

SHOWN = ["", "tutorial/", "reference/", "reference/pipeline/", "reference/cli/", "recipes/", "columns/", "benchmarks/"]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make docs-test")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def opened(browser, address):
    """Open a page; afterwards, none of its scripts has failed and no request went elsewhere."""
    made, wrong = [], []

    def open_page(path, **options):
        page = browser.new_page(**options)
        made.append(page)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.on(
            "request", lambda request: None if request.url.startswith((address, "data:")) else wrong.append(request.url)
        )
        page.goto(address + path)
        return page

    yield open_page
    for page in made:
        page.close()
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", SHOWN)
def test_axe_finds_nothing(opened, path, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make docs-test")
    page = opened(path, color_scheme=scheme, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []


@pytest.mark.parametrize("path", SHOWN)
def test_a_phone_scrolls_one_way(opened, path):
    page = opened(path, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_search_finds_pages_and_names(opened):
    page = opened("", viewport={"width": 1280, "height": 900})
    for query, expected in (("shuffle", "shuffle"), ("read_parquet", "read_parquet"), ("resume", "resume")):
        page.keyboard.press("f")  # a key of the theme
        page.keyboard.type(query)
        first = page.locator(".md-search-result__item a").first
        first.wait_for(timeout=20_000)
        page.wait_for_function("q => location.search.includes(q) || true", arg=query)
        page.locator(f".md-search-result__item a[href*='{expected}' i]").first.wait_for(timeout=20_000)
        page.keyboard.press("Escape")
        page.reload()


def test_the_keyboard_reaches_the_content(opened):
    page = opened("tutorial/", viewport={"width": 1280, "height": 900})
    page.keyboard.press("Tab")
    assert "md-skip" in page.evaluate("document.activeElement.className")
    page.keyboard.press("Enter")
    assert "#" in page.url
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.closest('header, nav, article')?.tagName"))
    assert "ARTICLE" in reached or "NAV" in reached

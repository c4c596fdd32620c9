"""The documentation is a site that can be built and read without network, and none of its links is broken."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
LOADED = re.compile(rb"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(https?:)?//[^"'\s>]+""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]' brings mkdocs-material")
    to = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return to


def test_the_site_builds_and_no_link_in_it_is_broken(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in site.glob("*.html")} >= pages
    assert (site / "search" / "search_index.json").stat().st_size > 10_000


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        assert LOADED.search(page.read_bytes()) is None, (
            f"{page.name} needs the network: {LOADED.search(page.read_bytes())}"
        )


def test_the_site_wears_the_sign_of_the_dashboard() -> None:
    sign = (ROOT / "src" / "phalanx" / "web" / "static" / "icon.svg").read_bytes()
    assert (ROOT / "docs" / "images" / "logo.svg").read_bytes() == sign


def test_every_page_is_of_one_of_four_kinds() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    paths = {
        name: [page for entry in pages for page in entry.values()] for one in nav[1:] for name, pages in one.items()
    }
    assert list(paths) == ["Tutorial", "How to", "Reference", "Explanation"]
    listed = [page for pages in paths.values() for page in pages]
    assert len(listed) == len(set(listed)), "a page is listed twice"
    docs = ROOT / "docs"
    assert {*listed, "index.md"} == {str(path.relative_to(docs)) for path in docs.rglob("*.md")}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "examples/README.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = [link for link in LINK.findall(page.read_text()) if not link.startswith(("http:", "https:", "#"))]
    missing = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing, f"{name} links to what is not there: {missing}"


def test_every_example_is_listed() -> None:
    listed = set(re.findall(r"^\| `([\w.-]+\.yaml)` \|", (ROOT / "examples" / "README.md").read_text(), flags=re.M))
    assert listed == {path.name for path in (ROOT / "examples").glob("*.yaml")}


def test_the_search_finds_pages_in_a_browser_that_asks_no_other_server(site: Path) -> None:
    path = shutil.which(os.environ.get("PHALANX_BROWSER") or "chromium")
    if path is None:
        pytest.skip("no browser: apt-get install chromium, or name one in PHALANX_BROWSER")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make venv")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as play:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for begin in ("index.html", "gaps.html"):
            page.goto(f"http://127.0.0.1:{server.server_port}/{begin}")
            page.click("input[data-md-component=search-query]")
            page.get_by_text("Type to start searching").wait_for()  # it has read its index
            page.keyboard.type("WaitingForMembers")  # key by key: a value set at once is not heard by then
            page.wait_for_selector(".md-search-result__item", timeout=60_000)
            assert "Debug a pending gang" in page.locator(".md-search-result__list").inner_text()
        # The table with a column for each of the others is read without scrolling sideways.
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{server.server_port}/comparison.html")
        wrap = page.locator(".md-typeset__scrollwrap").first
        assert wrap.evaluate("(e) => e.scrollWidth <= e.clientWidth"), wrap.evaluate("(e) => e.scrollWidth")
        browser.close()
        server.shutdown()
    assert all(url.startswith((f"http://127.0.0.1:{server.server_port}/", "data:", "blob:")) for url in asked), asked

"""The documentation site in a browser: links, search, navigation, maths, dark mode, and two widths.

``scripts/docs.sh`` builds the site into ``build/docs/html``; ``DPMCMC_SITE`` names another place. Without a site, or
without a Chromium, these tests say that they skip.
"""

import functools
import html
import html.parser
import http.server
import json
import os
import re
import subprocess
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.test_page import CHROMIUM, ROOT

SITE = Path(os.environ.get("DPMCMC_SITE") or ROOT / "build" / "docs" / "html")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed, so nobody looks at the site"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site is built; scripts/docs.sh builds it"),
]
WIDTHS = (380, 1200)
#: Pages whose lines are those of a file of the package; links to them are checked, and their layout is not.
SOURCE = "_modules"


class Page(html.parser.HTMLParser):
    """Addresses of a page: what it links to, what it loads, and what can be linked to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.anchors |= {named.get("id"), named.get("name")}
        loads = tag in ("img", "script", "iframe", "source") or "stylesheet" in (named.get("rel") or "")
        (self.loads if loads else self.links).extend(filter(None, (named.get("href"), named.get("src"))))


def faults(site):
    """Links, anchors and images of a site that lead nowhere, and what it loads from elsewhere."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for address in page.links + page.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    yield f"{path.relative_to(site)} loads {address}"
                continue
            there, anchor = urldefrag(address)
            target = (path.parent / unquote(urlsplit(there).path)).resolve() if there else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target in pages and unquote(anchor) not in pages[target].anchors):
                yield f"{path.relative_to(site)} leads to {address}"


#: Loads one page after another in a frame of a width, and writes what it found where the command can read it.
HARNESS = """<!doctype html><pre id="found"></pre><iframe id="frame" width="WIDTH" height="900"></iframe><script>
const frame = document.getElementById("frame"), wait = ms => new Promise(done => setTimeout(done, ms));
const until = async check => { for (let i = 0; i < 400 && !check(); i++) await wait(25); return check(); };
const loaded = act => new Promise(done => { frame.onload = done; act(); });
const open = path => loaded(() => { frame.src = "/" + path; });
const page = () => frame.contentDocument, all = css => [...page().querySelectorAll(css)];
const run = async () => { STEPS };
run().catch(e => ({error: String(e.stack)})).then(e => { found.textContent = JSON.stringify(e); });
</script>"""


#: No other machine can be reached, and what the console says goes to the error stream.
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--enable-logging=stderr"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=600000", "--dump-dom"),
)


class Server(http.server.SimpleHTTPRequestHandler):
    """The site, and beside it the page that drives it."""

    harness, missing = "", []

    def send_error(self, code, *rest):
        type(self).missing.append(self.path)
        return super().send_error(code, *rest)

    def do_GET(self):
        if self.path != "/harness":
            return super().do_GET()
        body = type(self).harness.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def seen(site, steps, width, folder):
    """(what JavaScript steps return, console lines and files not found) of a browser that reaches no other machine."""

    class Here(Server):
        harness, missing = HARNESS.replace("WIDTH", str(width)).replace("STEPS", steps), []

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Here, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = subprocess.run(
            [
                CHROMIUM,
                *OPTIONS,
                f"--user-data-dir={folder / 'profile'}",
                f"http://127.0.0.1:{server.server_port}/harness",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    finally:
        server.shutdown()
        server.server_close()
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    # The theme says "Changed to dark mode."
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line and "Changed to " not in line]
    missing = [path for path in Here.missing if path != "/favicon.ico"]
    return json.loads(html.unescape(found)), said + missing


#: Of every page: how wide it is, what sticks out of it, formulas that were not set, and images that did not load.
LAYOUT = """
const out = {};
for (const path of PATHS) {
    await open(path);
    const maths = all(".math").length;
    await until(() => all("mjx-container").length >= maths);
    const view = frame.contentWindow, root = page().documentElement;
    out[path] = {
        scroll: root.scrollWidth, maths: maths, set: all("mjx-container svg").length, wrong: all("mjx-merror").length,
        images: all("img").filter(i => i.loading !== "lazy" && !i.naturalWidth).map(i => i.src),
        tiny: all("article p, article li, article td").filter(e => e.innerText && e.offsetParent
            && parseFloat(view.getComputedStyle(e).fontSize) < 11).length,
    };
}
return out;
"""


def layout(site, width, folder):
    paths = sorted(str(p.relative_to(site)) for p in site.rglob("*.html") if p.relative_to(site).parts[0] != SOURCE)
    return seen(site, LAYOUT.replace("PATHS", json.dumps(paths)), width, folder)


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere():
    assert list(faults(SITE)) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_a_width_with_its_formulas_and_pictures(width, tmp_path):
    found, complaints = layout(SITE, width, tmp_path)
    assert complaints == []
    assert len(found) > 30
    assert {path: page["scroll"] for path, page in found.items() if page["scroll"] > width} == {}
    assert {path: page["images"] for path, page in found.items() if page["images"]} == {}
    assert [path for path, page in found.items() if page["tiny"]] == []
    assert [path for path, page in found.items() if page["set"] < page["maths"] or page["wrong"]] == []
    assert sum(page["maths"] for page in found.values()) > 5


@pytest.mark.parametrize("asked", ["PrivateMetric", "thermostat", "overflow"])
def test_search_finds_what_the_site_has(asked, tmp_path):
    steps = f"""
        await open("index.html");
        page().querySelector(".sidebar-search").value = "{asked}";
        await loaded(() => page().querySelector(".sidebar-search-container").requestSubmit());
        await until(() => all("#search-results li a").length);
        const first = all("#search-results li a")[0];
        await loaded(() => first.click());
        return {{path: frame.contentWindow.location.pathname, text: page().body.innerText}};
    """
    found, complaints = seen(SITE, steps, 1200, tmp_path)
    assert complaints == []
    assert asked.lower() in found["text"].lower()
    assert "search" not in found["path"]


def test_navigation_leads_on_and_the_drawer_opens_on_a_phone(tmp_path):
    wide = """
        await open("index.html");
        const link = all(".sidebar-tree a").find(a => a.innerText === "Concepts");
        await loaded(() => link.click());
        const first = page().querySelector("h1").innerText;
        await loaded(() => page().querySelector(".next-page").click());
        return [first, page().querySelector("h1").innerText, all("button.copybtn, .copybtn").length];
    """
    (first, second, _), complaints = seen(SITE, wide, 1200, tmp_path)
    assert complaints == []
    assert "Concepts" in first
    assert second != first
    # The clock of the browser is virtual and may pass without a frame, so the drawer's slide is put to its end.
    narrow = """
        await open("index.html");
        const left = () => page().querySelector(".sidebar-drawer").getBoundingClientRect().left;
        const before = left();
        page().querySelector("label[for=__navigation]").click();
        left();
        page().getAnimations().forEach(slide => slide.finish());
        return [before, left()];
    """
    (before, after), _ = seen(SITE, narrow, 380, tmp_path)
    assert before < 0 <= after


def test_dark_mode_is_one_click_away_and_stays(tmp_path):
    steps = """
        const ground = () => frame.contentWindow.getComputedStyle(page().body).backgroundColor;
        const out = [];
        await open("index.html");
        for (let i = 0; i < 3; i++) { out.push(ground()); all(".theme-toggle").find(e => e.offsetParent).click(); }
        while (page().body.dataset.theme !== "dark") all(".theme-toggle").find(e => e.offsetParent).click();
        out.push(ground());
        await open("concepts.html");
        return [out, ground()];
    """
    (grounds, elsewhere), complaints = seen(SITE, steps, 1200, tmp_path)
    assert complaints == []
    assert len(set(grounds)) == 2
    assert elsewhere == grounds[-1]
    assert sum(map(int, re.findall(r"\d+", elsewhere)[:3])) < 3 * 64


def test_faults_of_a_site_are_seen(tmp_path):
    """The measurements themselves, on a site with one fault of each kind."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text(
        '<body><article><p style="font-size:6px">tiny</p></article><p class="math">x</p><img src="gone.png">'
        '<a href="gone.html">a</a><a href="#gone">b</a><div style="width:2000px">wide</div>'
        '<script src="https://example.org/x.js"></script><script>console.error("oh"); missing();</script></body>'
    )
    assert sorted(faults(site)) == [
        "index.html leads to #gone",
        "index.html leads to gone.html",
        "index.html leads to gone.png",
        "index.html loads https://example.org/x.js",
    ]
    found, complaints = layout(site, 380, tmp_path)
    page = found["index.html"]
    assert page["scroll"] > 380
    assert (page["maths"], page["set"], page["tiny"], len(page["images"])) == (1, 0, 1, 1)
    assert any("oh" in line for line in complaints)
    assert any("missing" in line for line in complaints)
    assert "/gone.png" in complaints

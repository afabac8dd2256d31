"""The documentation site: no link is broken, and nothing is loaded from elsewhere.

``scripts/docs.sh`` builds the site into ``build/docs/html``; ``DPMCMC_SITE`` names another place. Without a site, this
test says that it skips.
"""

import html
import html.parser
import os
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("DPMCMC_SITE") or ROOT / "build" / "docs" / "html")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site is built; scripts/docs.sh builds it"),
]


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


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere():
    assert list(faults(SITE)) == []

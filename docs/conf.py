"""Settings of the documentation site. ``scripts/docs.sh`` builds it into ``build/docs``."""

import os
import re
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILD = ROOT / "build" / "docs"

project, author = "dpmcmc", "The dpmcmc maintainers"
version = release = version_of("dpmcmc")
project_copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
]
nitpicky = True
# Folders have their place in ``index.md``: a page without a place is a warning, a folder without pages is none.
suppress_warnings = ["toc.empty_glob"]
exclude_patterns = ["images"]

# Pages are Markdown that a forge shows too. Headings have the anchors that a forge gives them.
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence", "attrs_block"]
myst_heading_anchors = 4

# A page with a Jupytext header is run, in a process of its own; an error, or a warning that it prints, fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "executed")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The reference: what is public, in the order of its file.
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"dpmcmc {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
templates_path = []
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# MathJax in one file, its glyphs included, from a package: the site asks no other machine for anything.
_mathjax = find_spec("sphinx-mathjax-offline").submodule_search_locations[0]
html_static_path.append(os.path.join(_mathjax, "static", "mathjax", "tex-svg.js"))
mathjax_path = "tex-svg.js"

#: Pages at the top of the repository, and where the site shows them.
TOP = {
    "README.md": "index",
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
    "CODE_OF_CONDUCT.md": "project/code_of_conduct",
}
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def with_links_of(page: str, text: str, folder: Path) -> str:
    """Return the text of a page whose links are relative to a folder, with links that hold on the site."""
    places = {ROOT / name: DOCS / f"{place}.md" for name, place in TOP.items()}

    def there(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        target = places.get(target, target)
        return f"]({os.path.relpath(target, (DOCS / page).parent)}{link[2] or ''})"

    return _LINK.sub(there, text)


def on_source_read(app, docname: str, content: list[str]) -> None:
    """Show the pages of the top of the repository, and lead links to them there."""
    shown = {place: ROOT / name for name, place in TOP.items() if place != "index"}.get(docname)
    if shown is None:
        content[0] = with_links_of(docname, content[0], (DOCS / docname).parent)
    else:
        app.env.note_dependency(str(shown))
        content[0] = with_links_of(docname, shown.read_text(encoding="utf-8"), ROOT)


def setup(app) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("source-read", on_source_read)

"""Settings of the documentation site. ``scripts/docs.sh`` builds it into ``build/docs``."""

import os
import pydoc
import re
import sys
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

from jupyter_cache import get_cache

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
smartquotes_action = "D"  # dashes, and no quotes: names and formulas have primes
exclude_patterns = ["images"]

# Pages are Markdown that a forge shows too. Headings have the anchors that a forge gives them.
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence", "attrs_block"]
myst_heading_anchors = 4

# A page with a Jupytext header is run, in a process of its own; an error, or a warning that it prints, fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "executed")
get_cache(nb_execution_cache_path).list_cache_records()  # made once, before several processes read pages
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for cells of a shell
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True

# The reference: what is public, in the order of its file.
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False
maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
pygments_dark_style = "github-dark"
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
    "CODE_OF_CONDUCT.md": "project/conduct",
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


def on_missing_reference(app, env, node, contnode):
    """Resolve a name without its module, where one entry has it; show a type without an entry as it is written."""
    if node.get("refdomain") != "py":
        return None
    if "refexplicit" not in node or ("." in node["reftarget"] and pydoc.locate(node["reftarget"])):
        return contnode  # a type of a signature, or a base of a class
    domain = env.get_domain("py")
    fits = {domain.objects[name].node_id: name for name in domain.objects if name.endswith("." + node["reftarget"])}
    if len(fits) != 1:
        return None
    ((_, name),) = fits.items()
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], name, node, contnode)


def on_skip_member(app, what, name, member, skip, options):
    """Leave out fields of a NamedTuple, which its docstring lists, and methods that scikit-learn adds."""
    return skip or "Alias for field number" in (getattr(member, "__doc__", None) or "") or name.endswith("_request")


def on_signature(app, what, name, obj, options, signature, returns):
    """Show a constrained argument by its type: its docstring says the constraint."""
    plain = re.compile(r"~?(?:typing\.)?Annotated\[((?:[^\[\],]|\[[^\[\]]*\])+)(?:, ~?[\w.]+\([^()]*\))+\]")
    return signature and plain.sub(r"\1", signature), returns and plain.sub(r"\1", returns)


def on_page(app, pagename, templatename, context, doctree) -> None:
    """Leave out links from source to the reference: viewcode knows one name of a module, and entries have several."""
    if pagename.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def setup(app) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("source-read", on_source_read)
    app.connect("missing-reference", on_missing_reference)
    app.connect("autodoc-skip-member", on_skip_member)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("html-page-context", on_page)

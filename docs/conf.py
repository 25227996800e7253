"""Sphinx configuration of the book. ``nox -s docs`` is how it is built."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
BUILD = HERE / "_build"
sys.path[:0] = [str(HERE), str(ROOT / "src")]

from _ext import cache_key  # noqa: E402

# -- The project ---------------------------------------------------------------------------------
project = "Gradient Checkpointing in JAX"
author = "The rematax maintainers"
project_copyright = "2026, the rematax maintainers. Apache-2.0"
version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)[1]
release = version

# -- What the pages' kernels see: this interpreter, this source, nobody's personal settings ------
os.environ.update(
    JUPYTER_PREFER_ENV_PATH="1",
    REMATAX_BOOK="build",  # every id once
    REMATAX_DATA=str(HERE / "_data"),
    IPYTHONDIR=str(BUILD / "ipython"),
    MPLCONFIGDIR=str(BUILD / "matplotlib"),
    PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
)

# -- Execution -----------------------------------------------------------------------------------
nb_execution_mode = "cache"
nb_execution_timeout = int(os.environ.get("REMATAX_CELL_SECONDS", "120"))
nb_execution_in_temp = True
nb_execution_cache_path = str(
    BUILD / "execution" / cache_key.execution_key(source=ROOT / "src", data=HERE / "_data")
)
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_render_markdown_format = "myst"

# -- Sphinx --------------------------------------------------------------------------------------
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "_ext.api_complete",
    "_ext.execution",
    "_ext.ledger",
    "_ext.mathml",
    "_ext.notebooks",
    "_ext.outside_names",
    "_ext.theme",
]
root_doc = "index"
exclude_patterns = ["_build", "_ext", "_data"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [
    # Words of docstrings' type notes that are no Python names.
    ("py:class", r"optional|callable|array|pytree|scalar|dtype|.*\|.*"),
    # autodoc names a base class by where it stands, not by its public name, rematax.Schedule.
    ("py:class", r"rematax\._schedules\.Schedule"),
]
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings say more: shape, unit, and what a default costs
autodoc_member_order = "bysource"
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# -- HTML ----------------------------------------------------------------------------------------
html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_favicon = "_static/icon.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for file://
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = ", ".join(
    f"div.{block} pre" for block in ("cell_input", "highlight-python", "highlight-bash", "doctest")
)

html_sidebars = {"**": ["sidebar-head.html", "sbt-sidebar-nav.html"]}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_persistent": [],  # or there would be a second search button
    "home_page_in_toc": False,
    "show_toc_level": 2,
    "use_download_button": False,  # _ext/notebooks.py offers the executed notebook
    "use_fullscreen_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
repository = os.environ.get("GITHUB_REPOSITORY")
if repository:  # known in the repository's own CI alone
    html_theme_options |= {
        "repository_url": f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}",
        "path_to_docs": "docs",
        "use_edit_page_button": True,
        "use_issues_button": True,
    }

"""Sphinx: the site. ``python -m docs.site`` builds it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import plotly  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import hetero_lab as hl  # noqa: E402
from docs import pages  # noqa: E402

project = "hetero-lab"
author = "the hetero-lab contributors"
copyright = author
release = version = hl.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "outputs", "pictures"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "none"  # the numpy docstrings say it in words
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False  # arguments that are explained together stay together
add_module_names = False

html_theme = "furo"
html_title = f"hetero-lab {release}"
html_static_path = ["_static"]
html_extra_path = ["outputs/agents"]  # llms.txt and SKILL.md
html_css_files = ["site.css"]
html_js_files = [("plotly.min.js", {"priority": 100}), "site.js"]
html_show_sphinx = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Write the pages that are made: course, gallery, reference."""
    app.connect("source-read", pages.mark_searched)
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    shutil.copyfile(source, HERE / "_static" / "plotly.min.js")
    pages.write_course()
    pages.write_gallery()
    pages.write_reference()

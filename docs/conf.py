"""Configuration of Sphinx for the documentation site; `bash launch/docs.sh` builds it."""

import importlib.metadata
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

project = "ag_jax"
smartquotes = False  # docstrings name flags such as --config without backquotes
author = "the authors of ag_jax"
copyright = f"{author}. Licence: Apache-2.0"
release = version = importlib.metadata.version("ag_jax")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "site_builder"]
exclude_patterns = ["site_builder", "search.md"]  # site_builder/links.py, OTHERS
nitpicky = True
# Inventories of other projects cannot be read without a network. Types of arguments that the page of the API does not
# explain are shown without a link.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(jax|jaxlib|flax|optax|numpy|np|jnp|orbax|grain|ml_collections|absl|etils|epath|collections|typing)(\..*)?",
    ),
    ("py:class", r"(?!ag_jax\.).*"),
    ("py:class", r"ag_jax\..*"),
]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # sections of README.md that begin at level 3

nb_execution_mode = "off"  # notebooks/execute.py stores their outputs
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = "ag_jax"
html_favicon = "site_builder/static/favicon.svg"  # the target of [Next]
html_static_path = ["site_builder/static"]
html_css_files = ["site.css"]
html_js_files = ["accessible.js"]
html_copy_source = False
html_search_scorer = str(pathlib.Path(__file__).parent / "site_builder" / "scorer.js")
html_show_sphinx = False
highlight_language = "text"
copybutton_selector = (
    ":is(.highlight-bash, [class*=highlight-py], .highlight-ipython3, .highlight-bibtex, .highlight-yaml) pre"
)
pygments_style = "a11y-high-contrast-light"  # of accessible-pygments, which Furo needs
pygments_dark_style = "a11y-high-contrast-dark"

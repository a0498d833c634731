"""Sphinx extension of the documentation site: generated pages, links that leave `docs/`, and docstrings.

Before Sphinx reads the pages, `pages.write` writes the generated ones to `docs/site/`, which git ignores. Pages in
`docs/` stay as they are; their links are rewritten while they are read.
"""

import hashlib
import os
import pathlib
from typing import Any

from site_builder import docstrings, links, pages

DOCS = pathlib.Path(__file__).resolve().parent.parent
ADDRESS = "AG_JAX_REPOSITORY"  # environment variable: where the files of the repository can be read on the web


def setup(app: Any) -> dict[str, Any]:
    """Register the hooks. Called by Sphinx."""
    address = os.environ.get(ADDRESS, "")
    site = links.Site(DOCS, address)
    sources = b"".join(path.read_bytes() for path in sorted((DOCS / "site_builder").glob("*.py")))
    # Sphinx reads all pages again if this value is not that of the build before.
    app.add_config_value("site_builder_state", f"{address} {hashlib.sha256(sources).hexdigest()}", "env", types=[str])
    app.connect("builder-inited", lambda app: pages.write(site))
    app.connect("source-read", lambda app, name, source: _rewrite(site, name, source))
    app.connect("autodoc-process-docstring", docstrings.process)
    return {"parallel_read_safe": True}


def _rewrite(site: links.Site, name: str, source: list[str]) -> None:
    """Rewrite the links of a page that was written by hand; generated pages have links of the site already."""
    if not name.startswith(f"{links.GENERATED}/"):
        source[0] = site.rewritten(source[0], DOCS, DOCS)

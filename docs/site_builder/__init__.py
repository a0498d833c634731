"""Sphinx extension of the documentation site: generated pages, links that leave `docs/`, and docstrings.

Before Sphinx reads the pages, `pages.write` writes the generated ones to `docs/site/`, which git ignores. Pages in
`docs/` stay as they are; their links are rewritten while they are read.
"""

import hashlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

from site_builder import commands, docstrings, links, pages

DOCS = pathlib.Path(__file__).resolve().parent.parent
ADDRESS = "AG_JAX_REPOSITORY"  # environment variable: where the files of the repository can be read on the web


def setup(app: Any) -> dict[str, Any]:
    """Register the hooks. Called by Sphinx."""
    address = os.environ.get(ADDRESS, "")
    site = links.Site(DOCS, address)
    sources = b"".join(path.read_bytes() for path in sorted((DOCS / "site_builder").glob("*.py")))
    # Sphinx reads all pages again if this value is not that of the build before.
    app.add_config_value("site_builder_state", f"{address} {hashlib.sha256(sources).hexdigest()}", "env", types=[str])
    app.add_lexer("bash", commands.CommandLexer)
    for directive in pages.DIRECTIVES.values():
        app.add_object_type(directive, directive, objname="config setting")
    app.connect("builder-inited", lambda app: pages.write(site))
    app.connect("source-read", lambda app, name, source: _rewrite(site, name, source))
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("build-finished", _write_viewer)
    return {"parallel_read_safe": True}


def _rewrite(site: links.Site, name: str, source: list[str]) -> None:
    """Rewrite the links of a page that was written by hand; generated pages have links of the site already."""
    if not name.startswith(f"{links.GENERATED}/"):
        source[0] = site.rewritten(source[0], DOCS, DOCS)


def _write_viewer(app: Any, exception: Exception | None) -> None:
    """Run the command of the first page that writes the viewer in its frame, with the file in the site's `_static`."""
    if exception is None and app.builder.format == "html":
        (command,) = re.findall(
            r"^ag-jax (inspect .*?) --html=viewer.html$", (DOCS / "index.md").read_text(), re.M | re.S
        )
        file = pathlib.Path(app.outdir) / "_static" / "viewer.html"
        words = [sys.executable, "-m", "ag_jax.main", *shlex.split(command.replace("\\\n", "")), f"--html={file}"]
        subprocess.run(words, cwd=DOCS.parent, check=True, stdout=subprocess.DEVNULL)

"""Links of a Markdown page on the site: to other pages of the site, or to files of the repository."""

import dataclasses
import os
import pathlib
import re

GENERATED = "site"  # folder of the generated pages in docs/
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_NAMED = re.compile(r"\[[\w/]+\.(?:md|ipynb)\](?=\([^()\s]+\.(?:md|ipynb)[#)])")  # a link whose text is a page's path
_FOLDER = re.compile(r"\[([^\[\]]*)\]\(([^():#\s]+/)\)")  # a link to a folder, which cannot be copied into the site
# Fenced code, code blocks and inline code, in which nothing is a link.
_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)`*$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)", re.M | re.S)
# Files outside docs/, with the page that is made of them, and docs/search.md, because Sphinx writes the results of its
# search to search.html.
OTHERS = {
    "README.md": "start",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "examples/quickstart/README.md": "example",
    "docs/search.md": "searching",
}


@dataclasses.dataclass(frozen=True)
class Site:
    """The documentation site, for whose pages links of Markdown files are rewritten.

    docs: the folder `docs/` of the repository.
    address: where the files of the repository can be read on the web; "" to copy linked files into the site.
    """

    docs: pathlib.Path
    address: str

    def rewritten(self, text: str, written_in: pathlib.Path, shown_in: pathlib.Path) -> str:
        """Return a page's Markdown with its links rewritten for the site.

        text: Markdown of the page.
        written_in: folder that the links of the page are relative to.
        shown_in: folder of the page on the site.
        """
        parts, end = [], 0
        for code in _CODE.finditer(text):
            parts += [self._linked(text[end : code.start()], written_in, shown_in), code[0]]
            end = code.end()
        # Code inside the text of a link separates `[` from `](`, which does no harm: only the latter is looked for.
        return "".join([*parts, self._linked(text[end:], written_in, shown_in)])

    def _linked(self, text: str, written_in: pathlib.Path, shown_in: pathlib.Path) -> str:
        if not self.address:
            text = _FOLDER.sub(r"\1", text)
        text = _NAMED.sub("[]", text)  # MyST shows the title of the page
        return _LINK.sub(lambda found: f"]({self._target(found[1], written_in, shown_in)})", text)

    def _target(self, link: str, written_in: pathlib.Path, shown_in: pathlib.Path) -> str:
        """Return the address on the site for a link."""
        path, _, anchor = link.partition("#")
        if ":" in link or not path:
            return link
        root, target = self.docs.parent, (written_in / path).resolve()
        if not target.is_relative_to(root):
            raise ValueError(f"the link {link} leads out of the repository")
        hashed = f"#{anchor}" if anchor else ""
        if (name := target.relative_to(root).as_posix()) in OTHERS:
            page = self.docs / GENERATED / f"{OTHERS[name]}.md"
        elif target.suffix == ".ipynb":
            page = self.docs / GENERATED / "notebooks" / target.name
        elif target.is_relative_to(self.docs) and target.suffix in (".md", ".png"):
            page = target
        else:
            return self.of_file(name, shown_in)
        return f"{pathlib.PurePath(os.path.relpath(page, shown_in)).as_posix()}{hashed}"

    def of_file(self, path: str, shown_in: pathlib.Path) -> str:
        """Return the link to a file of the repository, such as `configs/quickstart.py`, on a page in `shown_in`."""
        if self.address:
            return f"{self.address.rstrip('/')}/{path}"
        return pathlib.PurePath(os.path.relpath(self.docs.parent / path, shown_in)).as_posix()

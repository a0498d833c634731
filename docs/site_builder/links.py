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
# Sections of README.md, with the page of the site that each is on; its first lines are on the first page, too.
SECTIONS = {
    "Two commands": "start",
    "What you can do": "start",
    "GPUs and Cloud TPUs": "start",
    "Cost of guidance": "cost",
    "Configs of the papers": "papers",
    "Terms": "glossary",
    "Development": "contributing",
}
# Further files with the page that is made of them. Sphinx writes the results of its search to search.html.
OTHERS = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing", "docs/search.md": "searching"}


def places(readme: str) -> dict[str, str]:
    """Return the page of the site for each anchor of README.md.

    Raises ValueError for a section without a page.
    """
    found, page = {}, "start"
    for hashes, title in re.findall(r"^(##+) (.*)$", _CODE.sub("", readme), re.M):
        if hashes == "##":
            if title not in SECTIONS:
                raise ValueError(f"README.md has a new section {title!r}: give it a page in {__file__}, SECTIONS")
            page = SECTIONS[title]
        found[slug(title)] = page
    return found


def slug(title: str) -> str:
    """Return the anchor of a heading, as forges and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a link of a Markdown page leads on the site.

    docs: the folder `docs/` of the repository.
    address: where the files of the repository can be read on the web; "" to copy linked files into the site.
    anchors: page of the site for each anchor of README.md.
    """

    docs: pathlib.Path
    address: str
    anchors: dict[str, str]

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
        if target == root / "README.md":
            if anchor and anchor not in self.anchors:
                raise ValueError(f"README.md has no section {anchor!r}, to which a page links")
            page = self.docs / GENERATED / f"{self.anchors[anchor] if anchor else 'start'}.md"
            # A section with a page of its own is the whole page, whose title may differ.
            hashed = hashed if page.stem == "start" else ""
        elif (name := target.relative_to(root).as_posix()) in OTHERS:
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

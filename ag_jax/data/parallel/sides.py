"""Read the source or the target texts of a parallel corpus from a file of lines or of <seg> elements.

The name of the file says which it is:

    *.xml, *.sgm, *.sgml   the texts of the <seg> elements, in order (test sets of IWSLT and WMT)
    train.tags.*           a line each; lines of tags, which begin with "<", are no text (training sets of IWSLT)
    any other name         a line each

Each may be compressed, with a further ending such as .gz. A name with ".tok." or ".bpe." in it holds tokenised text,
which `ag_jax.data.parallel.tokenised` restores.

Lines end at line feeds, with or without a carriage return before them, and not at other line separators of Unicode. A
carriage return inside a line becomes a space. Spaces around a text are removed.
"""

import html
import pathlib
import re
from collections.abc import Iterator

from ag_jax.data.parallel import tokenised
from ag_jax.data.records import files, formats

SEGMENTED = (".xml", ".sgm", ".sgml")
# Breton texts end in .br, as do files compressed with Brotli; the latter are not UTF-8, which is noticed, too.
_NOT_LINES = {*formats.NOT_TEXT, *formats.READERS, files.ARCHIVE} - {".br", ".txt", *SEGMENTED}
_SEGMENT_TAG = re.compile(r"<(/?)seg\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z]")  # the beginning of a line of markup
_REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w+);")


def lines(file: pathlib.Path) -> Iterator[str | None]:
    """Yield the texts of a file, one for each line or <seg> element; None stands for a line of markup.

    Raises ValueError, with the file and the number of the line, for what is not UTF-8, and for files that hold no
    lines of plain text.
    """
    ending = files.kind(file.name)[0]
    if ending in _NOT_LINES:
        raise ValueError(
            f"{file} is not read as one side of a parallel corpus: expected lines of plain text, or the segments of "
            f"{', '.join(SEGMENTED)}, got {ending}; a .tsv or .jsonl file that holds both sides needs no target file, "
            "other files must be converted"
        )
    restore = tokenised.restoring(file)
    has_tags = file.name.startswith("train.tags.")
    with files.decompressed(file) as stream:
        if ending in SEGMENTED:
            texts = _segments(formats.whole(stream, str(file)), str(file))
        else:
            texts = (one_line(line) for _, line in formats.lines(stream, str(file)))
        for text in texts:
            is_markup = has_tags and _TAG.match(text)
            yield None if is_markup else restore(text) if restore and text else text


def one_line(text: str) -> str:
    """Return a text of several lines as one line, without spaces around it."""
    return re.sub(r"\s*[\r\n]\s*", " ", text.strip())


def _segments(text: str, place: str) -> Iterator[str]:
    """Yield the texts of the <seg> elements of a file's text; the rest of it need not be well-formed XML.

    The files of WMT have ampersands and attributes that no XML parser accepts. Character references, such as &amp;, are
    replaced, and a text of several lines becomes one line.

    Raises ValueError if there is no segment, or one that does not end.
    """
    tags = list(_SEGMENT_TAG.finditer(text))
    if not tags:
        raise ValueError(f"{place}: expected <seg> elements with the texts, got none; name a file of plain lines .txt")
    misplaced = [tag for number, tag in enumerate(tags) if bool(tag[1]) != bool(number % 2)]
    if misplaced or len(tags) % 2:
        tag = misplaced[0] if misplaced else tags[-1]
        raise ValueError(
            f"{place}, line {1 + text.count(chr(10), 0, tag.start())}: expected every <seg> to end with </seg> before "
            f"the next one begins, got {tag[0]!r}; mend the file or copy it anew"
        )
    for begin, end in zip(tags[::2], tags[1::2], strict=True):
        yield one_line(_REFERENCE.sub(lambda match: html.unescape(match[0]), text[begin.end() : end.start()]))

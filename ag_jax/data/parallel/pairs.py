"""Read pairs of a text and its translation, one after another, without holding them all in memory.

    source and target   files, globs or lists of these with commas: the first file of the source goes with the first
                        file of the target, line by line, and so on; `sides.py` describes the files. The files that two
                        globs match go together in the order of their names, which must differ in the same way
    source alone        files whose records have both sides: .jsonl or .ndjson, with a field each, also within an object
                        "translation" as Hugging Face writes pairs, or .tsv, with a column each. The first line of a
                        .tsv has the names of the columns; without these names in it, a .tsv must have two columns,
                        source and target. Quotes have no meaning in it

All may be compressed, as in train.en.gz. `alignments.py` describes files with the word alignments of the pairs.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ag_jax.data import local
from ag_jax.data.checksums import KnownContent
from ag_jax.data.config import DataConfig
from ag_jax.data.parallel import alignments, globs, sides, tokenised
from ag_jax.data.records import files, formats, sources
from ag_jax.data.records.files import watched
from ag_jax.data.records.units import Unit
from ag_jax.distributed import interruption

JSON_LINES, TABLE = (".jsonl", ".ndjson"), ".tsv"


class Pair(NamedTuple):
    """A text and its translation; either may be empty.

    source: the text.
    target: the translation.
    """

    source: str
    target: str


class LinesOfTest(NamedTuple):
    """All source lines and reference translations of a test set, empty lines included.

    sources: the lines to translate; an empty line is an empty text.
    references: the translation of each.
    """

    sources: list[str]
    references: list[str]


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """The files of a parallel corpus; iteration yields pairs of text and translation, always in the same order.

    With `alignments`, it yields `alignments.AlignedPair`s.

    source: files or globs, with commas between several.
    target: the files of the translations; None if the records of `source` have both sides.
    source_field, target_field: fields or columns of the sides, if `target` is None.
    skip_null: whether records are left out of which a side is null or missing; otherwise they are an error.
    setting: name of the setting with `source`, for error messages.
    target_setting: name of the setting with `target`, for error messages.
    alignments: as many files as `source` has, each with the word alignments of its pairs; None for none.
    alignments_setting: name of the setting with `alignments`, for error messages.

    Iteration raises FileNotFoundError for a path that does not exist, and ValueError for files that are damaged or are
    not translations of one another.
    """

    source: str
    target: str | None = None
    source_field: str = DataConfig.source_field
    target_field: str = DataConfig.target_field
    setting: str = "data.source"
    target_setting: str = "data.target"
    skip_null: bool = DataConfig.skip_null
    alignments: str | None = None
    alignments_setting: str = "data.alignments"

    def __iter__(self) -> Iterator[Any]:
        units = (formats.without_nulls(unit.read(""), self.skip_null) for unit in self.units())
        return interruption.checked(itertools.chain.from_iterable(units))

    def units(self) -> list[Unit]:
        """Return the files, or source files with their target files, each with a function that yields its pairs."""
        if self.target is None:
            units = [
                Unit(file, file.stat().st_size, functools.partial(self._read, file), watched(file))
                for file in _paths(self.source, self.setting)
            ]
        else:
            units = [_unit(*both) for both in self._aligned_files(self.target)]
        if self.alignments is None:
            return units
        paths = _paths(self.alignments, self.alignments_setting)
        if len(paths) != len(units):
            raise ValueError(
                f"{self.alignments_setting} has {len(paths)} files ({files.listed(paths)}) and {self.setting} has "
                f"{len(units)}: expected as many, each with the alignments of its counterpart; name them all"
            )
        return list(map(alignments.aligned, units, paths))

    def _read(self, file: pathlib.Path, _: str) -> Iterator[Pair | formats.NullText]:
        return _records(file, self)

    @property
    def fields(self) -> dict[str, str]:
        """The source and target fields as {setting name: field}, such as {"data.source_field": "source", ...}.

        The settings are in the section of `setting`.
        """
        section = self.setting.rpartition(".")[0]
        names = (f"{section}.{name}".removeprefix(".") for name in ("source_field", "target_field"))
        return dict(zip(names, (self.source_field, self.target_field), strict=True))

    def line_count(self) -> int:
        """Return the number of lines in the source files, including those that hold no pair, such as tags or headers.

        It is the number of pairs if no line is blank, a tag or a header.

        Raises FileNotFoundError for a path that does not exist, and ValueError for damaged files.
        """
        count = 0
        for file in _paths(self.source, self.setting):
            with files.decompressed(file) as stream:
                count += sum(1 for _ in formats.lines(stream, str(file)))
        return count

    def identity(self) -> list[Any]:
        """Return a list that identifies the current content of the files, without reading them, for cache keys.

        It is the names, sizes and times of the files, the fields, the package that restores tokenised text, and the
        names of links, which say how their files are read.
        """
        settings = self._settings()
        paths = [path for setting, value in settings.items() for path in _paths(value, setting)]
        identities = [sources.identity(value) for value in settings.values()]
        names = [] if self.target else [self.source_field, self.target_field]
        renamed = [path.name for path in paths if path.name != path.resolve().name]
        return [*identities, *names, *tokenised.identity(paths), *([{"links": renamed}] if renamed else [])]

    def files(self) -> dict[str, list[tuple[str, pathlib.Path | KnownContent]]]:
        """Return {setting name: [(file name, path), ...]} of all files, such as {"source": [...], "target": [...]}.

        The keys are without the section of the setting. The names are those that `sources.files` returns.
        """
        return {setting.rpartition(".")[2]: sources.files(value) for setting, value in self._settings().items()}

    def _settings(self) -> dict[str, str]:
        """Return {setting name: its files or globs} for the source and, if they are set, target and alignments."""
        settings = {
            self.setting: self.source,
            self.target_setting: self.target,
            self.alignments_setting: self.alignments,
        }
        return {setting: value for setting, value in settings.items() if value}

    def _aligned_files(self, target: str) -> list[tuple[pathlib.Path, pathlib.Path]]:
        """Return (source file, target file) pairs: the n-th file of `self.source` with the n-th file of `target`.

        Raises ValueError unless there are as many of both, and for globs whose files do not go together by their names.
        """
        source_files, target_files = _paths(self.source, self.setting), _paths(target, self.target_setting)
        if len(source_files) != len(target_files):
            raise ValueError(
                f"{self.setting} has {len(source_files)} files ({files.listed(source_files)}) and "
                f"{self.target_setting} has {len(target_files)} ({files.listed(target_files)}): expected as many, each "
                "the translation of its counterpart; name them all"
            )
        aligned = list(zip(source_files, target_files, strict=True))
        for source, translation in aligned:
            if source.resolve() == translation.resolve():
                raise ValueError(
                    f"{source} is a file of both {self.setting} and {self.target_setting}: expected a text and its "
                    f"translation; if its records have both, set {self.target_setting}=none"
                )
        globs.check_names({self.setting: self.source, self.target_setting: target}, aligned)
        return aligned


def _unit(source: pathlib.Path, target: pathlib.Path) -> Unit:
    changed = watched(source), watched(target)
    size = source.stat().st_size + target.stat().st_size
    return Unit(source, size, lambda _: _aligned(source, target), lambda: any(has_changed() for has_changed in changed))


def training(config: DataConfig) -> PairFiles:
    """Return the files of the training pairs."""
    fields = config.source_field, config.target_field
    return PairFiles(config.source, config.target, *fields, skip_null=config.skip_null, alignments=config.alignments)


def validation(config: DataConfig) -> PairFiles | None:
    """Return the files of the validation pairs; None if a part of the training pairs is held out instead."""
    if config.validation_source is None:
        return None
    return PairFiles(
        config.validation_source,
        config.validation_target,
        config.source_field,
        config.target_field,
        "data.validation_source",
        "data.validation_target",
        config.skip_null,
        config.validation_alignments,
        "data.validation_alignments",
    )


def read_test_set(pair_files: PairFiles) -> LinesOfTest:
    """Read all source lines and reference translations of a test set.

    Raises ValueError if there is no line, and the errors of `PairFiles`.
    """
    pairs = list(pair_files)
    if not pairs:
        raise ValueError(f"{pair_files.setting}={pair_files.source!r} has no line: expected texts to translate")
    return LinesOfTest([pair.source for pair in pairs], [pair.target for pair in pairs])


def _paths(value: str, setting: str) -> list[pathlib.Path]:
    """Return the files that the comma-separated paths and globs in `value` name, in reading order.

    Raises FileNotFoundError for a path that does not exist, and ValueError for a directory and for weights.
    """
    if sources.weights(value):
        raise ValueError(f"{setting}={value!r} has weights, which data.format=parallel does not: leave them out")
    for part in sources.parts(value):
        local.check(setting, part)
        matched = files.matches(part)
        if not matched:
            raise FileNotFoundError(
                f"{setting}={part!r} does not exist: expected a file, a glob, or several with commas; check the path"
            )
        if folders := [path for path in matched if os.path.isdir(path)]:
            names = sorted(os.listdir(folders[0]))
            raise ValueError(
                f"{setting}={part!r} is or matches the directory {folders[0]}, in which nothing says which files are "
                f"translations of one another: name the files or give a glob; it holds {files.listed(names)}"
            )
    # Of a disk all of them, because nothing else matches above.
    return [path for _, path in sources.files(value) if isinstance(path, pathlib.Path)]


def _aligned(source: pathlib.Path, target: pathlib.Path) -> Iterator[Pair]:
    """Yield line n of `source` with line n of `target` as a pair, for two files with the same number of lines.

    Raises ValueError for files of different numbers of lines, and for a line of tags that has text as its counterpart.
    """
    source_lines, target_lines = sides.lines(source), sides.lines(target)
    for number, (source_text, target_text) in enumerate(
        itertools.zip_longest(source_lines, target_lines, fillvalue=_END), 1
    ):
        if _END in (source_text, target_text):
            shorter, longer = (source, target) if source_text is _END else (target, source)
            remaining = sum(1 for _ in itertools.chain(source_lines, target_lines))  # of the longer file
            raise ValueError(
                f"{shorter} has {number - 1:,} lines and {longer} has {number + remaining:,}: expected as many, each "
                "the translation of its counterpart; align the files anew"
            )
        if source_text is None and target_text is None:
            continue
        if source_text is None or target_text is None:
            tags, text = (source, target) if source_text is None else (target, source)
            raise ValueError(
                f"line {number} of {tags} is a tag, line {number} of {text} is text: expected tags on the same lines "
                "of both files, as in the original ones; mend them, or remove all tags and rename the files"
            )
        yield Pair(source_text, target_text)


_END = "\n"  # no line of a side has a line feed


def _records(file: pathlib.Path, pair_files: PairFiles) -> Iterator[Pair | formats.NullText]:
    """Yield the pairs of a .jsonl or .tsv file whose records hold both a text and its translation.

    In place of a pair of which a side is null stands its error.
    """
    ending = files.kind(file.name)[0]
    if ending not in (*JSON_LINES, TABLE):
        raise ValueError(
            f"{file} has no counterpart: set {pair_files.target_setting} to the file with its translations, or give a "
            f"{TABLE} or {JSON_LINES[0]} file whose records have both sides"
        )
    with files.decompressed(file) as stream:
        if ending == TABLE:
            rows = formats.table(stream, str(file), delimiter="\t", quoted=False, header=False)
            yield from _of_columns(rows, pair_files)
            return
        for where, entry in formats.json_lines(stream, str(file)):
            place, record = _with_languages(entry, where, pair_files)
            yield _pair(formats.field_of(record, name, place, setting) for setting, name in pair_files.fields.items())


def _with_languages(
    entry: formats.Record | ValueError, where: str, pair_files: PairFiles
) -> tuple[str, formats.Record | ValueError]:
    """Return (where, the record with both sides): the object in the field "translation", unless `entry` has them."""
    names = pair_files.fields.values()
    if isinstance(entry, ValueError) or "translation" not in entry or {*names} & {*entry}:
        return where, entry
    place, inner = f'{where}, "translation"', entry["translation"]
    if inner is None:
        return place, dict.fromkeys(names)
    if not isinstance(inner, dict):
        sides_of_pair = " and ".join(f'"{name}"' for name in names)
        return place, ValueError(f"expected an object with {sides_of_pair}, got {type(inner).__name__}")
    return place, inner


def _pair(texts: Iterable[str | formats.NullText]) -> Pair | formats.NullText:
    """Return two texts as a pair, or the error for the first one that is null."""
    lines: list[str] = []
    for text in texts:
        if isinstance(text, formats.NullText):
            return text
        lines.append(sides.one_line(text))
    return Pair(*lines)


def _of_columns(rows: Iterator[formats.LocatedRecord], pair_files: PairFiles) -> Iterator[Pair | formats.NullText]:
    """Yield the pairs of a tab-separated table of texts and translations, of which the first row may be a header."""
    first = next(rows, None)
    if first is None:
        return
    columns = _named_columns(first, pair_files)
    for where, row in rows if columns else itertools.chain([first], rows):
        yield _pair(formats.field_of(row, column, where) for column in columns or ("0", "1"))


def _named_columns(first: formats.LocatedRecord, pair_files: PairFiles) -> list[str] | None:
    """Return the numbers of the columns that a table's first row names; None if this row is already a pair.

    Raises ValueError if a column is missing, or if two have its name.
    """
    where, row = first
    header, names = [*formats.require(row, where).values()], pair_files.fields
    has_defaults = (*names.values(),) == (PairFiles.source_field, PairFiles.target_field)
    if has_defaults and len(header) == 2 and not set(header) & set(names.values()):
        return None
    for setting, name in names.items():
        formats.check_field(name, header, f"{where}, the header", setting)
        if header.count(name) > 1:
            raise ValueError(
                f'{where}: expected one column "{name}", got {header.count(name)} of this name; rename the others'
            )
    return [str(header.index(name)) for name in names.values()]

"""Find the files of published parallel corpora, by the names that they have in their archives.

    multi30k   train, val, test_2016_flickr and test_2017_flickr, of Multi30k's task 1
    iwslt14    train.tags; five .xml sets joined as the test set; validation is held out of the training pairs. This is
               the split of fairseq's recipe, which holds out one pair in 23 (`data.validation_fraction=0.0435`)
    iwslt16    train.tags; dev2010 and tst2010 to tst2014 joined for validation; QED tst2016, TED tst2015 and TED
               tst2016 joined as the test set, with references from the archive of the other direction. This is the
               split of You et al. 2020
    wmt14      newstest2013 for validation, newstest2014 as the test set, and for training Common Crawl, Europarl 7 and
               News Commentary 9 in the files of WMT, or files of plain lines called train, or Google's tokenised files

A name stands for a file of this name, also with .gz behind it, in the folder or in one of the subfolders of the
archives. Patterns of names have these fields:

    source, target   the languages, such as en and de
    language         the language of the side
    pair             both languages: {source}-{target}, or the other way round if the archive is that of the other
                     direction
    joined           as `pair`, without the hyphen
    role             src on the source side, ref on the target side
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from ag_jax.data import local
from ag_jax.data.parallel.pairs import PairFiles
from ag_jax.data.records import files

Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Parts:
    """The files of the training, validation and test pairs of a parallel corpus.

    train: training pairs.
    validation: pairs for validation; None if they are held out of the training pairs.
    tests: test sets by name.
    """

    train: PairFiles
    validation: PairFiles | None
    tests: Mapping[str, PairFiles]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Patterns for the file names of a published parallel corpus, in one of the forms in which it is distributed.

    Several files of a part, such as the training pairs, are joined.

    train: files of the training pairs.
    validation: files for validation; empty if it is held out of the training pairs.
    tests: files of each test set.
    folders: subfolders in which the archives have their files.
    """

    train: Names
    validation: Names
    tests: Mapping[str, Names]
    folders: Names = ()


def _iwslt(year: int, sets: Sequence[str]) -> Names:
    return tuple(f"IWSLT{year}.{name}.{{pair}}.{{language}}.xml" for name in sets)


_IWSLT_FOLDERS = ("{source}-{target}", "{target}-{source}")
_YEARS_14 = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_YEARS_16 = ("TED.dev2010", *(f"TED.tst{year}" for year in range(2010, 2015)))
_WMT_FOLDERS = ("training", "dev", "test", "test-full")
_WMT_TRAIN = ("commoncrawl", "europarl-v7", "news-commentary-v9")

# Of each corpus, the layouts in which it is published; the first of which a training file is there is read.
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "multi30k": (
        Layout(
            train=("train.{language}",),
            validation=("val.{language}",),
            tests={name: (f"{name}.{{language}}",) for name in ("test_2016_flickr", "test_2017_flickr")},
        ),
    ),
    "iwslt14": (
        Layout(
            train=("train.tags.{pair}.{language}",),
            validation=(),
            tests={"test": _iwslt(14, _YEARS_14)},
            folders=_IWSLT_FOLDERS,
        ),
    ),
    "iwslt16": (
        Layout(
            train=("train.tags.{pair}.{language}",),
            validation=_iwslt(16, _YEARS_16),
            tests={"test": _iwslt(16, ("QED.tst2016", "TED.tst2015", "TED.tst2016"))},
            folders=_IWSLT_FOLDERS,
        ),
    ),
    "wmt14": (
        Layout(
            train=tuple(f"{name}.{{pair}}.{{language}}" for name in _WMT_TRAIN),
            validation=("newstest2013.{language}|newstest2013-{role}.{language}.sgm",),
            tests={"newstest2014": ("newstest2014.{language}|newstest2014-{joined}-{role}.{language}.sgm",)},
            folders=_WMT_FOLDERS,
        ),
        Layout(
            train=("train.{language}",),
            validation=("newstest2013.{language}",),
            tests={"newstest2014": ("newstest2014.{language}",)},
        ),
        Layout(
            train=("train.tok.clean.{language}|train.tok.clean.bpe.32000.{language}",),
            validation=("newstest2013.tok.{language}|newstest2013.tok.bpe.32000.{language}",),
            tests={"newstest2014": ("newstest2014.tok.{language}|newstest2014.tok.bpe.32000.{language}",)},
        ),
    ),
}


def find(name: str, folder: str, source: str, target: str) -> Parts:
    """Return the training, validation and test files of a published parallel corpus in a folder.

    name: name of the corpus, a key of `LAYOUTS`.
    folder: the folder into which its archives were unpacked.
    source, target: the languages to translate from and to, as file names have them, such as en and de.

    Raises ValueError for an unknown name, and FileNotFoundError, with all names that are missing and those that are
    there, for a folder that lacks files.
    """
    if name not in LAYOUTS:
        raise ValueError(f"no layout of a parallel corpus is called {name!r}: expected one of {', '.join(LAYOUTS)}")
    local.check("data", folder)
    base = pathlib.Path(folder).expanduser()
    searches = [_Search(base, layout, source, target) for layout in LAYOUTS[name]]
    search = next((candidate for candidate in searches if candidate.has_some(candidate.layout.train)), None)
    if search is None:
        raise FileNotFoundError(
            f"{base} has no training text of {name}: expected {' or '.join(map(_Search.training_names, searches))}, "
            f"also with .gz; got {_listing(base)}"
        )
    # All parts are looked for before anything is missed, so that one error names all missing files.
    layout = search.layout
    train = search.files(layout.train, "data.source", "data.target")
    validation = search.files(layout.validation, "data.validation_source", "data.validation_target")
    tests = {test: search.files(names, f"{test} source", f"{test} target") for test, names in layout.tests.items()}
    if search.missing:
        raise FileNotFoundError(
            f"{base} lacks files of {name}: {', '.join(search.missing)} (also looked for with .gz, and in the "
            f"subfolders {', '.join(search.subfolders) or 'none'}); got {_listing(base)}"
        )
    return Parts(train, validation if layout.validation else None, tests)


class _Search:
    """A search in a folder for the source and target files whose names a `Layout` describes.

    missing: names of files that were looked for and not found.
    subfolders: names of the subfolders that are searched, too.
    """

    def __init__(self, base: pathlib.Path, layout: Layout, source: str, target: str):
        self.layout, self.missing = layout, list[str]()
        self._base, self._languages = base, (source, target)
        self.subfolders = [folder.format(source=source, target=target) for folder in layout.folders]

    def has_some(self, names: Names) -> bool:
        """Return whether, for at least one of the name patterns, both the source and the target file exist."""
        return any(self._both(name) for name in names)

    def training_names(self) -> str:
        """Return `SOURCE with TARGET`, the names of the first pair of training files, for error messages."""
        return " with ".join(next(self._candidates(self.layout.train[0])))

    def files(self, names: Names, setting: str, target_setting: str) -> PairFiles:
        """Return the source and target files that match the patterns `names`, and add those not found to `missing`."""
        pairs = []
        for name in names:
            if paths := self._both(name):
                pairs.append(paths)
            else:
                sides = next(self._candidates(name))
                self.missing += [side for side in sides if not self._path(side)] or [f"{sides[0]} with {sides[1]}"]
        for path in (path for paths in pairs for path in paths):
            if "," in str(path) and len(pairs) > 1:
                raise ValueError(f"{path} has a comma, which separates files in {setting}: rename the folder")
        source, target = (",".join(str(paths[side]) for paths in pairs) for side in (0, 1))
        return PairFiles(source, target, setting=setting, target_setting=target_setting)

    def _both(self, name: str) -> tuple[pathlib.Path, pathlib.Path] | None:
        """Return the (source, target) paths that match a name pattern; None unless both files exist."""
        for source, target in self._candidates(name):
            if (source_path := self._path(source)) and (target_path := self._path(target)):
                return source_path, target_path
        return None

    def _candidates(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the (source, target) file names that a pattern stands for, in the order in which they are tried.

        The archive of this direction comes first, then that of the other direction, and then the source from this one
        with the target from the other one.
        """
        languages, reverse = self._languages, self._languages[::-1]
        for alternative in name.split("|"):
            for archives in ((languages, languages), (reverse, reverse), (languages, reverse)):
                source, target = (
                    alternative.format(language=language, pair="-".join(pair), joined="".join(pair), role=role)
                    for language, pair, role in zip(self._languages, archives, ("src", "ref"), strict=True)
                )
                yield source, target

    def _path(self, name: str) -> pathlib.Path | None:
        folders = (self._base, *(self._base / folder for folder in self.subfolders))
        paths = (folder / file for folder in folders for file in (name, f"{name}.gz"))
        return next((path for path in paths if path.is_file()), None)


def _listing(folder: pathlib.Path) -> str:
    """Return the first names in a folder, for error messages."""
    return files.listed(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir()))

"""Read minimal pairs: two sentences that differ in little, of which only the first one is grammatical.

BLiMP (Warstadt et al. 2020) has 67 files, *paradigms*, of 1,000 pairs each, as JSON lines with these fields:

    sentence_good, sentence_bad    the two sentences
    UID                            the paradigm
    linguistics_term, field        the phenomenon, and the part of the grammar that it belongs to

Custom pairs are files of JSON lines (.jsonl) or tables with a header (.tsv, .csv) with fields or columns of the same
names; only the sentences are needed.
"""

import collections
import dataclasses
import hashlib
import pathlib
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import IO

from ag_jax.data.probes import files
from ag_jax.data.records import files as record_files
from ag_jax.data.records import formats
from ag_jax.data.records.formats import Record

ENDINGS = (".jsonl", ".tsv", ".csv")
GOOD, BAD, PARADIGM, TERM, FIELD = "sentence_good", "sentence_bad", "UID", "linguistics_term", "field"
BLIMP_PARADIGMS, BLIMP_PAIRS = 67, 1000
SUMMARY = "models_summary.jsonl"  # BLiMP's file of the accuracies of four models, in its main folder
SUMMARY_MODELS = {"ngram": "n-gram", "lstm": "LSTM", "txl": "Transformer-XL", "gpt2": "GPT-2"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A minimal pair: two similar sentences, of which a model should find `good` more probable than `bad`.

    good, bad: the sentences.
    paradigm: the kind of pair; accuracies are means over kinds.
    term: the phenomenon that the paradigm is about; empty if unknown.
    field: the part of the grammar that the phenomenon belongs to; empty if unknown.
    """

    good: str
    bad: str
    paradigm: str
    term: str = ""
    field: str = ""


def read(path: str, most: int | None = None) -> list[Pair]:
    """Return the minimal pairs of a file, or of all files below a folder; the files may be compressed.

    most: number of pairs to take of each paradigm, chosen by a hash of their sentences, so that they are the same for
        all models and orders of files; None takes all.

    A paradigm without a name has that of its file. Prints what is missing if a folder looks like BLiMP but is not
    complete, and how many pairs are two equal sentences, of which no model can get any right.

    Raises FileNotFoundError for a path without files, ValueError, with the place, for a record without two sentences,
    and for the same pair twice in a paradigm.
    """
    pairs: dict[str, list[Pair]] = collections.defaultdict(list)
    places: dict[Hashable, str] = {}
    for where, name, record in files.read(path, ENDINGS, _records):
        pair = _pair(record, where, name)
        files.check_new((pair.paradigm, pair.good, pair.bad), "the same pair", where, places)
        pairs[pair.paradigm].append(pair)
    if not pairs:
        raise ValueError(f"{path} has no pairs: expected records with the fields {GOOD} and {BAD}")
    _report(path, pairs)
    return [pair for name in sorted(pairs) for pair in _sample(pairs[name], most)]


def published(path: str) -> dict[str, dict[str, float]]:
    """Return {model: {paradigm: accuracy}} as published with BLiMP in the file `SUMMARY`; {} if there is no such file.

    The file is in the folder of the pairs or the folder above it. The accuracies are from likelihoods of whole
    sentences and all pairs of a paradigm.

    Raises ValueError for a damaged file.
    """
    folder = pathlib.Path(path).expanduser().resolve()
    places = [place / SUMMARY for place in (folder, *folder.parents[:1]) if (place / SUMMARY).is_file()]
    if not places:
        return {}
    accuracies: dict[str, dict[str, float]] = {name: {} for name in SUMMARY_MODELS.values()}
    for where, located in formats.records(places[0]):
        record = formats.require(located, where)
        for key, name in SUMMARY_MODELS.items():
            value = record.get(key)
            if not isinstance(value, int | float) or not 0 <= value <= 1 or not isinstance(record.get(PARADIGM), str):
                raise ValueError(f"{where}: expected {PARADIGM}, and {key} from 0 to 1, got {record!r}; copy it anew")
            if record[PARADIGM] != "overall":  # lines of means
                accuracies[name][str(record[PARADIGM])] = float(value)
    return accuracies


def _sample(pairs: Sequence[Pair], most: int | None) -> Sequence[Pair]:
    """Return at most `most` pairs, chosen by a hash of their sentences; all of them if `most` is None."""
    if most is None or most >= len(pairs):
        return pairs
    return sorted(pairs, key=lambda pair: hashlib.sha256(f"{pair.good}\n{pair.bad}".encode()).digest())[:most]


def _records(stream: IO[bytes], name: str, place: str) -> Iterator[tuple[str, str, Record]]:
    """Yield (location, name of the file, record) for each record of a JSON-lines, .tsv or .csv file.

    name: name of the file, or of the member of an archive, whose ending says which of these it is.
    """
    if name == SUMMARY:
        return
    ending = record_files.kind(name)[0]
    if ending in (".tsv", ".csv"):
        delimiter = "\t" if ending == ".tsv" else ","
        located = formats.table(stream, place, delimiter=delimiter, quoted=ending == ".csv")
    else:
        located = formats.json_lines(stream, place)
    for where, record in located:
        yield where, name, formats.require(record, where)


def _pair(record: Mapping[str, object], where: str, file_name: str) -> Pair:
    """Return the minimal pair in a record; without a paradigm in the record, the file's name is the paradigm.

    Raises ValueError, with the location `where`, if a sentence is missing.
    """
    for name in (GOOD, BAD):
        if not isinstance(record.get(name), str) or not str(record[name]).strip():
            raise ValueError(f"{where}: expected a sentence as {name}, got {record.get(name)!r}; mend the record")
    good, bad = (" ".join(str(record[name]).split()) for name in (GOOD, BAD))
    paradigm = str(record.get(PARADIGM) or file_name.split(".")[0])
    # One file of BLiMP writes the field of 13 others in another way.
    field = str(record.get(FIELD) or "").replace("syntax/semantics", "syntax_semantics")
    return Pair(good, bad, paradigm, str(record.get(TERM) or ""), field)


def _report(path: str, pairs: Mapping[str, Sequence[Pair]]) -> None:
    """Print what is missing in a folder of BLiMP, and how many pairs have two equal sentences."""
    if equal := sum(pair.good == pair.bad for paradigm_pairs in pairs.values() for pair in paradigm_pairs):
        print(f"{path}: {equal:,} pairs have two equal sentences, and count as wrong", file=sys.stderr)
    fields = {pair.field for paradigm_pairs in pairs.values() for pair in paradigm_pairs}
    # Several files with no other fields are taken for BLiMP.
    if fields <= {"morphology", "syntax", "semantics", "syntax_semantics"} and len(pairs) > 1:
        counts = {name: len(paradigm_pairs) for name, paradigm_pairs in pairs.items()}
        short = [f"{name} ({count:,})" for name, count in counts.items() if count < BLIMP_PAIRS]
        if len(pairs) < BLIMP_PARADIGMS or short:
            print(
                f"{path}: {len(pairs)} of the {BLIMP_PARADIGMS} paradigms of BLiMP"
                + (f"; with fewer than {BLIMP_PAIRS:,} pairs: {', '.join(sorted(short))}" if short else ""),
                file=sys.stderr,
            )

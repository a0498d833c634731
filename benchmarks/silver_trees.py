"""Parse novels into trees of Universal Dependencies, with a parser that is trained on the treebanks EWT and GUM.

    python benchmarks/silver_trees.py --treebanks=UD --parser=PARSER --texts=NOVELS --skip-words=3500 --output=TREES

The program needs spaCy 3 and none of ag_jax: `python -m venv spacy; spacy/bin/pip install spacy==3.8.18`.

UD is a folder with UD_English-EWT and UD_English-GUM (github.com/UniversalDependencies, or a release of Universal
Dependencies). NOVELS is a folder of plain text: one document a file, blank lines between paragraphs. `--skip-words`
leaves out the paragraphs in which the first words of a document are; LitBank's annotated documents are the first words
of its novels. TREES gets a CoNLL-U file for each text, but none where no words are left.

It goes on where it was stopped: a parser in the folder PARSER is not trained again, and texts that have a file in TREES
are not parsed again. Then it reads all files of TREES, and fails unless their words and spaces are those of the texts.

The parser is a small convolutional one (spaCy's default for CPUs: hash embeddings, four layers of width 96), trained on
the training parts alone; of its checkpoints it is the best on a twentieth of their documents, which is not trained on.
spaCy's own models have other trees, in which prepositions and copulas are heads, so they do not serve.

The record silver_trees.json has, for the development part of each treebank and for GUM's two documents of fiction:

`gold_sentences`: trees over the words and the sentences of the treebank; `uas`, `las`: share of words with the right
    head, and with the right head and relation; `uuas`: share of the tree's edges, whatever their direction, without
    roots. `punctuation`: the same with the words of relation `punct`, which are left out of the others.
`own_sentences`: the same where the parser also divides paragraphs into sentences, as it does in texts.
`words_f1`, `sentences_f1`: of the parser's words and sentences, from the text of paragraphs.

In `texts`, `new_words` and the rate are of the words that this command parsed; they are absent where it parsed none.

Hardware and time: on a core of an AMD EPYC, beside other programs, training takes 19 minutes, and 4,700 words are
parsed in a second.
"""

import argparse
import collections
import functools
import hashlib
import multiprocessing
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import record
import spacy
import thinc.api
from spacy.cli.init_config import init_config
from spacy.language import Language
from spacy.symbols import NORM, ORTH
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as train_parser

TREEBANKS = ("UD_English-EWT", "UD_English-GUM")
HELD_OUT = 20  # one of so many documents of the training parts chooses the checkpoint
STEPS = 4000  # seven epochs
SETTINGS = {
    "components.parser.min_action_freq": 10,  # with 30, rarer relations are read as `dep`
    "training.max_steps": STEPS,
    "training.patience": 0,
    "training.eval_frequency": 500,
    "training.score_weights": {"dep_uas": 0.5, "dep_las": 0.5},
    "training.optimizer.learn_rate": {
        "@schedules": "warmup_linear.v1",
        "warmup_steps": 200,
        "total_steps": STEPS,
        "initial_rate": 0.001,
    },
}


class Word(NamedTuple):
    """A word of a tree: `head` is the number of its head in the sentence, from 1, or 0 for the root."""

    form: str
    space: bool
    tag: str
    head: int
    relation: str


class Paragraph(NamedTuple):
    """A paragraph of a document: its sentences, each a list of words."""

    document: str
    sentences: list[list[Word]]


def read(path: pathlib.Path) -> Iterator[Paragraph]:
    """Yield the paragraphs of a CoNLL-U file: what lies between comments `newdoc` and `newpar`.

    The parts of a range, such as do and n't, have no space in between; the range says whether one follows.
    """
    document, sentences, words, end, space = "", [], [], 0, True
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            columns = line.rstrip("\n").split("\t")
            if columns[0].split()[1:2] in (["newdoc"], ["newpar"]) and line[0] == "#":
                if sentences:
                    yield Paragraph(document, sentences)
                    sentences = []
                document = columns[0].partition("=")[2].strip() if "newdoc" in columns[0].split() else document
            elif not line.strip() and words:
                sentences.append(words)
                words, end = [], 0
            elif "-" in columns[0] and len(columns) == 10:
                end, space = int(columns[0].partition("-")[2]), "SpaceAfter=No" not in columns[9]
            elif columns[0].isdigit():
                number, form, tag, head, relation = (columns[column] for column in (0, 1, 3, 6, 7))
                inside = int(number) <= end
                after = int(number) == end and space if inside else "SpaceAfter=No" not in columns[9]
                words.append(Word(form, after, tag, int(head), relation))
    if sentences:
        yield Paragraph(document, sentences)


def doc(nlp: Language, sentences: Sequence[list[Word]], *, gold: bool, one_sentence: bool = False) -> Doc:
    """Return sentences in spaCy's form, with trees if `gold`; `one_sentence` keeps the parser from dividing them."""
    words = [word for sentence in sentences for word in sentence]
    forms, spaces = [word.form for word in words], [word.space for word in words]
    if not gold:
        starts = [True, *[False] * (len(words) - 1)] if one_sentence else None
        made = Doc(nlp.vocab, forms, spaces, sent_starts=starts)
        # What the tokenizer knows of the parts of words, for example that n't is "not".
        norms = {part[ORTH]: part[NORM] for rule in nlp.tokenizer.rules.values() for part in rule if NORM in part}
        for token in made:
            token.norm_ = norms.get(token.text, token.norm_)
        return made
    heads, relations, first = [], [], 0
    for sentence in sentences:
        for at, word in enumerate(sentence):
            heads.append(first + (word.head - 1 if word.head else at))
            relations.append(word.relation if word.head else "ROOT")  # the name that spaCy's parser asks for
        first += len(sentence)
    tags = [word.tag for word in words]
    return Doc(nlp.vocab, forms, spaces, tags=tags, heads=heads, deps=relations)


def part(treebanks: pathlib.Path, name: str) -> dict[str, list[Paragraph]]:
    """Return the paragraphs of a part (train, dev) of each treebank."""
    paragraphs = {}
    for treebank in TREEBANKS:
        found = sorted((treebanks / treebank).glob(f"*-ud-{name}.conllu"))
        if len(found) != 1:
            raise FileNotFoundError(f"{treebanks / treebank}: expected one file *-ud-{name}.conllu, got {len(found)}")
        paragraphs[treebank] = list(read(found[0]))
    return paragraphs


def train(treebanks: pathlib.Path, folder: pathlib.Path) -> None:
    """Train a parser and a tagger of universal parts of speech, and store them in a folder."""
    start, sizes = time.monotonic(), collections.Counter()
    files = {"train": DocBin(store_user_data=False), "dev": DocBin(store_user_data=False)}
    blank = spacy.blank("en")
    for paragraph in (paragraph for treebank in part(treebanks, "train").values() for paragraph in treebank):
        held_out = int(hashlib.sha256(paragraph.document.encode()).hexdigest(), 16) % HELD_OUT == 0
        files["dev" if held_out else "train"].add(doc(blank, paragraph.sentences, gold=True))
        sizes["held_out_words" if held_out else "words"] += sum(map(len, paragraph.sentences))
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        file.to_disk(folder / f"{name}.spacy")
    config = init_config(lang="en", pipeline=["tagger", "parser"], optimize="efficiency", gpu=False)
    paths = {f"paths.{name}": str(folder / f"{name}.spacy") for name in files}
    config = thinc.api.Config().from_str(config.to_str(), overrides=SETTINGS | paths)
    train_parser(init_nlp(config), folder, stdout=sys.stdout, stderr=sys.stderr)
    nlp = spacy.load(folder / "model-best")
    nlp.meta["training"] = {**sizes, "seconds": round(time.monotonic() - start)}
    nlp.to_disk(folder / "parser")


def score(nlp: Language, paragraphs: Sequence[Paragraph], *, gold_sentences: bool) -> dict[str, float]:
    """Return the scores of parses over gold words, and in `punctuation` the scores with punctuation."""
    if gold_sentences:
        units = [[sentence] for paragraph in paragraphs for sentence in paragraph.sentences]
    else:
        units = [paragraph.sentences for paragraph in paragraphs]
    counts: dict[bool, collections.Counter] = {True: collections.Counter(), False: collections.Counter()}
    docs = (doc(nlp, unit, gold=False, one_sentence=gold_sentences) for unit in units)
    for unit, parsed in zip(units, nlp.pipe(docs), strict=True):
        gold = doc(nlp, unit, gold=True)
        for token, wanted in zip(parsed, gold, strict=True):
            right, root = token.head.i == wanted.head.i, wanted.head.i == wanted.i
            edge = right or parsed[wanted.head.i].head.i == wanted.i
            figures = {
                "words": 1,
                "uas": right,
                "las": right and token.dep_ == wanted.dep_,
                "edges": not root,
                "uuas": not root and edge,
            }
            for with_punctuation in (True, False):
                if with_punctuation or wanted.dep_ != "punct":
                    counts[with_punctuation].update(figures)
    shares = {
        with_punctuation: {
            "words": count["words"],
            **{name: round(count[name] / count["words"], 4) for name in ("uas", "las")},
            "uuas": round(count["uuas"] / count["edges"], 4),
        }
        for with_punctuation, count in counts.items()
    }
    return {**shares[False], "punctuation": shares[True]}


def bounds(nlp: Language, paragraphs: Sequence[Paragraph]) -> dict[str, float]:
    """Return F1 of words and of sentences, each given by its first and last character, from the text of paragraphs."""
    golds = [doc(nlp, paragraph.sentences, gold=True) for paragraph in paragraphs]
    spans: dict[str, list[set]] = {"words": [set(), set()], "sentences": [set(), set()]}
    for number, docs in enumerate(zip(golds, nlp.pipe(gold.text for gold in golds), strict=True)):
        for side, either in enumerate(docs):
            spans["words"][side].update((number, token.idx, len(token)) for token in either if not token.is_space)
            spans["sentences"][side].update((number, sent.start_char, sent.end_char) for sent in either.sents)
    return {f"{name}_f1": round(2 * len(gold & own) / (len(gold) + len(own)), 4) for name, (gold, own) in spans.items()}


def measure(nlp: Language, treebanks: pathlib.Path) -> dict[str, dict]:
    """Return scores on the development part of each treebank, and on GUM's fiction."""
    parts = part(treebanks, "dev")
    parts["fiction"] = [paragraph for paragraph in parts[TREEBANKS[1]] if "_fiction_" in paragraph.document]
    return {
        name: {
            "gold_sentences": score(nlp, paragraphs, gold_sentences=True),
            "own_sentences": score(nlp, paragraphs, gold_sentences=False),
            **bounds(nlp, paragraphs),
        }
        for name, paragraphs in parts.items()
    }


def paragraphs_of(path: pathlib.Path, skip_words: int) -> Iterator[str]:
    """Yield the paragraphs of a text, with one space between words, from the first that begins after `skip_words`."""
    seen = 0
    paragraph: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in (*lines, ""):
            paragraph.extend(line.split())
            if not line.strip() and paragraph:
                if seen >= skip_words:
                    yield " ".join(paragraph)
                seen += len(paragraph)
                paragraph = []


def conllu(name: str, docs: Iterable[Doc]) -> Iterator[str]:
    """Yield the lines of a CoNLL-U document. Spaces that end a paragraph are not marked."""
    yield f"# newdoc id = {name}\n"
    number = 0
    for parsed in docs:
        yield "# newpar\n"
        for sentence in parsed.sents:
            number += 1
            yield f"# sent_id = {name}-{number}\n# text = {sentence.text}\n"
            for token in sentence:
                root = token.head.i == token.i
                head = 0 if root else token.head.i - sentence.start + 1
                relation = "root" if root else token.dep_
                space = "_" if token.whitespace_ or token.i + 1 == len(parsed) else "SpaceAfter=No"
                place = token.i - sentence.start + 1
                yield f"{place}\t{token.text}\t_\t{token.tag_}\t_\t_\t{head}\t{relation}\t_\t{space}\n"
            yield "\n"


@functools.cache
def loaded(parser: pathlib.Path) -> Language:
    """Return the parser of a folder, loaded once in a process."""
    return spacy.load(parser / "parser")


def parse(parser: pathlib.Path, text: pathlib.Path, skip_words: int, path: pathlib.Path) -> collections.Counter:
    """Parse a text into a CoNLL-U file unless that exists; return the numbers of words, sentences and paragraphs.

    Raises ValueError if the words and spaces of the file are not those of the text.
    """
    start = time.monotonic()
    if new := not path.exists():
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(conllu(text.stem, loaded(parser).pipe(paragraphs_of(text, skip_words), batch_size=64)))
        unfinished.rename(path)
    sizes = collections.Counter({"documents": 1})
    pairs = zip(read(path), paragraphs_of(text, skip_words), strict=True)
    for paragraph, wanted in pairs:
        words = [word for sentence in paragraph.sentences for word in sentence]
        got = "".join(word.form + " " * word.space for word in words)
        if got.rstrip() != wanted:
            raise ValueError(
                f"{path}: expected the words of {text}, {wanted[:80]!r}, got {got[:80]!r}; delete the file"
            )
        roots = [sum(not word.head for word in sentence) for sentence in paragraph.sentences]
        if any(count != 1 for count in roots):
            raise ValueError(
                f"{path}: expected one root in each sentence, got {roots} in {got[:80]!r}; delete the file"
            )
        sizes.update(words=len(words), sentences=len(paragraph.sentences), paragraphs=1)
        sizes["characters"] += len(wanted)
    if new:
        seconds = time.monotonic() - start
        print(f"{time.strftime('%H:%M:%S')} {path.name}: {sizes['words']:,} words, {seconds:.0f} s", flush=True)
        sizes.update(new_words=sizes["words"], new_seconds=seconds)
    return sizes


def main() -> None:
    """Train the parser where there is none, parse what is not parsed yet, and store the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--treebanks", type=pathlib.Path, required=True, help="folder of the treebanks")
    parser.add_argument("--parser", type=pathlib.Path, required=True, help="folder of the parser, new or trained")
    parser.add_argument("--texts", type=pathlib.Path, help="folder of plain text to parse, *.txt")
    parser.add_argument("--output", type=pathlib.Path, help="folder of the trees")
    parser.add_argument("--skip-words", type=int, default=0, help="words left out at the beginning of each text")
    parser.add_argument("--processes", type=int, default=1, help="texts that are parsed at a time")
    options = parser.parse_args()
    if not (options.parser / "parser").exists():
        train(options.treebanks, options.parser)
    nlp = loaded(options.parser)
    figures = {"training": nlp.meta["training"], "development": measure(nlp, options.treebanks)}
    if options.texts:
        options.output.mkdir(parents=True, exist_ok=True)
        arguments = [
            (options.parser, text, options.skip_words, options.output / f"{text.stem}.conllu")
            for text in sorted(options.texts.glob("*.txt"))
            if any(paragraphs_of(text, options.skip_words))  # short texts may have no words left
        ]
        with multiprocessing.Pool(options.processes) as pool:
            sizes = sum(pool.starmap(parse, arguments, chunksize=1), collections.Counter())
        seconds = sizes.pop("new_seconds", 0)
        rate = {"words_per_second_and_process": round(sizes["new_words"] / seconds)} if seconds else {}
        figures["texts"] = {**sizes, **rate}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    path = record.save("silver_trees", {"commit": commit, **figures}, packages=("spacy", "thinc", "numpy"))
    print(f"stored {path}")


if __name__ == "__main__":
    main()

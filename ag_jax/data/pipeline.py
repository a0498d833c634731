"""Prepare the data of a run, in a cache, and make its batches, for every `data.format`.

Shape letters: B batch.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ag_jax.data import checksums, order, packing, store, tokenizers, tokens
from ag_jax.data.cache import Cache, key
from ag_jax.data.checksums import KnownContent
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.corpus import Corpus
from ag_jax.data.layout import SPLITS, HostBatch, Layout
from ag_jax.data.order import BatchSizes
from ag_jax.data.parallel import batching as pair_batching
from ag_jax.data.parallel.layout import Pairs
from ag_jax.data.progress import Progress, Say, announcer
from ag_jax.data.records import sources
from ag_jax.data.store import Block, RowsWriter, TextStore
from ag_jax.data.text import batching as text_batching
from ag_jax.data.text import documents, holdout, mixture
from ag_jax.data.text.documents import Documents
from ag_jax.data.text.unigram import Unigram
from ag_jax.data.tokenizers import SENTENCEPIECE_LINES, Tokenizer, sentencepiece_lines
from ag_jax.data.tokens import FACTS, Text
from ag_jax.distributed import interruption
from ag_jax.distributed.terminal import Bar

TOKENIZER_TEXT = 200_000_000  # characters of the training text that a tokenizer is trained on, at most


def prepare(config: DataConfig, *, quiet: bool = False) -> Corpus:
    """Return the tokenizer and the rows of token ids of a config, from the cache if they were prepared before.

    Processes that call this at the same time with the same cache share the work.

    config: the settings of the data.
    quiet: print no progress.

    Raises ValueError or FileNotFoundError for text or tokenizers that cannot be used.
    """
    say, cache = announcer(quiet), Cache.of(config)
    share_K = (1.0,) if config.is_parallel else mixture.shares(config)
    layouts = _layouts(config, cache)
    tokenizer = prepare_tokenizer(config, quiet=quiet)
    texts = [Text.of(layout, tokenizer) for layout in layouts]
    missing = [text for text in texts if not _has_tokens(text, cache)]
    if config.pointers and missing:
        documents.check_pointers(config)
    # The parts of all sources, before any is put together, so that other processes have something to do.
    tokens.tokenise(missing, cache, say)
    entries = [_rows(text, cache, say) for text in texts]
    if cache.remote is not None and not config.is_parallel:
        documents.remember(config, cache)
    facts = [json.loads((entry.path / FACTS).read_text()) for entry in entries]
    rows, of_split = {}, {}
    for split in SPLITS:
        # With a text for validation, every source was prepared with the same one.
        of_split[split] = range(1 if split == "validation" and config.validation_source else len(texts))
        opened = [layouts[number].open(entries[number].path / split, entries[number]) for number in of_split[split]]
        rows[split] = mixture.join(opened, share_K)
    corpus = Corpus(
        tokenizer=tokenizer,
        train=rows["train"],
        validation=rows["validation"],
        documents={split: sum(facts[number]["documents"][split] for number in of_split[split]) for split in SPLITS},
        checksums={split: _combined([entries[number].digest(split) for number in of_split[split]]) for split in SPLITS},
        left_out=dict(sum((Counter(of_text["left_out"]) for of_text in facts), Counter())),
        sources=[] if config.is_parallel else [_sizes(*each) for each in zip(layouts, share_K, facts, strict=True)],
        held_out=[tuple(of_text["held_out"]) for of_text in facts],
    )
    _report(config, corpus, cache, say)
    return corpus


def held_out_texts(config: DataConfig, corpus: Corpus, pointers: Sequence[str]) -> list[Iterator[str]]:
    """Return the texts of each source that are held out for validation, with annotations.

    pointers: names of the annotations that texts have with them, if their files do.
    """
    if config.validation_source:
        return [holdout.held_out(config, 1.0, pointers)]
    return [
        holdout.held_out(dataclasses.replace(one, validation_fraction=fraction), share, pointers)
        for one, (fraction, share) in zip(mixture.components(config), corpus.held_out, strict=True)
    ]


def _layouts(config: DataConfig, cache: Cache) -> list[Layout]:
    """Return the layout of each text that is prepared for itself: of every source of a mixture, or of all data."""
    if config.is_parallel:
        return [Pairs(config)]
    identity = functools.partial(documents.identity, cache)
    return [Documents(one, cache) for one in mixture.components(config, identity)]


def _has_tokens(text: Text, cache: Cache) -> bool:
    return cache.is_complete(text.rows_name) or cache.is_complete(text.tokens_name)


def _rows(text: Text, cache: Cache, say: Say) -> checksums.Entry:
    """Return the cached rows of a text; the token ids are kept, too, for rows of another length or format."""

    def write_text(directory: pathlib.Path) -> None:
        tokens.write_text(text, cache, directory, say)

    def write(directory: pathlib.Path) -> None:
        stored = cache.build_once(text.tokens_name, write_text, check_large=True).path  # all of it is about to be read
        cache.remove(text.beginning_of_parts, text.tokens_name)  # which makes room for the rows
        _write_rows(text, stored, directory, say)

    entry = cache.build_once(text.rows_name, write, check_large=text.layout.config.verify_cache)
    # Parts of a process that was killed before it removed them.
    cache.remove(text.beginning_of_parts, text.tokens_name)
    return entry


def _write_rows(text: Text, stored: pathlib.Path, directory: pathlib.Path, say: Say) -> None:
    """Write the rows of the training and the validation text, and the facts about them.

    stored: directory of the token ids.

    Raises ValueError if either has no row.
    """
    layout, config, tokenizer = text.layout, text.layout.config, text.tokenizer
    facts = json.loads((stored / FACTS).read_text())
    # A counter, because the layout counts what it leaves out of the rows, too.
    facts["left_out"], facts["rows"] = Counter(facts["left_out"]), {}
    has_pairs = config.format in PAIR_FORMATS
    for split in SPLITS:
        writers = [
            RowsWriter(
                directory / split / side,
                tokenizer.vocabulary_size,
                has_pairs=has_pairs,
                is_packed=config.pack,
                pointers=layout.pointers,
            )
            for side in layout.sides
        ]
        if has_pairs and len(TextStore(stored / split)) == 1:
            say(f"{split}: a single document, so that random second segments come from the same one; better give more")
        total = len(TextStore(stored / split).tokens) * config.duplicates
        done = rows = texts = 0
        blocks = layout.rows(stored / split, tokenizer.specials, split, facts)
        with Progress(f"making the {split} rows", total / 1e6, "million tokens", say) as progress:
            for sides in interruption.checked(_packed(blocks, len(layout.sides), config) if config.pack else blocks):
                for writer, block in zip(writers, sides, strict=True):
                    writer.append(block)
                    done += len(block.tokens)
                rows, texts = rows + len(sides[0].lengths), texts + len(sides[0].text_starts)
                progress.update(done / 1e6)
        for writer in writers:
            writer.close()
        facts["rows"][split] = rows
        if not rows:
            left_out = ", ".join(f"{count:,} {name}" for name, count in facts["left_out"].items())
            raise ValueError(
                f"data.source={config.source!r} gives no row of up to {config.sequence_length} tokens for {split}"
                + (f" ({left_out})" if left_out else "")
                + ": give more text or lower data.sequence_length"
                + (", raise data.validation_fraction, or set data.validation_source" if split == "validation" else "")
            )
        filled = ", ".join(
            f"{writer.end / (rows * config.sequence_length):.1%} of the {f'{side} ' if side else ''}positions filled"
            for writer, side in zip(writers, layout.sides, strict=True)
        )
        say(f"{split}: " + (f"{texts:,} texts in " if config.pack else "") + f"{rows:,} rows, {filled}")
    (directory / FACTS).write_text(json.dumps(facts))


def _packed(blocks: Iterable[tuple[Block, ...]], sides: int, config: DataConfig) -> Iterator[tuple[Block, ...]]:
    """Yield the rows of blocks, packed with others as far as they fit, in blocks."""
    texts = (row for block in blocks for row in zip(*(side.rows() for side in block), strict=True))
    return store.blocks(packing.pack(texts, sides, config.sequence_length))


def _combined(digests: list[str]) -> str:
    """Return one hash that combines the hashes of several sources; the hash of a single source is unchanged."""
    return digests[0] if len(digests) == 1 else key(*digests)


def _sizes(layout: Layout, share: float, facts: dict[str, Any]) -> dict[str, Any]:
    """Return a source's name, its `share` in the rows of training, and its counts by split, for a run's summary."""
    names = ("documents", "tokens", "rows", "words")
    sizes = {split: {name: facts[name][split] for name in names} for split in SPLITS}
    return {"source": layout.config.source, "share of the rows of training": share, **sizes}


def _report(config: DataConfig, corpus: Corpus, cache: Cache, say: Say) -> None:
    """Print what was left out of a corpus, the sizes of its sources, and its size as a share of the expected one."""
    if corpus.left_out:
        say(", ".join(f"{count:,} {name}" for name, count in corpus.left_out.items()))
    if config.max_words and (words := corpus.words):
        # Words that are held out of `data.source` count, and those of a text of their own do not.
        count = words["train"] + (0 if config.validation_source else words["validation"])
        note = "" if count >= config.max_words else "; the text has no more, so all of it is read"
        say(f"{count:,} words of the {config.max_words:,} of data.max_words{note}")
    if len(corpus.sources) > 1:
        for source in corpus.sources:
            train, held_out = (source[split] for split in SPLITS)
            say(
                f"{source['source']}: {source['share of the rows of training']:.2%} of the rows that training draws; "
                f"it has {train['tokens']:,} tokens of {train['documents']:,} documents in {train['rows']:,} rows, and "
                f"for validation {held_out['tokens']:,} tokens in {held_out['rows']:,} rows"
            )
    if config.expected_tokens:
        count = corpus.train_tokens
        say(
            f"{count:,} tokens of training text, {count / config.expected_tokens:.1%} of the "
            f"{config.expected_tokens:,} of data.expected_tokens"
        )
    if config.expected_gigabytes:
        say(_share_of_gigabytes(config, config.expected_gigabytes, cache))


def _share_of_gigabytes(config: DataConfig, expected: float, cache: Cache) -> str:
    """Return a message with the size of the files of `data.source`, in all and by part, and the expected size."""
    identities = {part: documents.identity(cache, part) for part in sources.parts(config.source)}
    sizes = {part: sources.size_of_files(items) for part, items in identities.items()}
    gigabytes = {part: size / 1e9 for part, size in sizes.items() if size is not None}
    if without := [part for part in sizes if part not in gigabytes]:
        return f"data.expected_gigabytes={expected:g} is not compared: {', '.join(without)} has no files of known size"
    total, each = sum(gigabytes.values()), ", ".join(f"{part} has {size:,.1f}" for part, size in gigabytes.items())
    is_text = all(sources.is_text_file(item) for items in identities.values() for item in items)
    return (
        f"{total:,.1f} GB of files, {total / expected:.1%} of the {expected:g} of data.expected_gigabytes ({each})"
        + ("" if is_text else "; some are compressed, archives, JSON or tables, of which the text has another size")
    )


def prepare_tokenizer(config: DataConfig, *, quiet: bool = False) -> Tokenizer:
    """Return the tokenizer at `config.tokenizer.path`; without a path, a tokenizer trained on the training text.

    It is trained on about `TOKENIZER_TEXT` characters, as many of each source of a mixture. Of a longer text, documents
    or pairs are taken evenly from all of it. A trained tokenizer is cached and not trained again.
    """
    if config.tokenizer.path:
        tokenizer = tokenizers.load(config.tokenizer.path)
        if tokenizer.lacks and not config.is_parallel:
            raise ValueError(
                f"the tokenizer {config.tokenizer.path} has no token for {' and '.join(tokenizer.lacks)}, so only "
                f"data.format=parallel can use it, got data.format={config.format}: choose another tokenizer"
            )
        if config.masking.unit == "word" and not config.is_parallel:
            _ = tokenizer.word_borders  # raises its error before the text is tokenised
        return tokenizer
    say, cache = announcer(quiet), Cache.of(config)
    layouts = _layouts(config, cache)
    limits = TOKENIZER_TEXT, SENTENCEPIECE_LINES

    def write(directory: pathlib.Path) -> None:
        with Bar("data: training the tokenizer", is_shown=not quiet):
            texts = _TokenizerText(layouts, _tokenizer_shares(config, layouts, say))
            say(f"training a {config.tokenizer.kind} tokenizer of up to {config.tokenizer.vocabulary_size} pieces")
            interruption.wait_for(functools.partial(tokenizers.train, config.tokenizer, texts)).save(directory)
        # The name of the directory stands for the files as they were before they were read.
        if [layout.identity() for layout in layouts] != identities:
            raise tokens.changed_text(config.source)

    identities = [layout.identity() for layout in layouts]
    name = f"tokenizer-{key(identities, dataclasses.asdict(config.tokenizer), limits)}"
    return tokenizers.load(cache.build_once(name, write, config.verify_cache).path)


@dataclasses.dataclass(frozen=True)
class _TokenizerText:
    """The texts that a tokenizer is trained on, as an iterable that can be iterated repeatedly.

    layouts: the text of each source.
    shares: the share of its documents or pairs that are taken of each, evenly spread.
    """

    layouts: Sequence[Layout]
    shares: Sequence[float]

    def __iter__(self) -> Iterator[str]:
        for layout, share in zip(self.layouts, self.shares, strict=True):
            for number, texts in enumerate(layout.training_texts()):
                if math.ceil((number + 1) * share) > math.ceil(number * share):
                    yield from texts


def _tokenizer_shares(config: DataConfig, layouts: Sequence[Layout], say: Say) -> list[float]:
    """Return the share of the training documents or pairs of each source on which a tokenizer is trained.

    Each source gives as many characters and, for sentencepiece, which is trained on a limited number of lines, as many
    lines, as far as it has them.
    """
    counts_lines = config.tokenizer.kind.startswith("sentencepiece")
    most_characters, most_lines = TOKENIZER_TEXT // len(layouts), SENTENCEPIECE_LINES // len(layouts)
    if all(layout.characters() <= min(most_characters, most_lines if counts_lines else math.inf) for layout in layouts):
        return [1.0] * len(layouts)
    say("counting the characters of the text, for the tokenizer")
    shares, lines = [], []
    for layout in layouts:
        before = characters = count = 0  # `before` lacks the last document
        for texts in layout.training_texts():
            before, characters = characters, characters + sum(map(len, texts))
            count += sum(1 for text in texts for _ in sentencepiece_lines(text)) if counts_lines else 0
        shares.append(most_characters / characters if before >= most_characters else 1.0)
        lines.append(count)
    if sum(share * count for share, count in zip(shares, lines, strict=True)) > SENTENCEPIECE_LINES:
        shares = [min(share, most_lines / max(count, 1)) for share, count in zip(shares, lines, strict=True)]
    for layout, share in zip(layouts, shares, strict=True):
        if share < 1:
            say(f"the tokenizer is trained on {share:.1%} of {layout.config.source}, evenly spread")
    return shares


def source_files(config: DataConfig, *, quiet: bool = False) -> dict[str, list[list[Any]]]:
    """Return {setting: [[name, size in bytes, content hash], ...]} of the files that the settings of sources name.

    The hashes are cached; all files are read again when the name, size or time of one has changed. Of content that is
    known without reading it, such as that of an object store, the fingerprint is taken for the hash.
    """
    say, cache = announcer(quiet), Cache.of(config)
    layout: Layout = Pairs(config) if config.is_parallel else Documents(config, cache)

    def write(directory: pathlib.Path) -> None:
        files_of = layout.files()
        paths = [path for items in files_of.values() for _, path in items]
        sizes = [path.stat().st_size for path in paths if isinstance(path, pathlib.Path)]
        if sizes:
            say(f"hashing {len(sizes):,} files")
        hashes: dict[str, list[list[Any]]] = {setting: [] for setting in files_of}
        done = 0
        with Progress("hashing the files", sum(sizes) / 1e6, "MB", say) as progress:
            for setting, items in files_of.items():
                for name, path in items:
                    if isinstance(path, KnownContent):
                        hashes[setting].append([name, path.size, path.fingerprint])
                        continue
                    size = path.stat().st_size
                    hashes[setting].append([name, size, checksums.content_hash(path)])
                    done += size
                    progress.update(done / 1e6)
        (directory / "files.json").write_text(json.dumps(hashes))
        if layout.identity() != identity:  # which the name of the directory stands for
            raise tokens.changed_text(config.source)

    identity = layout.identity()
    entry = cache.build_once(f"files-{key(identity)}", write, config.verify_cache)
    return json.loads((entry.path / "files.json").read_text())


def empty_batch(config: DataConfig, rows: int) -> HostBatch:
    """Return zeros with a batch's fields, shapes and types; as broadcast scalars, they take no memory."""
    return (pair_batching if config.is_parallel else text_batching).empty_batch(config, rows)


@dataclasses.dataclass(frozen=True)
class Batches:
    """Training batches; row i of the batch of step s is a pure function of (seed, s, i).

    `ag_jax.data.order` describes the order, for several sources with weights `mixture`. Masks depend on (seed, epoch,
    row of the corpus).

    rows: rows of the training text.
    tokenizer: the tokenizer of the rows.
    config: the settings of the data.
    batch_size: number of rows of a batch, or of the batches of all steps.
    seed: seed of the order and of the masks.
    start: of pairs, the token id at the first position of every target text; None for the padding token, for decoders
        that begin with a vector of zeros.

    Raises ValueError if the corpus has fewer rows than a batch.
    """

    rows: Any
    tokenizer: Tokenizer
    config: DataConfig
    batch_size: int | BatchSizes
    seed: int
    start: int | None = None

    def __post_init__(self):
        for size in (self.sizes.last, *self.sizes.earlier):
            order.check_batch_size(len(self.rows), size)

    @property
    def sizes(self) -> BatchSizes:
        """The number of rows of the batch of every step."""
        return BatchSizes.of(self.batch_size)

    @functools.cached_property
    def unigram(self) -> Unigram | None:
        """Token frequencies of the training text with `data.masking.replacement="unigram"`, else None."""
        return Unigram.of(self.rows, self.tokenizer) if self.config.masking.replacement == "unigram" else None

    def at(self, step: int, rows: slice | np.ndarray = slice(None)) -> HostBatch:
        """Return the batch of a step; with `rows`, a slice or indices, only the rows that this host needs."""
        example_B, epoch_B = mixture.drawn(self.rows, self.sizes.numbers(step)[rows], self.seed)
        return self.make(self.rows, self.config, example_B, epoch_B, step)

    def make(
        self, rows: Any, config: DataConfig, example_B: np.ndarray, epoch_B: np.ndarray, step: int = 0
    ) -> HostBatch:
        """Return the batch of some rows; `example_B` has the index of each, or -1 for an empty row."""
        if config.is_parallel:
            start = self.tokenizer.specials.pad if self.start is None else self.start
            return pair_batching.make_batch(config, rows, self.tokenizer, example_B=example_B, start=start)
        return text_batching.make_batch(
            config,
            rows,
            self.tokenizer,
            example_B=example_B,
            epoch_B=epoch_B,
            seed=self.seed,
            unigram=self.unigram,
            step=step,
        )

    def iterate(
        self, start: int, stop: int, rows: order.HostRows = order.all_rows, threads: int = 1
    ) -> Iterator[HostBatch]:
        """Return the batches of steps `start` to `stop` - 1, prefetched by `threads` threads (grain).

        rows: number of rows of a batch -> the rows (a slice or indices) that this host needs.
        """
        return order.prefetched(lambda step: self.at(step, rows(self.sizes.at(step))), start, stop, threads)


def batches(
    corpus: Corpus, config: DataConfig, batch_size: int | BatchSizes, seed: int, start: int | None = None
) -> Batches:
    """Return the training batches of a corpus; the arguments are the fields of `Batches`."""
    return Batches(corpus.train, corpus.tokenizer, config, batch_size, seed, start)


def validation_batches(
    corpus: Corpus,
    config: DataConfig,
    batch_size: int,
    rows: slice | np.ndarray = slice(None),
    start: int | None = None,
    most: int | None = None,
) -> Iterator[HostBatch]:
    """Yield batches with every validation row once, always with the same masks; the last is padded with empty rows.

    config: the settings of the data; the rate of masks is that for evaluation (`MaskingConfig.for_evaluation`), and
        unigram draws have the frequencies of the training text.
    rows: the rows of each batch (a slice or indices) that this host needs.
    most: if there are more rows for validation, yield this many of them, evenly spaced.

    The other arguments are those of `batches`.
    """
    maker = Batches(corpus.train, corpus.tokenizer, config, BatchSizes(0), seed=0, start=start)
    config = dataclasses.replace(config, masking=config.masking.for_evaluation)
    for example_B in order.once(len(corpus.validation), batch_size, rows, most):
        yield maker.make(corpus.validation, config, example_B, np.zeros_like(example_B))


def validation_batch_count(corpus: Corpus, batch_size: int, most: int | None = None) -> int:
    """Return the number of batches that `validation_batches` yields."""
    return -(-order.once_count(len(corpus.validation), most) // batch_size)

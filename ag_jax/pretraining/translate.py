"""Translate lines of text with a trained model, and write files of translations that can be resumed.

Shape letters: B batch, S source length, K beams, T target length.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from ag_jax.attention.adversary import split_params
from ag_jax.data.json_files import read_json
from ag_jax.data.records import files, formats
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import lock, storage
from ag_jax.models import beam_search
from ag_jax.models.beam_search import Hypotheses
from ag_jax.models.decoder import reorder, with_room
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.models.one_line import one_line
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.pretraining import run_directory, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun, open_run
from ag_jax.settings import schema
from ag_jax.training.checkpoint import Checkpoints

WINDOW = 1024  # lines that are read before they are translated, sorted by length; then they are written
LARGEST_LINE = 2**20  # bytes of a line, and characters after which a window takes no further line
SHORTEST = 8  # static lengths of sources are this one, twice as much, and so on
TOKENS = 2048  # source positions of a batch, at most
ROWS = 64  # sentences of a batch, at most


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation of a line of text, with its score.

    text: the translated text.
    score: normalised log-probability, by which hypotheses are compared.
    ended: whether the model ended the text; otherwise its maximum length cut it off.
    """

    text: str
    score: float
    ended: bool


@dataclasses.dataclass(frozen=True)
class Engine:
    """Another program that searches the translations of a `Translator`.

    name: the program with its version; a file of translations is resumed only by the same.
    search: (token ids of sources without their end tokens, largest length of each translation, settings of decoding) ->
        hypotheses. Raises ValueError for settings by which the program cannot search.
    """

    name: str
    search: Callable[[Sequence[Sequence[int]], np.ndarray, DecodingConfig], Hypotheses]


@dataclasses.dataclass(frozen=True, eq=False)
class Translator:
    """A translation model with its parameters, tokenizer and settings of decoding.

    start: token id that the decoder reads first.
    name: where the model comes from, for messages; such as the run's directory and the steps of its checkpoints.
    engine: program that searches in place of `beam_search.search`.
    """

    model: TranslationModel
    params: Any
    tokenizer: Tokenizer
    config: DecodingConfig
    start: int
    name: str
    engine: Engine | None = None

    __repr__ = one_line

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Token ids that no translation contains, ascending: padding, begin and mask token, and ids without a token."""
        specials, rows = self.tokenizer.specials, self.model.config.vocabulary_size or 0
        without_text = {specials.pad, specials.mask, specials.begin, *range(self.tokenizer.vocabulary_size, rows)}
        # The end token is not forbidden, even if a decoder starts from it.
        return tuple(sorted(without_text - {specials.end}))

    def __call__(self, lines: Sequence[str]) -> list[list[Translation]]:
        """Return the translations of each line, the best first, as many as `config.beam_size`.

        Lines are translated together with lines of about the same length, but their translations do not depend on one
        another. A line without text gets one empty translation, without running the model.

        Raises ValueError for a line with more tokens than the model has positions.
        """
        translations: list[list[Translation]] = [[Translation("", 0.0, True)] for _ in lines]
        ids = dict(enumerate(self.tokenizer.encode_batch([line.strip() for line in lines])))
        ids = {number: list(of_line) for number, of_line in ids.items() if len(of_line)}
        longest = self.model.config.max_length - 1  # one is for the end token
        for number, of_line in ids.items():
            if len(of_line) > longest:
                raise LineTooLong(number, len(of_line), longest)
        by_length = sorted(ids, key=lambda number: (_static_length(len(ids[number]) + 1), number))
        for length, group in itertools.groupby(by_length, key=lambda number: _static_length(len(ids[number]) + 1)):
            length = min(length, self.model.config.max_length)
            # An engine makes batches of its own, of as many as it gets.
            rows = WINDOW if self.engine else max(1, min(ROWS, TOKENS // length))
            for batch in _batched(group, rows):
                hypotheses = self._search([ids[number] for number in batch], rows, length)
                for row, number in enumerate(batch):
                    translations[number] = self._texts(hypotheses, row, lines[number])
        return translations

    def beginning(self, text: str, most: int) -> Translation:
        """Return the best translation of a text, or of its first `most` tokens if it has more.

        `most` is lowered to what the model has positions for. A text without tokens has an empty translation.
        """
        positions = self.model.config.max_length
        ids = list(self.tokenizer.encode(text.strip()))[: min(most, positions - 1)]  # one position is for the end token
        if not ids:
            return Translation("", 0.0, True)
        length = min(_static_length(len(ids) + 1), positions)
        return self._texts(self._search([ids], 1, length), 0, text)[0]

    def _search(self, sources: list[list[int]], rows: int, length: int) -> Hypotheses:
        """Search translations of tokenized sources, padded to a batch of `rows` rows with `length` positions."""
        specials, most = self.tokenizer.specials, self.model.config.max_length  # positions of encoder and decoder
        if self.engine is not None:
            _, longest_B = self.config.length_limits([len(source) for source in sources])
            return self.engine.search(sources, np.minimum(longest_B, most), self.config)
        tokens_BS = np.full((rows, length), specials.pad, np.int32)
        sizes_B = np.ones(rows, np.int32)  # of the sources; rows that fill up the batch have the end token only
        for row, source in enumerate(sources):
            tokens_BS[row, : len(source)] = source
            sizes_B[row] = len(source)
        is_used_B = np.arange(rows) < len(sources)
        ends_B = np.where(is_used_B, sizes_B, 0)
        tokens_BS[np.arange(rows), ends_B] = specials.end
        segments_BS = (np.arange(length)[None, :] <= ends_B[:, None]).astype(np.int32)
        shortest_B, longest_B = self.config.length_limits(sizes_B)
        longest_B = np.where(is_used_B, np.minimum(longest_B, most), 1)
        steps = int(min(self.config.length_limits([length - 1])[1][0], most))
        hypotheses = _search(
            self.params,
            {"tokens": tokens_BS, "segment_ids": segments_BS, "token_type_ids": np.zeros_like(tokens_BS)},
            np.full(rows, self.start, np.int32),
            np.minimum(shortest_B, longest_B),
            longest_B,
            model=self.model,
            config=self.config,
            end=specials.end,
            forbidden=self.forbidden,
            steps=steps,
        )
        return jax.device_get(hypotheses)

    def _texts(self, hypotheses: Hypotheses, row: int, line: str) -> list[Translation]:
        if not np.isfinite(hypotheses.scores_BK[row, 0]):
            raise ValueError(
                f"{self.name} gives no probabilities for the line {line[:80]!r}: its parameters are not finite, or "
                "every token is impossible; translate with another checkpoint (--step)"
            )
        translations = []
        for beam, size in enumerate(hypotheses.lengths_BK[row].tolist()):
            if not np.isfinite(hypotheses.scores_BK[row, beam]):
                break
            ids = hypotheses.tokens_BKT[row, beam, :size].tolist()
            ended = bool(ids) and ids[-1] == self.tokenizer.specials.end
            text = self.tokenizer.decode(ids[:-1] if ended else ids).strip()
            # A line is a translation, so no line break of a byte-level tokenizer may stay in it.
            translations.append(Translation(" ".join(text.splitlines()), float(hypotheses.scores_BK[row, beam]), ended))
        return translations

    def with_decoding(self, **settings: Any) -> "Translator":
        """Return this translator with other settings of decoding. Raises ValueError for values that are not allowed."""
        config = dataclasses.replace(self.config, **settings)
        schema.check(config, "decoding")
        return dataclasses.replace(self, config=config)

    def settings(self) -> dict[str, Any]:
        """Return what translations depend on besides the lines, as JSON values: model, tokenizer, decoding, engine."""
        digest = hashlib.sha256()
        for path, leaf in sorted(
            (jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(self.params)
        ):
            digest.update(path.encode())
            digest.update(np.ascontiguousarray(leaf).tobytes())
        return {
            "parameters": digest.hexdigest()[:16],
            "model": schema.to_dict(self.model.config),  # two models may have the same parameters
            "decoder": schema.to_dict(self.model.decoder_config),
            "tokenizer": self.tokenizer.fingerprint(),
            "start": self.start,
            "decoding": schema.to_dict(self.config),
            **({"engine": self.engine.name} if self.engine else {}),
        }


class LineTooLong(ValueError):
    """Raised if a line has more tokens than the model has positions.

    number: index of the line in what was to be translated.
    """

    def __init__(self, number: int, tokens: int, most: int):
        super().__init__(
            f"line {number + 1} has {tokens} tokens, and the model has positions for {most}: split the line"
        )
        self.number, self.tokens, self.most = number, tokens, most


def _batched(items: Iterable[int], size: int) -> Iterator[tuple[int, ...]]:
    iterator = iter(items)
    while batch := tuple(itertools.islice(iterator, size)):
        yield batch


def _static_length(tokens: int) -> int:
    """Return the length to which a source is padded: a power of two, so that only a few lengths are compiled."""
    return max(SHORTEST, 1 << (tokens - 1).bit_length())


@functools.partial(jax.jit, static_argnames=("model", "config", "end", "forbidden", "steps"))
def _search(
    params: Any,
    batch: dict[str, jax.Array],
    start_B: jax.Array,
    shortest_B: jax.Array,
    longest_B: jax.Array,
    *,
    model: TranslationModel,
    config: DecodingConfig,
    end: int,
    forbidden: tuple[int, ...],
    steps: int,
) -> Hypotheses:
    """Encode the sources of a batch and search their translations with beam search."""
    variables = {"params": params}
    source = model.apply(variables, batch, method="encode")
    # Most translations are about as long as their source; the maximum is for the few that are not.
    rooms = [room for room in (batch["tokens"].shape[1] * 5 // 4 + 4,) if room < steps]
    cache = model.apply(variables, start_B.shape[0], config.beam_size, [*rooms, steps][0], method="empty_cache")

    def step(cache: Any, tokens_BK: jax.Array, index: jax.Array) -> tuple[jax.Array, Any]:
        return model.apply(variables, source, cache, tokens_BK, index, method="step")

    return beam_search.search(
        step,
        cache,
        config=config,
        start_B=start_B,
        end=end,
        forbidden=forbidden,
        min_lengths_B=shortest_B,
        max_lengths_B=longest_B,
        steps=steps,
        rooms=rooms,
        grow=with_room,
        reorder=reorder,
    )


def translator_of(opened: OpenRun) -> Translator:
    """Return the translator of an opened run, with the parameters of the checkpoint at which it was opened.

    Raises ValueError for a run that does not translate.
    """
    name = f"{opened.workdir} (step {opened.step})"
    return make_translator(opened.config, opened.model, opened.params, opened.tokenizer, opened.workdir, name)


def make_translator(
    config: ExperimentConfig,
    model: workloads.Model,
    params: Any,
    tokenizer: Tokenizer,
    directory: epath.PathLike,
    name: str,
) -> Translator:
    """Return the translator of a model with these parameters, which decodes as its config says.

    directory: of the model.
    name: where the parameters come from, for messages.

    Raises ValueError for a model that does not translate.
    """
    if not isinstance(model, TranslationModel):
        raise _does_not_translate(directory)
    start = workloads.start_token(config, tokenizer)
    start = tokenizer.specials.pad if start is None else start
    return Translator(model, params, tokenizer, config.decoding, start, name)


def _does_not_translate(directory: epath.PathLike) -> ValueError:
    return ValueError(
        f"{directory} is a run that pre-trains an encoder, expected one that translates: train one with "
        "`ag-jax train --config=translate:...` or ag/table7_translation"
    )


def open_translator(
    workdir: epath.PathLike,
    step: int | None = None,
    decoding: Sequence[str] = (),
    config: ExperimentConfig | None = None,
) -> Translator:
    """Open a run's translation model with the mean of its newest checkpoints, or with the single checkpoint at `step`.

    The number of averaged checkpoints is `translation.average`; fewer if the run has not saved so many yet, which is
    printed.

    step: step of a checkpoint, whose parameters are then not averaged.
    decoding: settings of the section `decoding` that replace those of the run, such as `beam_size=1`.
    config: config of the run, with the number of averaged checkpoints and the section `decoding` to use; by default
        the stored one.

    Raises ValueError for a run that does not translate, and for settings that do not exist.
    """
    config = config or run_directory.read_config(workdir)
    settings = schema.parse(DecodingConfig, schema.to_dict(config.decoding) | _settings(decoding))
    if not config.translates:
        raise _does_not_translate(workdir)
    opened = dataclasses.replace(open_run(workdir, step), config=config)
    params, steps = parameters(opened, step)
    return dataclasses.replace(
        translator_of(opened),
        params=params,
        config=settings,
        name=f"{opened.workdir} (step {', '.join(map(str, steps))})",
    )


def parameters(opened: OpenRun, step: int | None) -> tuple[Any, list[int]]:
    """Return (parameters with which a run translates, steps of the checkpoints whose mean they are).

    opened: the run, at its newest checkpoint if `step` is None.
    step: step of a checkpoint, whose parameters are then not averaged.
    """
    count = opened.config.translation.average
    if step is not None or count == 1:
        return opened.params, [opened.step]
    steps = _newest(opened.steps, opened.config.training.checkpoint_every, count)
    if len(steps) < count:
        print(
            f"{opened.workdir}: averaging {len(steps)} checkpoints, since no more of translation.average={count} are "
            "saved",
            file=sys.stderr,
        )
    return averaged(opened.workdir, steps), steps


def _settings(items: Sequence[str]) -> dict[str, Any]:
    """Parse settings of decoding, such as `beam_size=1`, to {name: value}.

    Raises ValueError for unknown names and wrong types.
    """
    defaults: dict[str, Any] = schema.to_dict(DecodingConfig())
    settings = {}
    for item in items:
        name, separator, value = (part.strip() for part in item.partition("="))
        if not separator:
            raise ValueError(f"--decoding is a list of NAME=VALUE, such as beam_size=1, got {item!r}")
        if name not in defaults:
            raise ValueError(f"--decoding: {schema.unknown_key(name, list(defaults))}")
        kind = type(defaults[name])
        try:
            settings[name] = kind(value)
        except ValueError as error:
            expected = "a whole number" if kind is int else "a number"
            raise ValueError(f"--decoding: {name} must be {expected}, got {value!r}") from error
    return settings


def check_average(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError if a run lacks one of the checkpoints that `translation.average` averages.

    Checkpoints that the run is too short for are not missed.
    """
    steps, every, count = (
        run_directory.checkpoint_steps(workdir),
        config.training.checkpoint_every,
        config.translation.average,
    )
    saved, averaged_steps = _newest(steps, every, count), _averaged_steps(steps[-1], every, count)
    if len(saved) < len(averaged_steps):
        raise ValueError(
            f"translation.average={count} averages {len(averaged_steps)} checkpoints of {workdir}, steps "
            f"{', '.join(map(str, averaged_steps))}, but only {len(saved)} of these are saved: set translation.average="
            f"{len(saved)}, or delete the folder of this run to train it again"
        )


def _averaged_steps(last: int, every: int, count: int) -> list[int]:
    """Return the step `last` and the multiples of `every` before it, at most `count` in all, ascending."""
    before = range((last - 1) // every * every, 0, -every)[: count - 1]
    return [*reversed(before), last]


def _newest(steps: Sequence[int], every: int, count: int) -> list[int]:
    """Return the step of the newest checkpoint and the saved multiples of `every` before it, at most `count` in all.

    A missing multiple ends the search: before it lie only milestones, which belong to another time of the training.
    """
    expected = reversed(_averaged_steps(steps[-1], every, count))
    return list(itertools.takewhile(lambda step: step in steps, expected))[::-1]


def averaged(workdir: epath.PathLike, steps: Sequence[int]) -> Any:
    """Return the mean of a run's parameters at several steps, in their data types; it is computed in float64."""
    checkpoints = Checkpoints(epath.Path(workdir) / "checkpoints", read_only=True)
    total: Any = None
    for step in steps:
        params, _ = split_params(checkpoints.restore_params(step))
        params = jax.tree.map(lambda leaf: np.asarray(leaf), params)
        wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    checkpoints.close()
    return jax.tree.map(lambda leaf, like: jnp.asarray((leaf / len(steps)).astype(like.dtype)), total, params)


def lines_of(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a stream of UTF-8, without their line ends; only \\n and \\r\\n end a line.

    A byte order mark at the beginning is left out, as in the files of training and of tests.

    Raises ValueError, with the number of the line, for bytes that are not UTF-8, and for a line that is longer than any
    model reads.
    """
    for _, line in formats.lines(stream, name, LARGEST_LINE):
        yield line.removesuffix("\n").removesuffix("\r")


@dataclasses.dataclass(frozen=True)
class Done:
    """Size and hashes of the part of an output file that is translated already.

    lines: number of lines.
    size: number of bytes of the output.
    source: SHA-256 of the source lines.
    output: SHA-256 of the output.
    whole: whether these are all lines of the source.
    """

    lines: int
    size: int
    source: str
    output: str
    whole: bool = False


NOTHING_DONE = Done(0, 0, hashlib.sha256().hexdigest(), hashlib.sha256().hexdigest())


def translate(open_model: Callable[[], Translator], source: str, output: str) -> None:
    """Translate a file into another one, as the verb `translate` does; `-` stands for standard input and output.

    open_model: opens the model, once the files have been checked.
    source: a file of UTF-8, compressed if its name ends with .gz and the like.
    output: a local file, which grows by whole lines; an interrupted command resumes (`translate_file`). While it is
        written, a file beside it, its name with `.lock` appended, is its lock.

    Raises ValueError or FileNotFoundError for files that cannot be used.
    """
    name = "standard input" if source == "-" else source
    if source == "-":
        lines = lines_of(sys.stdin.buffer, name)
    elif pathlib.Path(source).is_file():
        lines = _lines_of_file(pathlib.Path(source))
    else:
        raise ValueError(f"--input={source} must be a local file, or - for standard input")
    if output == "-":
        for text in translate_stream(open_model(), lines, name):
            sys.stdout.buffer.write(f"{text}\n".encode())  # in UTF-8 like the input, whatever the locale
            sys.stdout.buffer.flush()
        return
    if "://" in output or pathlib.Path(output).is_dir():
        raise ValueError(f"--output={output} must be a local file, to which lines can be appended")
    if not pathlib.Path(output).parent.is_dir():
        raise FileNotFoundError(f"the folder of --output={output} does not exist: create it, or give another file")
    with lock.hold(epath.Path(f"{output}.lock"), what=f"--output={output}"):
        _existing_output(pathlib.Path(output))  # only for its errors
        translator = open_model()
        try:
            count = translate_file(translator, lines, pathlib.Path(output), name)
        except OSError as error:
            error.filename = error.filename or output  # a failed write does not name its file, a failed read does
            raise
    print(f"{count:,} lines are translated in {output}", file=sys.stderr)


def _lines_of_file(file: pathlib.Path) -> Iterator[str]:
    """Yield the lines of a file, decompressed if its name says so.

    A generator, because `files.decompressed` blames the file for every error inside of its `with` statement, and an
    error in writing the output is none of reading the input.
    """
    with files.decompressed(file) as stream:
        yield from lines_of(stream, str(file))


def translate_file(translator: Translator, source: Iterable[str], output: pathlib.Path, source_name: str) -> int:
    """Translate lines into a file, or resume where an interrupted command stopped; returns the number of all lines.

    The file grows by whole lines. A file beside it, its name with `.progress.json` appended, says what it holds. Lines
    that are done are read again from the source, checked against a hash of those that were translated, and skipped.

    source_name: name of the source in messages.
    Raises ValueError if there is an output made with other settings, another model or another source.
    """
    progress, settings = _progress(output), translator.settings()
    done = _check_begun(output, settings)
    lines, seen = iter(source), hashlib.sha256()
    for number in range(done.lines):
        line = next(lines, None)
        if line is None:
            raise ValueError(
                f"{source_name} has {number} lines, but {done.lines} lines were translated to {output} before: give "
                "the same source, or another output"
            )
        seen.update(line.encode() + b"\n")
    if seen.hexdigest() != done.source:
        raise ValueError(
            f"the first {done.lines} lines of {source_name} are not those that were translated to {output} before: give"
            f" the same source, or delete {output} and {progress.name}"
        )
    if done.whole:
        if next(lines, None) is not None:
            raise ValueError(
                f"{source_name} has more than the {done.lines} lines that were translated to {output} before: give the "
                "same source, or another output"
            )
        lines = iter(())
    if not done.lines:  # before anything is written, so that a command that is killed now can be resumed, too
        _write_progress(progress, settings, done)
    count = done.lines
    with open(output, "r+b" if done.lines else "w+b") as file:
        written = _digest(file, done.size)
        if written.hexdigest() != done.output or (done.whole and file.read(1)):
            raise ValueError(
                f"{output} is not what {progress.name} says, so it was changed: delete both to begin again"
            )
        file.truncate(done.size)  # what was written after the last note of the progress, such as half a line
        for window in _windows(lines):
            texts = "".join(f"{text}\n" for text in _best_translations(translator, window, count, source_name)).encode()
            file.write(texts)
            file.flush()
            os.fsync(file.fileno())
            count += len(window)
            written.update(texts)
            for line in window:
                seen.update(line.encode() + b"\n")
            now = Done(count, file.tell(), seen.hexdigest(), written.hexdigest())
            _write_progress(progress, settings, now)
            print(f"{count:,} lines translated", file=sys.stderr, flush=True)
        now = Done(count, file.tell(), seen.hexdigest(), written.hexdigest(), whole=True)
    _write_progress(progress, settings, now)
    return count


def _digest(file: IO[bytes], size: int) -> Any:
    """Read the next `size` bytes of a file, and return a SHA-256 object of them."""
    digest, remaining = hashlib.sha256(), size
    while remaining and (block := file.read(min(remaining, 2**20))):
        digest.update(block)
        remaining -= len(block)
    return digest


def _best_translations(translator: Translator, lines: Sequence[str], first: int, source_name: str) -> list[str]:
    """Return the best translation of each line; `first` is the number of lines before them, for error messages."""
    try:
        return [hypotheses[0].text for hypotheses in translator(lines)]
    except LineTooLong as error:
        raise ValueError(f"{source_name}: {LineTooLong(first + error.number, error.tokens, error.most)}") from error


def translate_stream(translator: Translator, source: Iterable[str], source_name: str) -> Iterator[str]:
    """Yield the best translation of each line, in order."""
    count = 0
    for window in _windows(iter(source)):
        yield from _best_translations(translator, window, count, source_name)
        count += len(window)


def _windows(lines: Iterator[str]) -> Iterator[list[str]]:
    window: list[str] = []
    size = 0
    for line in lines:
        window.append(line)
        size += len(line)
        if len(window) == WINDOW or size >= LARGEST_LINE:
            yield window
            window, size = [], 0
    if window:
        yield window


def _progress(output: pathlib.Path) -> pathlib.Path:
    return output.with_name(f"{output.name}.progress.json")


def _existing_output(output: pathlib.Path) -> tuple[Done, dict[str, Any]]:
    """Return (part of the file `output` that an earlier command translated, settings of that command).

    Raises ValueError if it was written by something else.
    """
    progress = _progress(output)
    if not output.exists() or not progress.exists():
        if output.exists() and output.stat().st_size:
            raise ValueError(
                f"{output} exists, and no {progress.name} says what it holds: choose another --output, or delete it"
            )
        return NOTHING_DONE, {}
    types = {"lines": int, "size": int, "source": str, "output": str, "whole": bool}
    stored = read_json(progress, dict, {"settings": dict} | types)
    done = Done(**{name: stored[name] for name in types})
    return (done, stored["settings"]) if done.lines else (NOTHING_DONE, {})


def _check_begun(output: pathlib.Path, settings: dict[str, Any]) -> Done:
    """Check that an output file was begun with the same settings, and return the part of it that is translated already.

    Raises ValueError if other settings, or another program, made the file.
    """
    done, stored = _existing_output(output)
    before, after = schema.flat(stored), schema.flat(settings)
    different = [
        f"  {key}: there {before.get(key)!r}, now {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]
    if done.lines and different:
        raise ValueError(
            f"{output} was begun with another model or other settings, by {_progress(output).name}:\n"
            + "\n".join(different)
            + f"\nUse those, or delete {output}"
        )
    return done


def _write_progress(path: pathlib.Path, settings: dict[str, Any], done: Done) -> None:
    content = json.dumps({"settings": settings, **dataclasses.asdict(done)})
    storage.write_whole(epath.Path(path), content + "\n")

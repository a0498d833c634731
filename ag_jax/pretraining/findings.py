"""The beginning of a comparison's report: the result in sentences, and what was compared."""

import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ag_jax.analysis.maps import MEANINGS, title
from ag_jax.attention.assignment import Assignment, assign_cross_heads, assign_decoder_heads
from ag_jax.data import progress
from ag_jax.data.corpus import Corpus
from ag_jax.data.records import sources
from ag_jax.evaluation.significance import SIGNIFICANT
from ag_jax.evaluation.translation import LABELS
from ag_jax.objectives.base import PrimaryMetric
from ag_jax.pretraining import build
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema

SOTU = "State of the Union messages"
MOST_SETTINGS = 3  # of an arm that are named; the others are in the report's table
APART = 2.0  # standard errors of the difference of two losses from which on they are told apart


class Difference(NamedTuple):
    """The difference of an arm from the baseline in one metric, such as the validation loss.

    value: the metric of the arm, a mean over its seeds.
    base: the metric of the baseline, likewise.
    evidence: number of seeds and, if it is known, an interval or a standard error, for people.
    is_apart: whether this evidence tells arm and baseline apart; None with neither an interval nor a standard error.
    """

    value: float
    base: float
    evidence: str
    is_apart: bool | None

    @property
    def change(self) -> float:
        """The number of the arm minus that of the baseline."""
        return self.value - self.base

    @property
    def size(self) -> str:
        """The size of the difference, without its sign."""
        return _number(abs(self.change))


def _number(value: float, sign: str = "") -> str:
    kind = ".2f" if abs(value) >= 0.1 else ".3f" if abs(value) >= 0.001 or value == 0 else ".1g"
    return f"{value:{sign}{kind}}"


def difference(
    base: Sequence[float],
    values: Sequence[float],
    over_seeds: Mapping[str, Any] | None,
    noise: float | None = None,
    over_sentences: Sequence[float] | None = None,
) -> Difference:
    """Return the difference of an arm from the baseline, with what tells it from chance.

    base, values: the numbers of the baseline and of the arm, one for each seed.
    over_seeds: the `PairedDifference` as JSON; None if there is one seed, or if all differences are equal.
    noise: with one seed, the standard error of the difference that the length of the held-out text leaves.
    over_sentences: with one seed, the 95 % interval of the difference over sentences.
    """
    count, value, start = len(values), sum(values) / len(values), sum(base) / len(base)
    change, bounds = value - start, over_seeds["interval"] if over_seeds else over_sentences
    seeds = "one seed" if count == 1 else f"{count} seeds"
    if bounds is not None:
        low, high = bounds
        holm = over_seeds["p_corrected"] if over_seeds else 0.0
        is_apart = (low > 0 or high < 0) and holm < SIGNIFICANT
        ends = [_number(abs(end)) for end in sorted(bounds, key=abs)]
        if not is_apart:
            ends = [_number(low, "+"), _number(high, "+")]
        # The interval is not corrected for the number of tests, by which arms are told apart.
        lost = f", but p = {holm:.2g} after Holm's correction" if low * high > 0 and not is_apart else ""
        over = "" if over_seeds else " over sentences"
        return Difference(value, start, f"{seeds}, 95 % interval{over} {ends[0]} to {ends[1]}{lost}", is_apart)
    if count == 1 and noise is not None and abs(change) < APART * noise:
        return Difference(value, start, f"one seed, standard error {noise:.3f} from the held-out text alone", False)
    is_unknown = count == 1 and noise is None and change != 0
    return Difference(value, start, seeds, None if is_unknown else change != 0)


def standard_error(
    baseline: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], metric: str, tokens: float
) -> float | None:
    """Return the standard error of the difference of two validation losses due to the finite held-out text.

    It is estimated from the difference of the two logged training losses, each a mean over some batches, in the second
    half of the logged steps. The variance of this difference is half the mean squared change from one logged step to
    the next; it is scaled by the number of tokens between two steps, divided by that of the held-out text. None if
    there are fewer than four such steps.

    baseline, rows: the rows of metrics.jsonl of each run.
    metric: name of the loss.
    tokens: number of tokens of the held-out text.
    """
    one, other = (
        {row["step"]: row for row in of if row["split"] == "train" and row.get(metric) is not None}
        for of in (baseline, rows)
    )
    steps = sorted(one.keys() & other.keys())
    steps = steps[len(steps) // 2 :]
    if len(steps) < 4 or not tokens:
        return None
    apart = [other[step][metric] - one[step][metric] for step in steps]
    squares = [(later - before) ** 2 for before, later in itertools.pairwise(apart)]
    variance = sum(squares) / len(squares) / 2
    tokens_of_row = (one[steps[-1]]["tokens_seen"] - one[steps[0]]["tokens_seen"]) / len(squares)
    return math.sqrt(variance * tokens_of_row / tokens)


def heading(config: ExperimentConfig) -> str:
    """Return the title of a comparison's report: the config's title and, unless it is translated, the text."""
    return config.title if config.translates else f"{config.title}, on {text_name(config.data.source)}"


def text_name(source: str) -> str:
    """Return the name of a text source for people, without the directories of a path on this machine."""
    names = [_part_name(part) for part in sources.parts(source)]
    more = f" and {len(names) - MOST_SETTINGS} more" if len(names) > MOST_SETTINGS else ""
    return ", ".join(names[:MOST_SETTINGS]) + more


def _part_name(part: str) -> str:
    if part == "sotu":
        return SOTU
    return pathlib.PurePath(part).name if pathlib.PurePath(part).is_absolute() else part


def result(primary: PrimaryMetric, content: Mapping[str, Any], subjects: Mapping[str, str]) -> str:
    """Return the result of a comparison in sentences.

    content: the numbers of the report (`report.numbers`).
    subjects: for each arm but the baseline, what differs from it as the subject of a sentence (`Guidance`); empty if
        that is no single thing.
    """
    baseline, *others = content["arms"]
    unit = primary.unit.partition(" per ")[0]
    sentences = []
    for test, of_test in content.get("translations", {}).items():
        found = {arm: _of_translations(of_test, baseline, arm) for arm in others}
        what = f"{LABELS['bleu']} on {test}"
        sentences.append(_sentence(found, what, "points", baseline, subjects, is_lower_better=False))
    found = {arm: of_validation(content, arm) for arm in others}
    sentences.append(_sentence(found, "validation loss", unit, baseline, subjects))
    return " ".join(filter(None, sentences))


def of_validation(content: Mapping[str, Any], arm: str) -> Difference:
    """Return the difference of an arm's validation loss from that of the baseline, from the numbers of a report."""
    base, values = (content["arms"][of]["values"]["validation_loss"] for of in (content["baseline"], arm))
    return difference(
        base, values, content["differences"][arm]["validation_loss"], content["arms"][arm].get("standard_error")
    )


def _of_translations(of_test: Mapping[str, Any], baseline: str, arm: str) -> Difference:
    base, values = (of_test["values"][of]["bleu"] for of in (baseline, arm))
    over_sentences = of_test["differences"][arm]["bleu"]["interval"] if len(values) == 1 else None
    return difference(base, values, of_test["differences_over_seeds"][arm]["bleu"], over_sentences=over_sentences)


def _sentence(
    found: Mapping[str, Difference],
    what: str,
    unit: str,
    baseline: str,
    subjects: Mapping[str, str],
    is_lower_better: bool = True,
) -> str:
    """Return a sentence on one number of the arms, whose differences from the baseline are `found`; "" for one arm."""
    if not found:
        return ""
    if len(found) == 1:
        ((arm, of),) = found.items()
        return _of_two(of, arm, what, unit, baseline, subjects[arm])
    best = (min if is_lower_better else max)(found, key=lambda arm: found[arm].value)
    of, (most, more, beyond) = (
        found[best],
        ("lowest", "lower", "below") if is_lower_better else ("highest", "higher", "above"),
    )
    if of.change == 0 or (of.change > 0) == is_lower_better:
        return (
            f"None of the {len(found)} other arms has a {more} {what} than **{baseline}**, {of.base:.3f} {unit}; the "
            f"next is **{best}** with {of.value:.3f} ({of.evidence})."
        )
    chance = ", which cannot be told from chance" if of.is_apart is False else ""
    return (
        f"Of {len(found) + 1} arms, **{best}** has the {most} {what}, {of.value:.3f} {unit}: **{of.size} {unit}** "
        f"{beyond} that of **{baseline}** ({of.evidence}){chance}."
    )


def _of_two(of: Difference, arm: str, what: str, unit: str, baseline: str, subject: str) -> str:
    the = "the " if what.islower() else ""  # but not of a name, such as BLEU
    if of.is_apart is False:
        return (
            f"**{baseline}** and **{arm}** cannot be told apart by {the}{what}: the difference is "
            f"{_number(of.change, '+')} {unit} ({of.evidence}), from {of.base:.3f} to {of.value:.3f}."
        )
    if subject and of.is_apart:
        verb = "raises" if of.change > 0 else "lowers"
        return (
            f"{subject} {verb} {the}{what} by **{of.size} {unit}** ({of.evidence}), from {of.base:.3f} ({baseline}) to "
            f"{of.value:.3f} ({arm})."
        )
    word = "higher" if of.change > 0 else "lower"
    return (
        f"{the.capitalize()}{what} of **{arm}**, {of.value:.3f}, is **{of.size} {unit}** {word} than that of "
        f"**{baseline}**, {of.base:.3f} ({of.evidence})."
    )


def subjects(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what differs from the first arm, as the subject of a sentence, for each other arm.

    It is guidance or an attack, if the first arm has none and nothing else differs; otherwise it is empty.

    settings: the flat settings of each arm, without those that have no effect there.
    """
    (_, base), *others = settings.items()
    names = {}
    for arm, of_arm in others:
        sections = {key.partition(".")[0] for key in base.keys() | of_arm.keys() if base.get(key) != of_arm.get(key)}
        if sections == {"guidance"} and base["guidance.mode"] == "none":
            names[arm] = "Guidance"
        elif sections == {"adversarial"} and base["adversarial.method"] == "none":
            names[arm] = f"The attack {of_arm['adversarial.method']}"
        else:
            names[arm] = ""
    return names


def arms_in_words(
    configs: Mapping[str, ExperimentConfig], settings: Mapping[str, Mapping[str, Any]], alphas: Mapping[str, float]
) -> dict[str, str]:
    """Return what each arm of a comparison is, in words.

    settings: the flat settings of each arm, without those that have no effect there.
    alphas: the coefficient of guidance at the first step, of each arm with guidance.
    """
    is_guided = any(config.guidance.mode != "none" for config in configs.values())
    is_attacked = any(config.adversarial.method != "none" for config in configs.values())
    keys = dict.fromkeys(key for of_arm in settings.values() for key in of_arm)
    differing = [
        key
        for key in keys
        if not key.startswith(("guidance.", "adversarial."))
        and len({repr(of_arm.get(key)) for of_arm in settings.values()}) > 1
    ]
    described: dict[str, str] = {}  # the arm that was first with these guided heads
    texts = {}
    for arm, config in configs.items():
        parts = []
        if is_guided:
            heads = heads_in_words(config)
            parts.append(_guidance(config, alphas.get(arm), heads, described.setdefault(heads, arm), arm))
        if is_attacked:
            method = config.adversarial.method
            parts.append("without an attack" if method == "none" else f"trained against the attack `{method}`")
        parts += [
            f"`{key}={schema.shown(settings[arm][key])}`" for key in differing[:MOST_SETTINGS] if key in settings[arm]
        ]
        if len(differing) > MOST_SETTINGS:
            parts.append(f"and {len(differing) - MOST_SETTINGS} more settings (the last table)")
        texts[arm] = "; ".join(parts)
    return texts


def _guidance(config: ExperimentConfig, alpha: float | None, heads: str, first: str, arm: str) -> str:
    if config.guidance.mode == "none":
        return "without guidance"
    if first != arm:
        return f"with guidance (alpha {alpha:g}) of the same heads as {first}"
    how = "a loss" if config.guidance.mode == "loss" else "a bonus to the scores"
    return f"with guidance (alpha {alpha:g}), {how} that pulls {heads}"


def heads_in_words(config: ExperimentConfig) -> str:
    """Return which heads of which layers are pulled towards which pattern, in words; "" without guidance."""
    guidance, heads = config.guidance, config.model.heads
    encoder = build.assignment(config)
    parts = [(f"of {encoder.where or 'every layer'}", encoder)]
    parts.append(("of the decoder", Assignment(assign_decoder_heads(guidance, heads))))
    parts.append(("of attention to the source", Assignment(assign_cross_heads(guidance, heads))))
    return "; ".join(_heads(assignment, heads, where) for where, assignment in parts if assignment.counts)


def _heads(assignment: Assignment, heads: int, where: str) -> str:
    """Return the guided heads of a layer with their patterns, and the free ones, in words."""
    texts: list[str] = []
    head = 0
    for name, count in assignment.counts:
        meaning = f" ({MEANINGS[name]})" if name in MEANINGS else ""
        place = "" if texts else f" {where}"
        texts.append(f"{_span(head, count)}{place} towards {title(name)}{meaning}")
        head += count
    free = f"; {_span(head, heads - head)} {'is' if heads - head == 1 else 'are'} free" if head < heads else ""
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]])) + free


def _span(first: int, count: int) -> str:
    return f"head {first}" if count == 1 else f"heads {first}-{first + count - 1}"


def facts(
    configs: Mapping[str, ExperimentConfig],
    corpus: Corpus,
    summaries: Mapping[str, Mapping[str, Any]],
    seconds: Mapping[str, float],
) -> list[str]:
    """Return paragraphs on the text, the model and the training of a comparison, by its first arm.

    summaries: the summary of a run of each arm (`run.train`).
    seconds: duration of the training of this run.
    """
    arm, config = next(iter(configs.items()))
    data, model, training = config.data, config.model, config.training
    held_out = sum(source["validation"]["tokens"] for source in corpus.sources)
    if config.translates:
        text = f"{corpus.documents['train']:,} pairs for training, {corpus.documents['validation']:,} held out"
    else:
        text = f"{corpus.train_tokens:,} tokens for training, {held_out:,} held out"
    parameters = sum(math.prod(shape) for shape in build.parameter_shapes(config, corpus.tokenizer).values())
    decoder = f" and a decoder of {config.decoder.layers}" if config.translates else ""
    differ = len({(of.model, of.decoder) for of in configs.values()}) > 1
    layers = f"{model.layers} layer{'s' * (model.layers > 1)}{decoder}"
    steps, tokens = summaries[arm]["steps"], summaries[arm]["tokens_seen"]
    times = ", ".join(f"{progress.duration(seconds[arm])} ({arm})" for arm in configs)
    return [
        f"**Text**: {text_name(data.source)}; {text}, in a vocabulary of {corpus.tokenizer.vocabulary_size:,} tokens.",
        f"**Model**{f' of {arm}' if differ else ''}: {layers} with {model.heads} heads, width {model.width}, "
        f"{parameters:,} parameters.",
        f"**Training**: {steps:,} steps of {training.batch_size} sequences of {data.sequence_length} tokens, "
        f"{tokens:,} tokens in all; with compilation, one run took {times}.",
    ]

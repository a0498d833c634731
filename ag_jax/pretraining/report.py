"""The report of a comparison of pre-training runs: its numbers, and what it shows of them."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ag_jax.analysis.attacks import masked_section, masked_share
from ag_jax.analysis.report import (
    DASH,
    Block,
    Section,
    differences_blocks,
    differences_json,
    rows_of_metrics,
    settings_section,
)
from ag_jax.analysis.tables import Table
from ag_jax.evaluation import translation
from ag_jax.evaluation.significance import over_seeds, spread
from ag_jax.evaluation.translation import Difference, Score
from ag_jax.objectives.base import PrimaryMetric
from ag_jax.objectives.config import TranslationConfig
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining import corpus, findings, following, last_layer
from ag_jax.pretraining.alpha import GUIDANCE_LOSS
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.scores import TestResult
from ag_jax.settings import schema

MEASURES = {
    "train_loss": "Train",
    "validation_loss": "Validation",
    "average_train_loss": "Average train",
}
LOSSES, ATTENTION = "Losses", "Attention"  # titles of sections
LIMITS = ("time_limit", "patience")  # settings of `training` by which a run may end
COLLAPSE = (
    "On the plateau, hidden states of the masked positions of a text are often nearly equal (collapse: their mean "
    "cosine is near 1), and one word is predicted almost everywhere (repetition: the share of the most frequent "
    "prediction is far above that of the most frequent label). Evaluations measure both on held-out text."
)
COLLAPSE_ROWS = {  # of the table of losses, with a measure of the plateau and one to compare it with
    "Cosine of masked positions (of all tokens)": ("collapse/masked", "collapse/all"),
    "Share of the most frequent prediction (label)": ("repetition/predicted", "repetition/labels"),
}
SETTLED = "guidance_settled_at_step"  # in the numbers of an arm with guidance


@dataclasses.dataclass(frozen=True)
class ArmResults:
    """Results of the runs of one arm of a comparison, one run for each seed, in the order of the seeds.

    name: name of the arm.
    summaries: the summary of each run, as `run.train` returns it.
    metrics: the rows of each run's metrics.jsonl.
    settings: the flat config without title and seed.
    """

    name: str
    summaries: Sequence[dict[str, Any]]
    metrics: Sequence[list[dict[str, Any]]]
    settings: Mapping[str, Any]


def first_step_below(rows: list[dict[str, Any]], loss: float, metric: str = MLM.metric) -> int | None:
    """Return the first logged step of a run with a train loss below `loss`; None if there is none.

    rows: the rows of metrics.jsonl.
    metric: the name of the loss.
    """
    below = (row for row in rows if row["split"] == "train" and row[metric] is not None and row[metric] < loss)
    return next((row["step"] for row in below), None)


def settled_step(rows: list[dict[str, Any]]) -> int | None:
    """Return the first logged step at which 95 % of the guidance loss's fall is done; None if that loss is not logged.

    The fall is from the first logged value to the lowest. The last value would be no measure, because the guidance loss
    may rise again as `guidance.schedule` lowers its coefficient. Deshpande & Narasimhan 2020, appendix A.3, report that
    the guidance loss converges within 0.2 % of pre-training.

    rows: the rows of metrics.jsonl.
    """
    train = (row for row in rows if row["split"] == "train")
    values = [(row["step"], row[GUIDANCE_LOSS]) for row in train if row.get(GUIDANCE_LOSS) is not None]
    if not values:
        return None
    first, lowest = values[0][1], min(value for _, value in values)
    return next(step for step, value in values if value <= lowest + 0.05 * (first - lowest))


def numbers(
    arms: Sequence[ArmResults],
    seeds: Sequence[int],
    primary: PrimaryMetric,
    plateau_loss: float,
    held_out: float | None = None,
) -> dict[str, Any]:
    """Return every number of a comparison's report as JSON values, with a test of each arm against the first one.

    The tests are paired by seed. With one seed, an arm has the standard error of the difference of validation losses
    instead (`findings.standard_error`).

    primary: the loss by which runs are summarised and compared.
    plateau_loss: the loss of the best guess without context.
    held_out: number of tokens that an evaluation reads; None leaves the standard error out.
    """
    # Below the plateau by a margin, because the logged losses of a run that stalls scatter around the plateau.
    baseline, threshold = arms[0], plateau_loss - primary.margin
    of_arms = {arm.name: {key: [summary[key] for summary in arm.summaries] for key in MEASURES} for arm in arms}
    result: dict[str, Any] = {
        "seeds": list(seeds),
        "headline": primary.metric,
        "plateau_loss": plateau_loss,
        "baseline": baseline.name,
        "arms": {},
        "differences": differences_json(over_seeds(of_arms)),
    }
    for arm in arms:
        values = of_arms[arm.name]
        result["arms"][arm.name] = {
            "values": values,
            "mean": {key: spread(of_seeds).mean for key, of_seeds in values.items()},
            "deviation": {key: spread(of_seeds).deviation for key, of_seeds in values.items()},
            "left_plateau_at_step": [first_step_below(rows, threshold, primary.metric) for rows in arm.metrics],
            "tokens_per_second": [_speed(rows) for rows in arm.metrics],
        }
        if any({*LIMITS} & summary.keys() for summary in arm.summaries):
            result["arms"][arm.name]["ended_at_step"] = [summary["steps"] for summary in arm.summaries]
        result["arms"][arm.name] |= _last_measures(arm.metrics)
        if None not in (settled := [settled_step(rows) for rows in arm.metrics]):
            result["arms"][arm.name][SETTLED] = settled
        if (share := masked_share(arm.metrics)) is not None:
            result["arms"][arm.name]["masked"] = share.numbers()
    for arm in arms[1:]:
        if held_out is None or len(seeds) > 1:
            break  # intervals over seeds say more
        error = findings.standard_error(baseline.metrics[0], arm.metrics[0], primary.metric, held_out)
        result["arms"][arm.name] |= {} if error is None else {"standard_error": error}
    return result


def _last_measures(runs: Sequence[list[dict[str, Any]]]) -> dict[str, list[float | None]]:
    """Return {metric: its values in the last evaluation of each run} for the measures of the plateau that they have.

    runs: the rows of each run's metrics.jsonl.
    """
    last: list[dict[str, Any]] = [
        next((row for row in reversed(rows) if row["split"] == "validation"), {}) for rows in runs
    ]
    metrics = itertools.chain.from_iterable(COLLAPSE_ROWS.values())
    return {key: [row.get(key) for row in last] for key in metrics if any(key in row for row in last)}


def translation_numbers(
    config: TranslationConfig, arms: Mapping[str, Sequence[Mapping[str, TestResult]]]
) -> dict[str, Any]:
    """Return {test set: scores of all runs, and differences of the arms from the first arm} as JSON values.

    config: settings of the test sets.
    arms: for each arm, the results of its runs by name of the test set, in the order of the seeds; the baseline first.

    Over seeds, arms are compared by a paired t-test. The bootstrap over sentences, and its p, compares the runs with
    the first seed.
    """
    baseline, result = next(iter(arms)), {}
    for name, lines in corpus.read_tests(config).items():
        values = {
            arm: {
                metric: [of_run[name].scores[metric]["value"] for of_run in of_runs]
                for metric in next(iter(of_runs))[name].scores
            }
            for arm, of_runs in arms.items()
        }
        # The bootstrap resamples sentences, of which each run has its own translations: it compares single runs.
        first = {arm: list(of_runs[0][name].lines) for arm, of_runs in arms.items()}
        differences: Mapping[str, Mapping[str, Difference]] = {}
        if len(arms) > 1:
            differences = translation.compare(first, lines.references, baseline, tokenize=config.tokenize)
        result[name] = {
            "sentences": len(lines.references),
            "values": values,
            "differences_over_seeds": differences_json(over_seeds(values)),
            "first_seed": {arm: dict(of_runs[0][name].scores) for arm, of_runs in arms.items()},
            "differences": {
                arm: {metric: dataclasses.asdict(one) for metric, one in of_arm.items()}
                for arm, of_arm in differences.items()
            },
        }
    return result


def _speed(rows: list[dict[str, Any]]) -> float | None:
    """Return a run's median training speed in tokens per second over the logged intervals; None if none was timed.

    The first interval, which is often slower, and intervals that consist of compilation do not count.
    """
    rates = [row["tokens_per_second"] for row in rows if row["split"] == "train"][1:]
    speeds = sorted(speed for speed in rates if speed is not None)
    return speeds[len(speeds) // 2] if speeds else None


def sections(
    primary: PrimaryMetric,
    arms: Sequence[ArmResults],
    content: Mapping[str, Any],
    compared: Sequence[Block],
    figures: Mapping[str, Sequence[Block]],
) -> list[Section]:
    """Return the sections of the report of a comparison of runs.

    content: the numbers of the report: those of `numbers`, the results of `translation_numbers` as `translations`, and
        of `last_layer.measure` as `last_layer`, and of `following.measure` as `following`, of each arm, if there are
        any.
    compared: what was compared.
    figures: by the title of their section, figures and paragraphs about them. Those of the first section, which has no
        title, stand below `compared`.
    """
    shares = {(arm.name,): share for arm in arms if (share := masked_share(arm.metrics)) is not None}
    last_layers = {name: of_arm["last_layer"] for name, of_arm in content["arms"].items() if "last_layer" in of_arm}
    follows = {name: of_arm["following"] for name, of_arm in content["arms"].items() if "following" in of_arm}
    settings = {arm.name: arm.settings for arm in arms}
    has_mask_decoder = any(of_arm.get("model.mask_decoder_passes") for of_arm in settings.values())
    found = [
        Section("", [findings.result(primary, content, findings.subjects(settings)), *compared]),
        _losses(primary, arms, content),
        *(_translations(name, test, content) for name, test in content.get("translations", {}).items()),
        Section(ATTENTION, []),
        *([following.section(follows)] if follows else []),
        *([last_layer.section(last_layers, has_mask_decoder)] if last_layers else []),
        *([masked_section(["Arm"], shares)] if shares else []),
    ]
    blocks: dict[str, Sequence[Block]] = {
        section.title: [*section.blocks, *figures.get(section.title, ())] for section in found
    }
    blocks |= {title: of_title for title, of_title in figures.items() if title not in blocks}
    return [
        *(Section(title, of_title) for title, of_title in blocks.items()),
        settings_section(settings, schema.flat(schema.to_dict(ExperimentConfig()))),
    ]


def _mean_over(seeds: Sequence[int], listing: str = "") -> str:
    """Return the beginning of a sentence about the numbers of a table; `listing` says which seeds these are."""
    several = len(seeds) > 1
    return f"Mean over {len(seeds)} seed{'s' * several}{listing}{' ± standard deviation' * several}"


def _losses(primary: PrimaryMetric, arms: Sequence[ArmResults], content: Mapping[str, Any]) -> Section:
    seeds, baseline, of_arms = content["seeds"], content["baseline"], content["arms"]
    names = ", ".join(map(str, seeds))
    tested = f"; p: paired t-test against {baseline}" if len(of_arms) > 1 else ""
    over = f"{_mean_over(seeds, f' ({names})')}{tested}."
    one = f"One seed ({seeds[0]}), so nothing says how much other seeds differ: `--config.comparison.seeds=0,1,2` does."
    settled = (
        "*Guidance loss fallen at step* is the first logged step at which 95 % of the fall of the guidance loss, from "
        "the first logged value to the lowest, is done: guided heads come little closer to their patterns after it."
    )
    errors = {arm: of_arm["standard_error"] for arm, of_arm in of_arms.items() if "standard_error" in of_arm}
    uncertain = (
        "On other held-out text of the same length, the difference of the validation losses from that of "
        f"{baseline} would scatter by about {', '.join(f'{error:.3f} ({arm})' for arm, error in errors.items())}, a "
        "standard error that is judged by the scatter of the training losses."
    )
    steps = [row["step"] for row in arms[0].metrics[0] if row["split"] == "train"]
    resolution = f"; every {steps[1] - steps[0]} steps are logged" if len(steps) > 1 else ""
    notes = [
        "*Train* is the mean over the last twentieth of training, *validation* is on held-out text after the last "
        "step, *average train* is the mean over all of training, which is lower the sooner a model learns.",
        uncertain if errors else "",
        f"Guessing by frequency, without context, gives {content['plateau_loss']:.3f}. A run has left this plateau at "
        f"the first logged step whose train loss is {primary.margin:g} below it{resolution}.",
        COLLAPSE if any("collapse/masked" in of_arm for of_arm in of_arms.values()) else "",
        settled if any(SETTLED in of_arm for of_arm in of_arms.values()) else "",
    ]
    return Section(
        LOSSES,
        [
            over if len(seeds) > 1 else one,
            Table(
                [f"{primary.label[0].upper()}{primary.label[1:]} ({primary.unit})", *of_arms], _loss_rows(arms, content)
            ),
            *differences_blocks(content["differences"], MEASURES, baseline),
            "\n".join(f"* {note}" for note in filter(None, notes)),
        ],
    )


def _loss_rows(arms: Sequence[ArmResults], content: Mapping[str, Any]) -> list[list[str]]:
    of_arms = content["arms"]

    def each_seed(key: str, shown: Callable[[Any], str]) -> list[str]:
        return [", ".join(map(shown, of_arm[key])) if key in of_arm else DASH for of_arm in of_arms.values()]

    values = {name: of_arm["values"] for name, of_arm in of_arms.items()}
    # One entry for each seed instead of a mean, because a run may never leave the plateau.
    left = each_seed("left_plateau_at_step", lambda step: "never" if step is None else f"{step:,}")
    rows = [*rows_of_metrics(MEASURES, values, content["differences"]), ["Left the plateau at step", *left]]
    for name, keys in COLLAPSE_ROWS.items():
        if any(keys[0] in of_arm for of_arm in of_arms.values()):
            pairs = ([of_arm.get(key, ()) for key in keys] for of_arm in of_arms.values())
            rows.append([name, *(", ".join(map(_measure, *pair)) or DASH for pair in pairs)])
    if limits := [name for name in LIMITS if any(name in summary for arm in arms for summary in arm.summaries)]:
        names = " or ".join(f"`training.{name}`" for name in limits)
        rows.append([f"Ended by {names} at step", *each_seed("ended_at_step", lambda step: f"{step:,}")])
    if any(SETTLED in of_arm for of_arm in of_arms.values()):
        settled = []
        for arm in arms:
            steps = zip(of_arms[arm.name].get(SETTLED, ()), arm.metrics, strict=False)  # none without guidance
            settled.append(", ".join(_settled(step, run[-1]["step"]) for step, run in steps) or DASH)
        rows.append(["Guidance loss fallen at step", *settled])
    rows.append(["Tokens a second", *each_seed("tokens_per_second", lambda of: DASH if of is None else f"{of:,.0f}")])
    return rows


def _measure(value: float | None, compared: float | None) -> str:
    return DASH if value is None or compared is None else f"{value:.3f} ({compared:.3f})"


def _settled(step: int, last: int) -> str:
    return "still falling at the end" if step == last else f"{step:,} of {last:,}"


def _translations(name: str, test: Mapping[str, Any], content: Mapping[str, Any]) -> Section:
    """Return the section about the translations of a test set, whose numbers are `test`."""
    seeds, baseline = content["seeds"], content["baseline"]
    p = f"; p: paired t-test over seeds against {baseline}, not corrected" if len(seeds) > 1 else ""
    rows = rows_of_metrics(translation.LABELS, test["values"], test["differences_over_seeds"])
    blocks: list[Block] = [
        f"{test['sentences']:,} sentences. {_mean_over(seeds)}{p}.",
        Table(["Score", *test["values"]], rows),
        *differences_blocks(test["differences_over_seeds"], translation.LABELS, baseline),
        # The variance over seeds and the variance over sentences are two questions, so each has its tables.
        f"With seed {seeds[0]}, and intervals over resampled sentences:",
    ]
    for arm, scores in test["first_seed"].items():
        of_arm = {metric: Score(**score) for metric, score in scores.items()}
        blocks += [f"**{arm}**", Table(translation.SCORE_HEADER, translation.score_rows(of_arm))]
    if test["differences"]:
        differences = {
            arm: {metric: Difference(**one) for metric, one in of_arm.items()}
            for arm, of_arm in test["differences"].items()
        }
        blocks += [
            f"Differences from {baseline} with seed {seeds[0]}; the interval is that of the difference, and p is "
            "sacreBLEU's paired bootstrap, which counts one tail and is not corrected for the number of comparisons:",
            Table(translation.DIFFERENCE_HEADER, translation.difference_rows(differences)),
        ]
    return Section(f"Translations of {name}", blocks)

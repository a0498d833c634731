"""The part of a comparison's report about translations: scores, their differences, and attention to a source."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis import pairs
from ag_jax.analysis.figures import plots
from ag_jax.analysis.markdown import table
from ag_jax.evaluation import translation
from ag_jax.evaluation.significance import over_seeds, spread
from ag_jax.evaluation.translation import Difference, Score
from ag_jax.objectives.config import TranslationConfig
from ag_jax.pretraining import corpus, report, translate
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.scores import TestResult


def numbers(config: TranslationConfig, arms: Mapping[str, Sequence[Mapping[str, TestResult]]]) -> dict[str, Any]:
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
        seeds_differ = over_seeds(values)
        # The bootstrap resamples sentences, of which each run has its own translations: it compares single runs.
        first = {arm: list(of_runs[0][name].lines) for arm, of_runs in arms.items()}
        differences: Mapping[str, Mapping[str, Difference]] = {}
        if len(arms) > 1:
            differences = translation.compare(first, lines.references, baseline, tokenize=config.tokenize)
        result[name] = {
            "sentences": len(lines.references),
            "values": values,
            "p_value": {  # None for the baseline, and with a single seed
                arm: {
                    metric: paired.p_value if (paired := seeds_differ.get(arm, {}).get(metric)) else None
                    for metric in of_arm
                }
                for arm, of_arm in values.items()
            },
            "differences_over_seeds": report.differences_json(seeds_differ),
            "first_seed": {arm: dict(of_runs[0][name].scores) for arm, of_runs in arms.items()},
            "differences": {
                arm: {metric: dataclasses.asdict(one) for metric, one in of_arm.items()}
                for arm, of_arm in differences.items()
            },
        }
    return result


def markdown(results: Mapping[str, Any], seeds: Sequence[int], baseline: str) -> list[str]:
    """Return the Markdown lines of the report about translations, from the result of `numbers`."""
    lines: list[str] = []
    for name, test in results.items():
        arms = list(test["values"])
        several = len(seeds) > 1
        lines += [
            f"## Translations of {name}",
            "",
            f"{test['sentences']:,} sentences. Mean over {len(seeds)} seed{'s' if several else ''}"
            + (" ± standard deviation;" if several else ";")
            + f" p: paired t-test over seeds against {baseline}"
            + ("." if several else ", which needs two seeds or more."),
            "",
        ]
        rows = []
        for metric, label in translation.LABELS.items():
            cells = []
            for arm in arms:
                p_value = test["p_value"][arm][metric]
                cell = str(spread(test["values"][arm][metric]))
                cells.append(cell + (f" (p = {p_value:.2g})" if p_value is not None else ""))
            rows.append([label, *cells])
        lines += table(["Score", *arms], rows)
        lines += report.differences_section(test["differences_over_seeds"], translation.LABELS, baseline)
        # The variance over seeds and the variance over sentences are two questions, so each has its tables.
        lines += [f"With seed {seeds[0]}, and intervals over resampled sentences:", ""]
        for arm in arms:
            of_arm = {metric: Score(**score) for metric, score in test["first_seed"][arm].items()}
            lines += [f"**{arm}**", "", *table(translation.SCORE_HEADER, translation.score_rows(of_arm))]
        if test["differences"]:
            differences = {
                arm: {metric: Difference(**one) for metric, one in of_arm.items()}
                for arm, of_arm in test["differences"].items()
            }
            lines += [
                f"Differences from {baseline} with seed {seeds[0]}; the interval is that of the difference, and p is "
                "sacreBLEU's paired bootstrap, which counts one tail and is not corrected for the number of "
                "comparisons:",
                "",
                *table(translation.DIFFERENCE_HEADER, translation.difference_rows(differences)),
            ]
    return lines


def cross_attention(
    runs: Mapping[str, tuple[epath.Path, ExperimentConfig]], path: epath.Path, about: str = ""
) -> tuple[str, epath.Path]:
    """Draw the attention of each arm's last layer from a translation to its source; return the caption and the path.

    The source is the setting `inspection.sentence`, the translation that of the first arm, the same for all arms.

    runs: directory of a run of each arm, and its config with the settings to use; the first one's sentence is drawn.
    about: name of the comparison, for the figure.
    """
    opened = {arm: dataclasses.replace(open_run(directory), config=config) for arm, (directory, config) in runs.items()}
    translators = {arm: translate.translator_of(one) for arm, one in opened.items()}
    first, config = next(iter(translators)), next(iter(opened.values())).config
    sentence, length = config.inspection.sentence, config.data.sequence_length
    target = translators[first].beginning(sentence, length - 1).text
    maps = {
        arm: pairs.pair_maps(one.model, one.params, one.tokenizer, sentence, target, length).cross
        for arm, one in translators.items()
    }
    return f"Cross-attention to the sentence, translated by {first}", plots.mean_figure(maps, path, about)

"""`ag-jax compare` for pre-training: train every arm with every seed, and write the report."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis import attacks, maps, pairs
from ag_jax.analysis.figures import attacks as attack_figures
from ag_jax.analysis.figures import canvas, curves, plots
from ag_jax.analysis.figures.curves import Plateau
from ag_jax.analysis.report import Block, Figure, Report
from ag_jax.attention.patterns import PatternTokens
from ag_jax.data import order, pipeline
from ag_jax.data.corpus import Corpus
from ag_jax.distributed import hosts, lock, storage
from ag_jax.grid import run as grid
from ag_jax.grid.cells import Stage, Table
from ag_jax.pretraining import (
    alpha,
    arms,
    build,
    comparable,
    findings,
    following,
    last_layer,
    report,
    run_directory,
    scores,
    translate,
    words,
    workloads,
)
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.report import ArmResults
from ag_jax.pretraining.scores import TestResult
from ag_jax.pretraining.training_cell import TrainingCell
from ag_jax.settings import schema
from ag_jax.settings.config_files import Config
from ag_jax.training.checkpoint import saved_metrics
from ag_jax.training.wandb_run import Labels
from ag_jax.viewer import page as viewer

PAGE = "maps.html"
FIGURES = (  # files that a comparison draws
    "loss_over_*.png",
    "plateau.png",
    "attention_mass.png",
    "masked_share.png",
    "attention_maps.png",
    "last_layer.png",
    "cross_attention.png",
    PAGE,
)
MOST_STAGES = 5  # columns of the figure of attention maps during training


def arm_configs(base: Config) -> tuple[dict[tuple[str, int], ExperimentConfig], list[str]]:
    """Return {(arm, seed): settings} of a comparison, and warnings about flags that override what the arms set.

    Raises ValueError if there are no arms, if two are the same, if they are measured by different losses or their
    translations by different tests, if there is no milestone at which the report shows their attention, or if both
    steps and words give their length.
    """
    seeds = base.settings.comparison.seeds
    arms.check_seed(base.settings, seeds, "comparison.seeds")
    of_arms = arms.configs_of(base, base.settings.comparison.arms, "comparison.arms", "train")
    for of_arm in of_arms.values():
        words.check_flags(of_arm.settings, base.overrides)
    configs = {
        (arm, seed): dataclasses.replace(of_arm.settings, seed=seed)
        for seed in seeds
        for arm, of_arm in of_arms.items()
    }
    arms.check_distinct(base, of_arms, {arm: of_arm.settings.in_effect for arm, of_arm in of_arms.items()})
    losses = {workloads.workload_of(config).primary_metric.label for config in configs.values()}
    if len(losses) > 1:
        raise ValueError(
            f"the arms of {base.source} are measured by different losses ({', '.join(sorted(losses))}), which "
            "cannot be compared: set replaced_tokens.generator=none, and decoder.layers, alike in every arm"
        )
    if len({(config.translation.tests, config.translation.tokenize) for config in configs.values()}) > 1:
        raise ValueError(
            f"the arms of {base.source} differ in translation.tests or translation.tokenize, so that their "
            "translations cannot be compared: set both alike in every arm"
        )
    if any(not config.training.milestones for config in configs.values()):
        raise ValueError(
            f"the report of {base.source} shows attention maps at training.milestones, of which there are none: give "
            "at least one, such as --config.training.milestones=1.0"
        )
    return configs, arms.overridden(of_arms)


def compare(base: Config, workdir: epath.PathLike, retry: bool = False) -> epath.Path | None:
    """Train or resume a comparison's runs, and return the path of its report.

    The result is None if other processes train the last runs: the one that ends last writes the report.

    base: the config whose arms are compared.
    workdir: the directory of `report.md`, `report.json`, `figures/` and the runs, `ARM-seedN`. Processes that have the
        same one share the runs.
    retry: train runs again that failed before.

    Finished runs are not trained again. On several hosts, host 0 writes the report.

    Raises ValueError if a run failed, after the others were trained.
    """
    (configs, overridden), workdir = arm_configs(base), storage.directory(workdir)
    incomparable = comparable.warnings({arm: config for (arm, _), config in configs.items()}, "arms")
    arms.announce([*overridden, *incomparable])
    cells = {}
    for (arm, seed), config in configs.items():
        resolved, _ = words.resolve(config, workdir / f"{arm}-seed{seed}", run_directory.is_begun)
        cells[arm, seed] = TrainingCell(f"{arm}-seed{seed}", resolved, Labels(group=workdir.name, tags=(arm,)))
    for cell in cells.values():  # so that a conflict shows now and not hours later
        cell.check(workdir)
    stage = Stage(list(cells.values()))
    table = grid.run(lambda _: stage, workdir, retry=retry)
    if table is None:
        return None
    if failures := [f"{name} ({result.reason})" for name, result in table.items() if not result.is_done]:
        raise ValueError(
            f"there is no report of {workdir}, because training failed: {'; '.join(failures)}. Change the settings of "
            "these runs and choose another --workdir, or train them again with --retry"
        )
    tests = {key: scores.cells(cell.config, workdir / cell.path, cell.path) for key, cell in cells.items()}
    for key, of_run in tests.items():  # before any test set is translated, because a report must not mix averages
        if of_run:
            translate.check_average(cells[key].config, workdir / cells[key].path)
    scoring = Stage([test for of_run in tests.values() for test in of_run])
    if (scored := grid.run(lambda _: scoring, workdir)) is None:
        return None
    with lock.hold(workdir / lock.FILE, wait=True):  # processes that shared the runs may write it at the same time
        if not hosts.is_first():
            return workdir / "report.md"
        translations = {
            key: {test.test: test.read(workdir / test.path, scored[test.name]) for test in of_run}
            for key, of_run in tests.items()
        }
        return _report(base, cells, table, translations, workdir, overridden, incomparable)


def _report(
    base: Config,
    cells: Mapping[tuple[str, int], TrainingCell],
    table: Table,
    scored: Mapping[tuple[str, int], Mapping[str, TestResult]],
    workdir: epath.Path,
    overridden: Sequence[str],
    incomparable: Sequence[str],
) -> epath.Path:
    """Write the report of a comparison, whose runs are all trained; return its path.

    scored: of each run, its translations of the test sets.
    """
    arm_names = list(dict.fromkeys(arm for arm, _ in cells))
    configs = {key: cell.config for key, cell in cells.items()}
    directories = {key: workdir / cell.path for key, cell in cells.items()}
    summaries = {key: dict(table[cell.name].facts) for key, cell in cells.items()}
    runs = {cell.path: (cell.config, directories[key]) for key, cell in cells.items()}
    limits = {cell.path: (cell.config, summaries[key]) for key, cell in cells.items()}
    mixed = [*pretraining_corpus.other_texts(runs), *_other_limits(limits)]
    arms.announce(mixed)
    warnings = [*incomparable, *mixed]
    first_run, first = next(iter(configs.items()))
    seeds, workload = first.comparison.seeds, workloads.workload_of(first)
    headline = workload.primary_metric
    results = [
        ArmResults(
            name=arm,
            summaries=[summaries[arm, seed] for seed in seeds],
            metrics=[saved_metrics(directories[arm, seed]) for seed in seeds],
            settings=_settings(configs[arm, seeds[0]]),
        )
        for arm in arm_names
    ]
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(first.data, directories[first_run]))
    held_out = _held_out(first, corpus)
    numbers = report.numbers(results, seeds, headline, workload.plateau_loss(first, corpus), held_out)
    opened = {arm: (directories[arm, seeds[0]], configs[arm, seeds[0]]) for arm in arm_names}
    leaving_steps = {arm: of_arm["left_plateau_at_step"] for arm, of_arm in numbers["arms"].items()}
    figures = _figures(workdir, opened, results, corpus, Plateau(numbers["plateau_loss"], leaving_steps))
    for name, measure in (("last_layer", last_layer.measure), ("following", following.measure)):
        for arm, of_arm in measure(configs, directories).items():
            numbers["arms"][arm][name] = of_arm
    if scored[first_run]:
        by_arm = {arm: [scored[arm, seed] for seed in seeds] for arm in arm_names}
        numbers["translations"] = report.translation_numbers(first.translation, by_arm)
    numbers |= {name: found for name, found in (("overridden", overridden), ("warnings", warnings)) if found}
    settings = {arm.name: arm.settings for arm in results}
    numbers["summary"] = [findings.result(headline, numbers, findings.subjects(settings))]
    sections = report.sections(headline, results, numbers, _compared(opened, results, corpus), figures)
    command = arms.command("compare", base)
    return Report(findings.heading(first), command, numbers, sections, [*overridden, *warnings]).write(workdir)


def _held_out(config: ExperimentConfig, corpus: Corpus) -> float:
    """Return the number of held-out tokens that an evaluation reads, as if they were masked as often as in training."""
    rows = len(corpus.validation)
    share = order.once_count(rows, config.data.validation_rows) / rows
    masking = config.data.masking
    return len(corpus.validation.tokens) * share * masking.for_evaluation.rate / masking.rate


def _compared(
    runs: Mapping[str, tuple[epath.Path, ExperimentConfig]], results: Sequence[ArmResults], corpus: Corpus
) -> list[str]:
    """Return the paragraphs of a report on what was compared: the arms, and facts about text, model and training."""
    configs = {arm: config for arm, (_, config) in runs.items()}
    settings, summaries = {arm.name: arm.settings for arm in results}, {arm.name: arm.summaries[0] for arm in results}
    alphas = {
        arm: float(alpha.hyperparameters(config, directory).alpha)
        for arm, (directory, config) in runs.items()
        if config.guidance.mode != "none"
    }
    seconds = {arm.name: sum(row["seconds"] for row in arm.metrics[0] if row["split"] == "train") for arm in results}
    texts = findings.arms_in_words(configs, settings, alphas)
    lines = [f"**{arm}**: {text}." for arm, text in texts.items()]
    return ["\n".join(f"* {line}" for line in [*lines, *findings.facts(configs, corpus, summaries, seconds)])]


def _other_limits(runs: Mapping[str, tuple[ExperimentConfig, Mapping[str, Any]]]) -> list[str]:
    """Return a warning for each run that was ended by a time limit or patience that its config no longer has.

    runs: config and summary of each run. The summary has the limit by which the run ended, if one did.
    """
    return [
        f"{name} was ended by training.{key}={summary[key]}, which is {schema.shown(now)} now, so its "
        "losses are those of another length"
        for name, (config, summary) in runs.items()
        for key in ("time_limit", "patience")
        if key in summary and summary[key] != (now := getattr(config.training, key))
    ]


def _settings(config: ExperimentConfig) -> dict[str, Any]:
    """Return {name: value} of an arm's settings for the report, without title, seed and settings without effect."""
    flat = schema.flat(schema.to_dict(config))
    unused = ["guidance."] * (config.guidance.mode == "none") + ["adversarial."] * (config.adversarial.method == "none")
    shown_settings = ("guidance.mode", "adversarial.method")
    return {
        key: value
        for key, value in flat.items()
        if key not in ("title", "seed") and (key in shown_settings or not key.startswith(tuple(unused)))
    }


def _figures(
    workdir: epath.Path,
    runs: dict[str, tuple[epath.Path, ExperimentConfig]],
    results: list[ArmResults],
    corpus: Corpus,
    plateau: Plateau,
) -> dict[str, list[Block]]:
    """Draw the figures of a comparison's report; return them by the title of their section.

    runs: directory and config of the run of each arm whose attention maps are drawn.
    plateau: the plateau of the loss, and where the arms left it.
    """
    directory = workdir / "figures"
    directory.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))[1]
    series, headline = {arm.name: arm.metrics for arm in results}, workloads.workload_of(first).primary_metric
    about, drawn = findings.heading(first), [PAGE]

    def shown(caption: str, figure: plots.Figure, name: str) -> Figure:
        drawn.append(name)
        return canvas.save_for_report(figure, caption, directory / name)

    sections: dict[str, list[Block]] = {"": []}
    for x, name in (("step", "steps"), ("tokens_seen", "tokens")):
        if x == "tokens_seen" and curves.same_tokens(series):
            continue  # the same curves again
        caption = f"{headline.label} of {' and '.join(series)} over {name}"
        figure = plots.draw_losses(series, x, headline, plateau, about)
        sections[""].append(shown(caption, figure, f"loss_over_{name}.png"))

    if curves.measures_of(series):
        figure = plots.draw_measures(series, plateau.leaving_steps, about)
        sections[report.LOSSES] = [shown("Collapse and repetition over steps", figure, "plateau.png")]

    columns = {arm: _maps_during_training(directory, config) for arm, (directory, config) in runs.items()}
    special = build.special_tokens(corpus.tokenizer)
    _write_page(directory / PAGE, runs, columns, special, about)
    page = f"[{directory.name}/{PAGE}]({directory.name}/{PAGE})"
    sections[report.ATTENTION] = [
        f"{page} is a page to open in a browser, with all heads of every arm at each milestone of training."
    ]
    guided = {arm.name: arm.metrics[0] for arm in results if runs[arm.name][1].guidance.mode != "none"}
    if guided:
        caption = "Share of attention of the guided heads on the targets of their patterns, by layer, over training"
        sections[report.ATTENTION].append(shown(caption, plots.draw_masses(guided), "attention_mass.png"))
    caption = "Attention maps of guided and free heads during training"
    sections[report.ATTENTION].append(shown(caption, _stages(runs, columns, special), "attention_maps.png"))

    attacked = {arm.name: share for arm in results if (share := attacks.masked_share(arm.metrics)) is not None}
    if attacked:
        figure = attack_figures.draw_masked({"": attacked}, about)
        sections[attacks.MASKED] = [shown("Share of units that the attack masks", figure, "masked_share.png")]
    if not first.translates:
        means = {arm: of_arm[-1][1] for arm, of_arm in columns.items()}
        steps = dict.fromkeys(run_directory.milestone_step(config, place) for place, config in runs.values())
        title = f"step {' and '.join(f'{step:,}' for step in steps)}"
        caption = "Attention of the last layer, mean over its heads"
        sections[last_layer.TITLE] = [shown(caption, plots.draw_means(means, title), "last_layer.png")]
    else:
        sections[report.ATTENTION].append(shown(*_cross_attention(runs), "cross_attention.png"))
    for path in itertools.chain.from_iterable(map(directory.glob, FIGURES)):
        if path.name not in drawn:  # a figure of an earlier report, such as one of other arms
            path.unlink()
    return sections


def _stages(
    runs: Mapping[str, tuple[epath.Path, ExperimentConfig]],
    columns: Mapping[str, list[tuple[str, maps.AttentionMaps]]],
    special: PatternTokens,
) -> plots.Figure:
    """Draw heads of the arm with the most patterns at its milestones, and of other arms at their last one.

    The layer is in the middle of the guided ones.

    columns: attention maps of each arm at its milestones, with labels.
    """
    assignments = {arm: build.assignment(config) for arm, (_, config) in runs.items()}
    most = max(runs, key=lambda arm: len(assignments[arm].counts))
    stages = [(f"{most}, {name}", attention, assignments[most]) for name, attention in columns[most]]
    shape = stages[0][1].weights_NHQK.shape[:2]
    for arm in runs:
        name, attention = columns[arm][-1]
        if arm != most and attention.weights_NHQK.shape[:2] == shape and len(stages) < MOST_STAGES:
            stages.append((f"{arm}, {name}", attention, assignments[arm]))
    layers = assignments[most].layers or range(shape[0])
    return plots.draw_training(stages, special, layers[len(layers) // 2])


def _cross_attention(runs: Mapping[str, tuple[epath.Path, ExperimentConfig]]) -> tuple[str, plots.Figure]:
    """Draw the attention of each arm's last layer from a translation to its source; return the caption and the figure.

    The source is the setting `inspection.sentence`, the translation that of the first arm, the same for all arms.

    runs: directory of a run of each arm, and its config with the settings to use; the first one's sentence is drawn.
    """
    opened = {arm: dataclasses.replace(open_run(directory), config=config) for arm, (directory, config) in runs.items()}
    translators = {arm: translate.translator_of(one) for arm, one in opened.items()}
    first, config = next(iter(translators)), next(iter(opened.values())).config
    sentence, length = pretraining_corpus.example(config, next(iter(runs.values()))[0]), config.data.sequence_length
    target = translators[first].beginning(sentence, length - 1).text
    crossing = {
        arm: pairs.pair_maps(one.model, one.params, one.tokenizer, sentence, target, length).cross
        for arm, one in translators.items()
    }
    return f"Cross-attention to the sentence, translated by {first}", plots.draw_means(crossing)


def _write_page(
    path: epath.Path,
    runs: Mapping[str, tuple[epath.Path, ExperimentConfig]],
    columns: Mapping[str, list[tuple[str, maps.AttentionMaps]]],
    special: PatternTokens,
    about: str,
) -> None:
    """Write an HTML page with the attention maps of all heads of every arm at each milestone.

    Arms with guidance come first, and later milestones before earlier ones.

    columns: attention maps of each arm at its milestones, with labels.
    about: title of the report.
    """
    views = []
    for arm in sorted(runs, key=lambda arm: runs[arm][1].guidance.mode == "none"):
        directory, config = runs[arm]
        steps = run_directory.milestone_steps(config, directory).values()
        of_step = {step: attention for step, (_, attention) in zip(steps, columns[arm], strict=True)}
        for step, attention in sorted(of_step.items(), reverse=True):
            name, assignment = f"{arm}, step {step:,}", build.assignment(config)
            views.append(maps.viewer_view(attention, name, arm, special, assignment, step=step))
    path.write_text(viewer.page(about, viewer.side_by_side(views)), encoding="utf-8")


def _maps_during_training(workdir: epath.Path, config: ExperimentConfig) -> list[tuple[str, maps.AttentionMaps]]:
    """Return a list of (label, attention maps of the config's sentence), one for each milestone of a run.

    A milestone is a fraction of training whose checkpoint is saved for good, from which the model is opened here.
    """
    labelled = []
    for step in run_directory.milestone_steps(config, workdir).values():
        opened = open_run(workdir, step)
        sentence, length = pretraining_corpus.example(config, workdir), config.data.sequence_length
        attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, sentence, length)
        labelled.append((f"step {step:,}", attention))
    return labelled

"""`ag-jax evaluate --config` and `ag-jax compare` for probes: probe the models of every arm, then write the report."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis.changes import without_dropout
from ag_jax.analysis.figures import accuracies, canvas, heads
from ag_jax.analysis.report import Report
from ag_jax.data.probes import minimal_pairs
from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.distributed import hosts, lock, storage
from ag_jax.grid import run as grid
from ag_jax.grid.cells import Cell, Stage, Table
from ag_jax.interop import opening
from ag_jax.pretraining import arms
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.training_cell import TrainingCell
from ag_jax.probing import models, probes, report, summary
from ag_jax.probing.ablation import report as ablation_report
from ag_jax.probing.ablation import results as ablation_results
from ag_jax.probing.ablation import summary as ablation_summary
from ag_jax.probing.ablation.results import AblationCell
from ag_jax.probing.ablation.summary import Summary
from ag_jax.probing.config import ProbingConfig
from ag_jax.probing.minimal_pairs import report as pair_report
from ag_jax.probing.minimal_pairs import results as pair_results
from ag_jax.probing.minimal_pairs.results import Judged, PairsCell
from ag_jax.probing.models import ProbedModel
from ag_jax.probing.results import ProbeCell, ProbeResult
from ag_jax.settings import config_files, schema
from ag_jax.settings.config_files import Config

ALONE = "model"  # the name of a model without arms
RANDOM = "random"  # the name of the models with random weights
SCORES, FIGURES, HEADS = "scores.csv", "figures", "heads_"  # files beside the report: `figures/heads_PROBE_MODE.png`
JudgedModels = dict[str, list[list[Judged]]]  # for each arm and model, its checkpoints
Results = dict[str, dict[str, list[ProbeResult]]]  # for each arm and probe, those of its models


def arm_configs(base: Config) -> tuple[dict[str, ProbingConfig], list[str]]:
    """Return {arm: settings} of a comparison, and warnings about flags that override what the arms set.

    Raises ValueError if there are no arms, if two are the same, if one has the name of the random models, or if their
    probes, ablation, resamples or seeds do not go together.
    """
    of_arms = arms.configs_of(base, base.settings.arms, "config.arms", "evaluate")
    configs: dict[str, ProbingConfig] = {arm: of_arm.settings for arm, of_arm in of_arms.items()}
    arms.check_distinct(base, of_arms, configs)
    if reserved := [arm for arm in configs if arm.startswith(RANDOM)]:
        raise ValueError(
            f"{base.source} has an arm called {reserved[0]}, a name of the random models: choose another name"
        )
    for arm, of_arm in configs.items():
        for setting in ("probes", "ablation", "minimal_pairs", "resamples", "random_seeds"):
            if getattr(of_arm, setting) != getattr(base.settings, setting):
                raise ValueError(
                    f"the arms of {base.source} must have the same {setting}, to be compared, but those of {arm} "
                    "differ: give all arms the same"
                )
    seeds_of_arms = {arm: of_arm.seeds for arm, of_arm in configs.items() if len(of_arm.seeds) > 1}
    if len(set(seeds_of_arms.values())) > 1:
        listing = "; ".join(f"{arm} {', '.join(map(str, seeds))}" for arm, seeds in seeds_of_arms.items())
        raise ValueError(
            f"the arms of {base.source} must have the same seeds, because they are paired, but have {listing}"
        )
    return configs, arms.overridden(of_arms)


def evaluate(base: Config, workdir: epath.PathLike) -> epath.Path | None:
    """Probe one model and write the report; return as `compare` does.

    base: the config.
    """
    listed = base.settings.arms
    if listed and "," in listed and "arm" not in base.texts:
        raise ValueError(
            f"{base.source} has several models ({listed}), but evaluate probes one: use `ag-jax compare`, or choose a "
            "model with the argument arm=NAME"
        )
    return _run("evaluate", base, {ALONE: base.settings}, storage.directory(workdir), [], retry=False)


def compare(base: Config, workdir: epath.PathLike, retry: bool = False) -> epath.Path | None:
    """Probe the models of every arm and write the report; return the path of `report.md`.

    The result is None if other processes measure what is left: the last of them writes the report.

    Models are in `workdir/ARM-seedN`, if they are trained first, the results of probes in
    `workdir/probes/ARM-seedN/PROBE`, those of head ablation in `workdir/ablation/ARM-seedN`, and those of minimal pairs
    in `workdir/minimal_pairs/ARM-seedN`. What is trained or measured already is not done again, and several processes
    with one `workdir` share what is to be done.

    base: the config whose arms are compared.
    retry: train models again whose training failed before.
    """
    configs, overridden = arm_configs(base)
    arms.announce(overridden)
    return _run("compare", base, configs, storage.directory(workdir), overridden, retry)


def _run(
    verb: str,
    base: Config,
    configs: Mapping[str, ProbingConfig],
    workdir: epath.Path,
    overridden: Sequence[str],
    retry: bool,
) -> epath.Path | None:
    """Train the models if need be, measure them, and write the report; see `compare`."""
    if hosts.count() > 1:
        raise ValueError(f"probes run on one machine, but {hosts.count()} hosts were started: start the command on one")
    first = next(iter(configs.values()))
    training = {arm: _training(arm, config) for arm, config in configs.items()}
    pairs = _check(configs, {arm: [cell.config for cell in cells] for arm, cells in training.items()})
    _train([cell for of_arm in training.values() for cell in of_arm], workdir, retry)
    compared = _open(configs, workdir)
    ablation = _ablation_cells(configs, compared, workdir)
    probe_cells = _probe_cells(first, compared)
    scoring = {arm: _pair_cells(arm, config, pairs, workdir) for arm, config in configs.items() if pairs}
    cells: list[Cell] = [
        *(cell for name in first.probes for of_arm in probe_cells.values() for cell in of_arm[name]),
        *(cell for of_arm in ablation.values() for cell in of_arm),
        *(cell for of_arm in scoring.values() for of_model in of_arm for cell in of_model),
    ]
    table = grid.run(lambda table: Stage(cells), workdir)
    if table is None:
        return None

    def value(cell: Any) -> Any:
        return cell.read(workdir / cell.path, table[cell.name])

    scores: Results = {
        arm: {name: list(map(value, of_probe)) for name, of_probe in of_arm.items()}
        for arm, of_arm in probe_cells.items()
    }
    ablated = {arm: [Summary(value(cell), first.resamples) for cell in of_arm] for arm, of_arm in ablation.items()}
    judged: JudgedModels = {arm: [list(map(value, of_model)) for of_model in of_arm] for arm, of_arm in scoring.items()}
    descriptions = {arm: [probed.description for probed in of_arm.values()] for arm, of_arm in compared.items()}
    with lock.hold(workdir / lock.FILE, wait=True):  # processes that shared the cells may write it at the same time
        return _write_report(verb, base, configs, descriptions, scores, ablated, (pairs, judged), workdir, overridden)


def _check(configs: Mapping[str, ProbingConfig], experiments: Mapping[str, Sequence[ExperimentConfig]]) -> list[Pair]:
    """Raise ValueError if a model cannot be measured, before any is trained; return the minimal pairs.

    experiments: for each arm the configs of the runs that are trained first.
    """
    first = next(iter(configs.values()))
    for name, settings in first.probes.items():
        probes.check(name, settings)
    for arm, of_arm in experiments.items():
        if any(experiment.translates for experiment in of_arm):
            raise ValueError(f"the arm {arm} trains a model that translates: give a config that pre-trains on text")
    if first.ablation.data:
        checkpoints = [
            (place, config.step)
            for config in configs.values()
            for seed in config.seeds
            if (place := config.checkpoint_of(seed))
        ]
        ablation_results.check(first.ablation, checkpoints)
        ablation_results.check_training(experiments)
    data, most = first.minimal_pairs.data, first.minimal_pairs.most
    pairs = minimal_pairs.read(str(data), most) if data else []
    if pairs:
        _check_word_heads(configs, experiments)
    return pairs


def _train(cells: Sequence[TrainingCell], workdir: epath.Path, retry: bool) -> None:
    """Train the models of a comparison that are trained first. Raises ValueError as soon as one of them fails."""
    for cell in cells:
        cell.check(workdir)  # so that a conflict shows now and not hours later

    def plan(table: Table) -> Stage:
        for name, result in table.items():
            if not result.is_done:
                raise ValueError(
                    f"{workdir / name} cannot be probed, because its training failed ({result.reason}): change its "
                    f"settings, or delete {workdir / name} to train it again"
                )
        return Stage(cells, is_last=False)

    grid.run(plan, workdir, retry=retry)


def _probe_cells(
    first: ProbingConfig, compared: Mapping[str, Mapping[int, ProbedModel]]
) -> dict[str, dict[str, list[ProbeCell]]]:
    """Return {arm: {probe: the cells of its models}}. The texts of all probes are read, so that errors show early."""
    models_compared = [probed for of_arm in compared.values() for probed in of_arm.values()]
    cells: dict[str, dict[str, list[ProbeCell]]] = {arm: {} for arm in compared}
    for name, settings in first.probes.items():
        print(f"{name}: reading texts", file=sys.stderr, flush=True)
        probe = probes.make(name, settings, models_compared)
        for arm, of_arm in compared.items():
            cells[arm][name] = [
                ProbeCell(f"probes/{arm}-seed{seed}/{name}", probed, settings, probe) for seed, probed in of_arm.items()
            ]
    return cells


def _pair_cells(arm: str, config: ProbingConfig, pairs: Sequence[Pair], workdir: epath.Path) -> list[list[PairsCell]]:
    """Return, for each model of an arm, the cells of its checkpoints that score minimal pairs."""
    places = {seed: _checkpoint(arm, seed, config, workdir) for seed in config.seeds}
    return [
        [
            pair_results.cell(place, step, pairs, f"{arm}-seed{seed}")
            for step in pair_results.steps_of(place, config.step, config.minimal_pairs)
        ]
        for seed, place in places.items()
    ]


def _check_word_heads(
    configs: Mapping[str, ProbingConfig], experiments: Mapping[str, Sequence[ExperimentConfig]]
) -> None:
    """Raise ValueError if a model has no head for masked words, or will be trained without one."""
    for config in configs.values():
        for seed in config.seeds:
            if (place := config.checkpoint_of(seed)) is not None:
                opening.open_masked_lm(place, config.step)
                pair_results.steps_of(place, config.step, config.minimal_pairs)
    ablation_results.check_training(experiments, "minimal pairs need")


def _checkpoint(arm: str, seed: int, config: ProbingConfig, workdir: epath.Path) -> str:
    """Return the directory of an arm's model for a seed: the config's checkpoint, or the run that is trained first."""
    return config.checkpoint_of(seed) or str(workdir / f"{arm}-seed{seed}")


def _ablation_cells(
    configs: Mapping[str, ProbingConfig], compared: Mapping[str, Mapping[int, ProbedModel]], workdir: epath.Path
) -> dict[str, list[AblationCell]]:
    """Return {arm: the cells of its models' head ablation}; {} without ablation."""
    first = next(iter(configs.values()))
    if not first.ablation.data:
        return {}
    places = {
        arm: {seed: (_checkpoint(arm, seed, config, workdir), config.step) for seed in config.seeds}
        for arm, config in configs.items()
    }
    return {
        arm: [
            AblationCell(f"ablation/{arm}-seed{seed}", model, compared[arm][seed].assignment)
            for seed, model in of_arm.items()
        ]
        for arm, of_arm in ablation_results.prepare(first.ablation, places).items()
    }


def _open(configs: Mapping[str, ProbingConfig], workdir: epath.Path) -> dict[str, dict[int, ProbedModel]]:
    """Return {arm: {seed: opened model}} of all arms, followed by arms of models with random weights.

    Each combination of architecture and tokenizer has an arm of random models.
    """
    by_arm: dict[str, dict[int, ProbedModel]] = {}
    largest: dict[tuple[Any, ...], ProbedModel] = {}  # of each kind, the model for the longest texts
    for arm, config in configs.items():
        by_arm[arm] = {}
        for seed in config.seeds:
            probed = by_arm[arm][seed] = models.open_model(_checkpoint(arm, seed, config, workdir), config.step)
            kind = without_dropout(probed.model.config), probed.tokenizer.fingerprint()
            if kind not in largest or probed.longest > largest[kind].longest:
                largest[kind] = probed
    first = next(iter(configs.values()))
    if first.probes and first.random_seeds:  # only probes are asked of random models
        for number, probed in enumerate(largest.values(), 1):
            twins = {seed: models.random_twin(probed, seed) for seed in first.random_seeds}
            by_arm[RANDOM if number == 1 else f"{RANDOM}{number}"] = twins
    return by_arm


def _training(arm: str, config: ProbingConfig) -> list[TrainingCell]:
    """Return the cells of the runs that are trained before an arm is probed, one for each seed.

    Raises ValueError if the config file that trains them sets a seed that none of them would have.
    """
    if config.train is None:
        return []
    trained = config_files.load(config.train).settings
    if not isinstance(trained, ExperimentConfig):
        raise ValueError(f"train={config.train} must be a config for pre-training, such as quickstart:arm=ag")
    arms.check_seed(trained, config.seeds, "seeds")
    return [TrainingCell(f"{arm}-seed{seed}", dataclasses.replace(trained, seed=seed)) for seed in config.seeds]


def _write_report(
    verb: str,
    base: Config,
    configs: Mapping[str, ProbingConfig],
    descriptions: Mapping[str, Sequence[str]],
    scores_of_arms: Results,
    ablated: Mapping[str, Sequence[Summary]],
    scored: tuple[Sequence[Pair], JudgedModels],
    workdir: epath.Path,
    overridden: Sequence[str],
) -> epath.Path:
    """Write report.md, report.json, CSV files with all heads, and figures; return the path of report.md."""
    first = next(iter(configs.values()))
    content: dict[str, Any] = {
        "baseline": next(iter(configs)),
        **({"overridden": list(overridden)} if overridden else {}),
        "models": descriptions,
        "probes": {
            name: {
                mode: summary.numbers(
                    mode,
                    {arm: by_probe[name] for arm, by_probe in scores_of_arms.items()},
                    list(configs),
                    first.resamples,
                )
                for mode in settings.modes
            }
            for name, settings in first.probes.items()
        },
    }
    figures: dict[tuple[str, str], str] = {}
    for name, settings in first.probes.items():
        for mode in settings.modes:
            path = f"{FIGURES}/{HEADS}{name}_{mode}.png"
            tables = {
                arm: summary.table_of(by_probe[name][0].probe, by_probe[name][0].modes[mode])
                for arm, by_probe in scores_of_arms.items()
            }
            assignments = {arm: by_probe[name][0].probed.assignment for arm, by_probe in scores_of_arms.items()}
            kinds = content["probes"][name][mode]["kinds"][:4]
            scores = {arm: summary.head_scores(table, kinds) for arm, table in tables.items()}
            caption = f"{workdir.name}: {name}, mode {mode}: score on test queries"
            canvas.save(heads.draw_scores(scores, assignments, caption), workdir / path)
            figures[name, mode] = path
    if ablated:
        content["ablation"] = _write_ablation(ablated, content["probes"], workdir)
    pairs, judged = scored
    if pairs:
        content["minimal_pairs"] = pair_report.numbers(
            pairs, judged, minimal_pairs.published(str(first.minimal_pairs.data))
        )
        if first.minimal_pairs.milestones:
            points, caption = pair_report.points(content["minimal_pairs"]), f"{workdir.name}: minimal pairs"
            canvas.save(accuracies.draw(points, "pairs that are right (%)", caption), workdir / pair_report.FIGURE)
    flat = {arm: schema.flat(schema.to_dict(config)) for arm, config in configs.items()}
    if first.probes:
        storage.write_whole(workdir / SCORES, report.csv_text(scores_of_arms))
    written = {*figures.values(), *([SCORES] if first.probes else [])}
    written |= {ablation_report.FIGURE, ablation_report.CSV} if ablated else set()
    written |= {pair_report.FIGURE} if first.minimal_pairs.milestones else set()
    # The reports are written last, so that they name no figure that is not there yet.
    _remove_others(workdir, written)
    sections = report.sections(content, flat, figures)
    return Report(first.title, arms.command(verb, base), content, sections, overridden).write(workdir)


def _remove_others(workdir: epath.Path, written: set[str]) -> None:
    """Remove CSV files and figures that an earlier command left beside its report and this one has not written."""
    for name in (SCORES, ablation_report.CSV, ablation_report.FIGURE, pair_report.FIGURE):
        if name not in written:
            (workdir / name).unlink(missing_ok=True)
    if (workdir / FIGURES).exists():
        for path in (workdir / FIGURES).iterdir():
            if path.name.startswith(HEADS) and f"{FIGURES}/{path.name}" not in written:
                path.unlink()


def _write_ablation(
    ablated: Mapping[str, Sequence[Summary]], probed: Mapping[str, Any], workdir: epath.Path
) -> dict[str, Any]:
    """Write the figure and the CSV file of head ablation; return the section on it for report.json.

    probed: the part of report.json on probes.
    """
    changes = {arm: of_arm[0].change_NH for arm, of_arm in ablated.items()}
    assignments = {arm: of_arm[0].ablated.assignment for arm, of_arm in ablated.items()}
    figure = heads.draw_changes(changes, assignments, f"{workdir.name}: change of the loss without each head")
    canvas.save(figure, workdir / ablation_report.FIGURE)
    storage.write_whole(workdir / ablation_report.CSV, ablation_report.csv_text(ablated))
    return ablation_summary.numbers(ablated, probed)

"""The results in a fine-tuning report, from those of its trials: metrics over seeds, ensembles, t-tests.

A trial has a file of predictions for every split but the training one, with rows of `id`, `prediction` and `scores`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from ag_jax.data.tasks.task import Example, Examples, Task
from ag_jax.evaluation import metrics, predictions
from ag_jax.evaluation.significance import paired_t_test, paired_t_test_over_examples
from ag_jax.finetuning import choosing, kinds, trial
from ag_jax.finetuning.choosing import Facts, Point
from ag_jax.finetuning.config import Recipe
from ag_jax.finetuning.splits import Splits, of_fold
from ag_jax.grid.cells import Result

PredictionRow = Mapping[str, Any]  # a line of predictions_SPLIT.jsonl
POOLED, OF_FOLDS = "all folds", "mean of folds"


def read_predictions(directory: epath.Path, result: Result, split: str, examples: Examples) -> Sequence[PredictionRow]:
    """Read a trial's predictions for a split, one dict for each of `examples`, in their order.

    Raises ValueError if the file is damaged, or if the ids of the examples differ, such as when files of a task have
    changed since.
    """
    rows = trial.predictions(directory, result, split)
    if [row["id"] for row in rows] != [example.id for example in examples]:
        raise ValueError(
            f"{directory}/predictions_{split}.jsonl does not hold a prediction for each of the {len(examples)} "
            f"examples of {examples.source}; delete {directory} and run the command again"
        )
    return rows


@dataclasses.dataclass(frozen=True)
class SplitPredictions:
    """The predictions for one split by the models of all seeds at one point of a sweep.

    task: the task.
    examples: the examples of the split.
    rows: the predictions of each seed, in the order of the seeds.
    """

    task: Task
    examples: Examples
    rows: tuple[Sequence[PredictionRow], ...]

    def values(self) -> dict[str, list[float]]:
        """Return {metric: its values, one for each seed}."""
        of_seeds = [_evaluate(self.task, self.examples, rows) for rows in self.rows]
        return {name: [of_seed[name] for of_seed in of_seeds] for name in of_seeds[0]}

    def per_example(self) -> list[np.ndarray]:
        """Return for each seed an array with the score of each example's prediction, larger is better."""
        return [kinds.per_example(self.task, self.examples, _predictions(rows)) for rows in self.rows]

    def together(self) -> Sequence[PredictionRow]:
        """Return the predictions of an ensemble of all seeds' models, decided from the mean of the models' scores."""
        if len(self.rows) == 1:
            return self.rows[0]
        rows: list[PredictionRow] = []
        for example, *of_seeds in zip(self.examples, *self.rows, strict=True):
            of_models = [kinds.from_plain(self.task, row["scores"]) for row in of_seeds]
            scores = kinds.average(self.task, of_models)
            prediction = kinds.decide(self.task, example, scores)
            rows.append({"id": of_seeds[0]["id"], "prediction": prediction, "scores": predictions.to_plain(scores)})
        return rows

    def thresholds(self) -> dict[str, list[float]]:
        """Return {metric: for each seed, the threshold of "no answer" with the metric's best value}.

        Only metrics that tune the threshold; empty for tasks without them.
        """
        if not metrics.reads_scores(self.task):
            return {}
        of_seeds = [metrics.tuned_thresholds(self.task, self.examples, _scores(self.task, rows)) for rows in self.rows]
        return {name: [of_seed[name][1] for of_seed in of_seeds] for name in of_seeds[0]}

    def is_labelled(self) -> bool:
        """Return whether the labels of all examples are known."""
        return not any(metrics.is_unknown(example) for example in self.examples)


def _predictions(rows: Sequence[PredictionRow]) -> list[Any]:
    return [row["prediction"] for row in rows]


def _scores(task: Task, rows: Sequence[PredictionRow]) -> list[Any]:
    return [kinds.from_plain(task, row["scores"]) for row in rows]


def _evaluate(task: Task, examples: Sequence[Example], rows: Sequence[PredictionRow]) -> dict[str, float]:
    scores = _scores(task, rows) if metrics.reads_scores(task) else None
    return kinds.evaluate(task, examples, _predictions(rows), scores)


@dataclasses.dataclass(frozen=True)
class Top:
    """The trial with the best development score of a task and arm, which `best.find` finds if its weights were saved.

    directory: its directory.
    score: its development score.
    predicted: its predictions of the development examples; with folds, those of all folds' models of its seed.
    """

    directory: epath.Path
    score: float
    predicted: SplitPredictions


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The results of one arm of a comparison on one task: its sweep, and the predictions of the best point.

    task: the task.
    points: every point of the sweep without failed trials.
    best: the point with the best development metric.
    predicted: the best point's predictions, by split.
    notes: remarks for the report.
    top: the best trial of all points.
    """

    task: Task
    points: tuple[Point, ...]
    best: Point
    predicted: dict[str, SplitPredictions]
    notes: tuple[str, ...]
    top: Top

    @property
    def headline(self) -> str:
        """The split whose score is reported for the task: the development set, or all folds together."""
        return POOLED if POOLED in self.predicted else "validation"


def choose(splits: Splits, recipe: Recipe, trials: Sequence[tuple[Result, epath.Path]]) -> Chosen:
    """Choose the best point of a sweep by the development metric alone; return it with its trials' predictions.

    trials: the result of each trial, and its directory. A point of which a trial failed is not chosen.

    Raises ValueError if every point has a failed trial.
    """
    failed = [result for result, _ in trials if not result.is_done]
    broken = {choosing.point_of(result.facts) for result in failed}
    points = choosing.points([result.facts for result, _ in trials if choosing.point_of(result.facts) not in broken])
    if not points:
        raise ValueError(
            f"every point of the sweep of {splits.task.name} failed with some seed; the first failure: "
            f"{failed[0].reason}; change the settings and take another --workdir, or train the failed trials again "
            "with --retry"
        )
    best = choosing.best_point(points, splits.task.metric)
    of_trial = {_key(result.facts): (directory, result) for result, directory in trials}
    if recipe.folds:
        # Every example is tested in one fold, so the folds' predictions together are scored as one set.
        tested = [of_fold(splits, number, recipe.folds).others["test"] for number in range(recipe.folds)]
        examples = dataclasses.replace(splits.train, items=tuple(item for part in tested for item in part))
        rows = tuple(
            [
                row
                for facts, part in zip(of_seed, tested, strict=True)
                for row in read_predictions(*of_trial[_key(facts)], "test", part)
            ]
            for of_seed in best.results.values()
        )
        predicted = {POOLED: SplitPredictions(splits.task, examples, rows)}
    else:
        sets = {"validation": splits.validation, **splits.others}
        predicted = {
            name: SplitPredictions(
                splits.task.of_split(name),
                examples,
                tuple(
                    read_predictions(*of_trial[_key(of_seed[0])], name, examples) for of_seed in best.results.values()
                ),
            )
            for name, examples in sets.items()
        }
    notes = [f"not chosen, because seed {result.facts['seed']} failed: {result.reason}" for result in failed]
    for name, split in predicted.items():
        notes += [*_label_notes(name, split), *_threshold_notes(name, split), *_constant_notes(name, split)]
    return Chosen(
        splits.task, tuple(points), best, predicted, (*splits.notes, *notes), _top(splits, trials, best, predicted)
    )


def _top(
    splits: Splits, trials: Sequence[tuple[Result, epath.Path]], best: Point, predicted: Mapping[str, SplitPredictions]
) -> Top:
    """Return the trial with the best development score, of equal ones the first, with its predictions."""
    metric = splits.task.metric
    done = [(result, directory) for result, directory in trials if result.is_done]
    result, directory = max(done, key=lambda of: of[0].facts["metrics"][metric])
    if POOLED in predicted:  # there is a single point
        rows = predicted[POOLED].rows[list(best.results).index(result.facts["seed"])]
        examples = predicted[POOLED].examples
    else:
        examples = splits.validation
        rows = read_predictions(directory, result, "validation", examples)
    score = result.facts["metrics"][metric]
    return Top(directory, score, SplitPredictions(splits.task, examples, (rows,)))


def _label_notes(split: str, predicted: SplitPredictions) -> list[str]:
    """Return a note that a split is not scored because some of its labels are missing; none for other splits."""
    count, unknown = len(predicted.examples), sum(map(metrics.is_unknown, predicted.examples))
    return [f"{split}: not scored, because {unknown:,} of its {count:,} labels are missing"] * (0 < unknown < count)


def _threshold_notes(split: str, predicted: SplitPredictions) -> list[str]:
    """Return a note on the thresholds of "no answer" that metrics tune on a split; [] if there are none."""
    if not predicted.is_labelled():
        return []
    thresholds = predicted.thresholds()
    listing = "; ".join(
        f"{name}: {', '.join(f'{value:.3g}' for value in values)}" for name, values in thresholds.items()
    )
    sentence = (
        f"{split}: the threshold of no answer is 0, and for the tuned metrics, by seed, that which is best for the"
    )
    return [f"{sentence} same examples ({listing})"] if thresholds else []


def _constant_notes(split: str, predicted: SplitPredictions) -> list[str]:
    """Return a note that warns of models with the same prediction for all examples; none if there is no such model.

    Only for classes and tags, which may be so unevenly distributed that such a model has a high score.
    """
    task = predicted.task
    if not task.labels or len(predicted.examples) < 2:
        return []
    constants: list[str] = []  # of each such model, what it predicted
    for rows in predicted.rows:
        if task.kind == "tagging":
            distinct = {tag for row in rows for tag in row["prediction"]}
        elif task.kind == "multilabel":
            distinct = {task.names_of(prediction) for prediction in _predictions(rows)}
        else:
            distinct = {task.labels[prediction] for prediction in _predictions(rows)}
        constants += distinct if len(distinct) == 1 else ()
    what = f"{len(constants)} of {len(predicted.rows)} models" if len(predicted.rows) > 1 else "the model"
    every = "word" if task.kind == "tagging" else "example"
    values = " or ".join(map(repr, sorted({*constants})))
    text = f"one and the same ({values})" if len({*constants}) > 1 else values
    return [f"{split}: {what} predicted {text} for every {every}, so nothing useful was learnt"] * bool(constants)


def _key(facts: Facts) -> tuple:
    return choosing.point_of(facts), facts["seed"], facts.get("fold")


def of_arm(chosen: Chosen, baseline: Chosen | None) -> dict[str, Any]:
    """Return an arm's results on a task for report.json: metrics, sweep and, unless `baseline` is None, p-values.

    The dict also has ensembles and numbers of examples.

    baseline: the results of the baseline, against which the arm is tested; None for the baseline itself.
    """
    # Test splits without labels have no metrics; their predictions are only written for benchmark servers.
    labelled = {name: predicted for name, predicted in chosen.predicted.items() if predicted.is_labelled()}
    sets, together = {}, {}
    for name, predicted in labelled.items():
        sets[name] = {key: choosing.summary(of_seeds) for key, of_seeds in predicted.values().items()}
        if len(predicted.rows) > 1:
            together[name] = _evaluate(predicted.task, predicted.examples, predicted.together())
    if POOLED in sets:
        sets[OF_FOLDS] = {key: choosing.summary(_mean_of_folds(chosen, key)) for key in sets[POOLED]}
    thresholds = {name: values for name, predicted in labelled.items() if (values := predicted.thresholds())}
    trials = [result for point in chosen.points for of_seed in point.results.values() for result in of_seed]
    first = trials[0]
    return {
        "headline": chosen.headline,
        "chosen": chosen.best.settings,
        "splits": sets,
        "ensemble": together,
        **({"thresholds": thresholds} if thresholds else {}),
        "p_value": None if baseline is None else p_values(baseline, chosen),
        "sweep": [_point_json(chosen, point) for point in chosen.points],
        "curves": _curves(chosen),
        "counts": {
            **{split: first["examples"][split] for split in ("train", "validation")},
            # Not summed, because every trial encodes the same examples.
            **{name: max(result[name] for result in trials) for name in ("truncated", "cut_words", "lost", "skipped")},
            "trials": len(trials),
        },
        "seconds": sum(result["seconds"] for result in trials),
    }


def _mean_of_folds(chosen: Chosen, metric: str) -> list[float]:
    """Return for each seed the mean over the folds of a metric on the fold's test examples."""
    predicted, means = chosen.predicted[POOLED], []
    for rows, of_seed in zip(predicted.rows, chosen.best.results.values(), strict=True):
        of_folds, start = [], 0
        for number in range(len(of_seed)):  # divided as `folds.fold` does
            size = len(predicted.examples) * (number + 1) // len(of_seed) - len(predicted.examples) * number // len(
                of_seed
            )
            part = predicted.examples.take(slice(start, start + size))
            of_folds.append(_evaluate(chosen.task, part, rows[start : start + size])[metric])
            start += size
        means.append(float(np.mean(of_folds)))
    return means


def _point_json(chosen: Chosen, point: Point) -> dict[str, Any]:
    return {
        **point.settings,
        "chosen": point is chosen.best,
        "best_epochs": [result["best_epoch"] for of_seed in point.results.values() for result in of_seed],
        **choosing.summary(point.values(chosen.task.metric)),
    }


def _curves(chosen: Chosen) -> list[dict[str, Any]]:
    """Return the learning curve of each trial at the chosen point: its evaluations on development data by epoch."""
    metric, trials = chosen.task.metric, [result for of_seed in chosen.best.results.values() for result in of_seed]
    return [
        {
            "seed": result["seed"],
            "epochs": [epoch["epoch"] for epoch in result["epochs"]],
            metric: [epoch["metrics"][metric] for epoch in result["epochs"]],
            "train_loss": [epoch["train_loss"] for epoch in result["epochs"]],
        }
        for result in trials
    ]


def p_values(baseline: Chosen, other: Chosen) -> dict[str, float | None]:
    """Return {"seeds" or "examples": p-value of the paired t-test over these}; None where a test is undefined.

    Raises ValueError if the arms were not evaluated on the same examples.
    """
    ours, theirs = (chosen.predicted[chosen.headline] for chosen in (other, baseline))
    if [example.id for example in ours.examples] != [example.id for example in theirs.examples]:
        raise ValueError(
            f"task {other.task.name}: the arms were evaluated on different examples, so a paired test is impossible: "
            "train all arms on the same files, with the same settings that select examples"
        )
    metric = other.task.metric
    return {
        "seeds": paired_t_test(theirs.values()[metric], ours.values()[metric]),
        "examples": paired_t_test_over_examples(theirs.per_example(), ours.per_example()),
    }

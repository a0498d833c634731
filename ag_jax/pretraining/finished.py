"""What config files read of finished work: a run, the arms of a comparison, the best point of a search."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from ag_jax.data.json_files import check_fields, read_json
from ag_jax.distributed import storage
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.criterion import Criterion

BEST = "best.json"  # in the directory of a search


def run(directory: str) -> tuple[epath.Path, ExperimentConfig]:
    """Return (absolute path, config) of the run in `directory`, for a config file that takes a run as argument.

    Raises FileNotFoundError or ValueError if `directory` is not a run directory.
    """
    path = storage.directory(directory)
    return path, pretraining_config.read(path / "config.json")


def comparison(workdir: epath.PathLike) -> tuple[list[str], list[int]]:
    """Return (names of the arms, seeds) of a finished comparison of pre-training runs, from its `report.json`.

    Raises FileNotFoundError if there is no such comparison.
    """
    report = read_json(epath.Path(workdir) / "report.json", fields={"arms": dict, "seeds": list})
    return list(report["arms"]), report["seeds"]


def search(directory: epath.PathLike, arm: str, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a finished search chose for an arm, {"section.key": value}.

    They are all settings that its grids search.

    directory: the --workdir of the search.
    arm: name of the arm; it stands also for all arms whose names begin with it and `_`, such as `ag` for `ag` and
        `ag_strength`, and the best point of all of them is returned.
    expected: arguments that the config file of the search must not have had with another value, {name: value}.

    Raises FileNotFoundError if there is no `best.json`, and ValueError if the search had other arguments, or if there
    is no such arm.
    """
    path = storage.directory(directory) / BEST
    content = read_json(path, dict, {"arguments": dict, "arms": dict, "metric": str})
    arguments = content["arguments"]
    if other := [name for name in expected if arguments.get(name, expected[name]) != expected[name]]:
        raise ValueError(
            f"{path} is of a search with {', '.join(f'{name}={arguments[name]}' for name in other)}, expected "
            f"{', '.join(f'{name}={expected[name]}' for name in other)}: give the --workdir of such a search"
        )
    arms, metric = content["arms"], content["metric"]
    check_fields(path, arms, dict.fromkeys(arms, dict))
    for winner in arms.values():
        check_fields(path, winner, {"settings": dict, metric: float})
    alike = [arms[name] for name in arms if name == arm or name.partition("_")[0] == arm]
    if not alike:
        raise ValueError(f"{path} has no best point of arm {arm}: it has {', '.join(arms) or 'none'}")
    by = Criterion.of_objective(metric)
    return dict(min(alike, key=lambda winner: by.cost(winner[metric]))["settings"])

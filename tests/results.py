"""Results in the directories of runs and trials, as `grid.store` stores them."""

from etils import epath

from ag_jax.grid import store
from ag_jax.grid.cells import Result


def write(directory, facts, **more):
    """Store a result that has the given facts."""
    store.write(epath.Path(directory), Result(facts, **more))


def facts(directory):
    """Return the facts of a stored result."""
    return store.read(epath.Path(directory)).facts

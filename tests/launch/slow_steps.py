"""`ag-jax` with steps that take at least $SECONDS_A_STEP seconds, so that tests can interrupt tiny runs.

With $SHOWN, names of environment variables, it prints these in place of running the command.
"""

import os
import time

from ag_jax import main
from ag_jax.training.stopping import StopSignal


def slow_down() -> None:
    reached = StopSignal.reached

    def slowly(self):
        time.sleep(float(os.environ["SECONDS_A_STEP"]))
        return reached(self)

    StopSignal.reached = slowly


if __name__ == "__main__":
    if shown := os.environ.get("SHOWN"):
        print(" ".join(f"{name}={os.environ.get(name)}" for name in shown.split(",")), flush=True)
    else:
        slow_down()
        main.console()

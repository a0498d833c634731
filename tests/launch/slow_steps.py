"""`ag-jax` with steps that take at least $SECONDS_A_STEP seconds, so that tests can interrupt tiny runs."""

import os
import time

from ag_jax import main
from ag_jax.training.stopping import StopSignal

if __name__ == "__main__":
    reached = StopSignal.reached

    def slowly(self):
        time.sleep(float(os.environ["SECONDS_A_STEP"]))
        return reached(self)

    StopSignal.reached = slowly
    main.console()

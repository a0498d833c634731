"""A forecast of a step's time from the compiler's own estimates, beside the lower bounds of `roofline`."""

import dataclasses

from ag_jax.planning.compilation import Compiled
from ag_jax.planning.roofline import Roofline
from ag_jax.training.chips import Chip


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Forecast of a training step's time in seconds, as a sum of parts that are assumed not to overlap.

    operations: the compiler's estimate for all operations but kernels and collectives, which includes HBM traffic.
    kernels: instruction schedules of the kernels, without waiting for memory.
    messages: communication between the chips of a slice at full bandwidth.
    network: communication between slices at full bandwidth.
    """

    operations: float
    kernels: float
    messages: float
    network: float = 0.0

    @property
    def seconds(self) -> float:
        """The sum of the parts; if it is less than a lower bound of the time, `plan.estimates` takes the bound."""
        return self.operations + self.kernels + self.messages + self.network


def forecast(step: Compiled, device: Chip, limits: Roofline) -> Forecast | str:
    """Return the forecast of a compiled step on one device, or why there is none.

    device: specification of the device, from `Chip.per_device`.
    limits: lower bounds of the step's time.
    """
    if device.clock is None:
        return f"the clock of {device.name} is not known here"
    if step.costs.estimated_cycles is None:
        return "this version of libtpu writes no estimated cycles into the compiled program"
    if step.kernels.missing:
        return (
            f"libtpu wrote no schedule of the kernels {', '.join(step.kernels.missing)}: this version writes none, "
            "LIBTPU_INIT_ARGS has other flags for dumps, or libtpu was loaded before the plan was made"
        )
    unknown = (*step.costs.unknown_loops, *(f"in the kernel {name}" for name in step.kernels.with_unknown_loops))
    if unknown:
        return f"the number of iterations of loops is unknown: {', '.join(unknown)}"
    operations, kernels = (cycles / device.clock for cycles in (step.costs.estimated_cycles, step.kernels.total))
    return Forecast(operations, kernels, limits.messages, limits.network)

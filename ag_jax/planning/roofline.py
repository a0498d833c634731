"""Lower bounds of a step's time, from the chip's peak FLOP/s and bandwidths (the roofline model)."""

import dataclasses

from ag_jax.training.chips import Chip


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Lower bounds of a step's time in seconds, one for each resource (Williams et al. 2009).

    products: matrix products at the chip's peak.
    memory: HBM traffic at full bandwidth.
    messages: communication between chips at full bandwidth.
    """

    products: float
    memory: float
    messages: float

    @property
    def seconds(self) -> float:
        """The lower bound of the step's time: the largest bound, because computation, memory traffic and communication
        may overlap.
        """
        return max(self.products, self.memory, self.messages)

    @property
    def binds(self) -> str:
        """What limits the step's time: `products` (matrix products), `memory` (HBM traffic) or `messages`
        (communication between chips).
        """
        return max(("products", "memory", "messages"), key=lambda name: getattr(self, name))


def roofline(device: Chip, *, flops: float, hbm_bytes: float, sent_bytes: float) -> Roofline:
    """Return lower bounds of a training step's time on one device.

    device: specification of the device, from `Chip.per_device`.
    flops, hbm_bytes, sent_bytes: FLOPs of the step, bytes of HBM traffic, and bytes sent to other chips, per device.
    """
    return Roofline(flops / device.flops, hbm_bytes / device.memory_bandwidth, sent_bytes / device.link_bandwidth)

"""Lower bounds of a step's time, from the chip's peak FLOP/s and bandwidths (the roofline model)."""

import dataclasses
from typing import cast

from ag_jax.training.chips import Chip


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Lower bounds of a step's time in seconds, one for each resource (Williams et al. 2009).

    products: matrix products at the chip's peak.
    memory: HBM traffic at full bandwidth.
    messages: communication between the chips of a slice at full bandwidth.
    network: communication between slices at full bandwidth.
    """

    products: float
    memory: float
    messages: float
    network: float = 0.0

    @property
    def seconds(self) -> float:
        """The lower bound of the step's time: the largest bound.

        Computation, memory traffic and communication may overlap.
        """
        return max(self.products, self.memory, self.messages, self.network)

    @property
    def binds(self) -> str:
        """The name of the largest bound: `products`, `memory`, `messages` or `network`."""
        return max(("products", "memory", "messages", "network"), key=lambda name: getattr(self, name))


def roofline(
    device: Chip, *, flops: float, hbm_bytes: float, sent_bytes: float, network_bytes: float = 0.0
) -> Roofline:
    """Return lower bounds of a training step's time on one device.

    device: specification of the device, from `Chip.per_device`.
    flops, hbm_bytes, sent_bytes, network_bytes: FLOPs of the step, bytes of HBM traffic, and bytes sent to other chips
        of the slice and to other slices, per device.
    """
    return Roofline(
        flops / device.flops,
        hbm_bytes / device.memory_bandwidth,
        sent_bytes / device.link_bandwidth,
        network_bytes / cast(float, device.network_bandwidth) if network_bytes else 0.0,  # `Topology` checks it
    )

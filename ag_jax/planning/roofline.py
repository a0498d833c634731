"""Lower bounds of a step's time, from the chip's peak FLOP/s and bandwidths (the roofline model)."""

import dataclasses

from ag_jax.planning.chips import Chip


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Lower bounds of a step's time in seconds, one for each resource (Williams et al. 2009).

    products: matrix products at the chip's peak.
    memory: HBM traffic at full bandwidth.
    messages: messages between chips at full bandwidth.
    """

    products: float
    memory: float
    messages: float

    @property
    def seconds(self) -> float:
        """The lower bound of the step's time: the largest bound, as if products, memory and messages overlapped."""
        return max(self.products, self.memory, self.messages)

    @property
    def binds(self) -> str:
        """The name of the resource with the largest bound: `products`, `memory` or `messages`."""
        return max(("products", "memory", "messages"), key=lambda name: getattr(self, name))


def roofline(device: Chip, *, flops: float, hbm_bytes: float, sent_bytes: float) -> Roofline:
    """Return the bounds for the FLOPs, HBM bytes and sent bytes of one device; `device` is a chip's `per_device`."""
    return Roofline(flops / device.flops, hbm_bytes / device.memory_bandwidth, sent_bytes / device.link_bandwidth)

"""The least time that a step can take, whatever the program's order: nothing is faster than the chip."""

import dataclasses

from ag_jax.planning.chips import Chip


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of a step if one thing alone took time (Williams et al. 2009): products, HBM traffic, messages."""

    products: float
    memory: float
    messages: float

    @property
    def seconds(self) -> float:
        """A lower bound of the step's time: all three at once, none waiting."""
        return max(self.products, self.memory, self.messages)

    @property
    def binds(self) -> str:
        """What takes longest."""
        return max(("products", "memory", "messages"), key=lambda name: getattr(self, name))


def roofline(device: Chip, *, flops: float, hbm_bytes: float, sent_bytes: float) -> Roofline:
    """The bounds for what one device computes, moves and sends; `device` is a chip's `per_device`."""
    return Roofline(flops / device.flops, hbm_bytes / device.memory_bandwidth, sent_bytes / device.link_bandwidth)

"""Format a plan as text to read, and as JSON to save."""

import dataclasses
import shlex
from typing import Any

from ag_jax.planning.compilation import Compiled
from ag_jax.planning.costs import BETWEEN_SLICES
from ag_jax.planning.forecast import Forecast
from ag_jax.planning.plan import Attempt, Estimates, Plan, Speed, estimates
from ag_jax.planning.roofline import Roofline
from ag_jax.planning.search import needed
from ag_jax.planning.topology import Topology
from ag_jax.settings import schema

GIB = 2**30
_BINDS = {
    "products": "compute-bound: the matrix products take longest",
    "memory": "memory-bandwidth-bound: HBM traffic takes longest",
    "messages": "communication-bound: messages between chips take longest",
    "network": "network-bound: messages between slices take longest",
}


def report(plan: Plan, price: float | None = None) -> str:
    """Return a plan as text, with the cost of the run if `price`, dollars a chip-hour, is given."""
    blocks = [_heading(plan), _fit(plan)]
    if plan.chosen:
        timing = _estimates(plan.chosen, plan.topology)
        blocks += [_step(plan.chosen, plan.topology, timing), _limits(plan.chosen, plan.topology, timing, price)]
        blocks.append(_forecast(plan.chosen, plan.topology, timing, price))
    blocks.append(_largest(plan))
    return "\n\n".join(filter(None, blocks))


def as_json(plan: Plan, price: float | None = None) -> dict[str, Any]:
    """Return the content of `plan.json`, with the cost of the run if `price`, dollars a chip-hour, is given."""
    attempt = plan.chosen
    timing = _estimates(attempt, plan.topology) if attempt else None
    return {
        "versions": plan.versions,
        "topology": plan.topology.name,
        "accelerator": plan.topology.accelerator,
        "slices": plan.topology.slices,
        "chips": plan.topology.chips,
        "devices": plan.topology.devices,
        "hosts": plan.topology.hosts,
        "mesh": plan.mesh,
        "fits": plan.own.fits,
        "own": _attempt_json(plan.own),
        "suggestion": _attempt_json(plan.suggestion),
        "largest": _attempt_json(plan.largest),
        "estimates_of": attempt and attempt.settings,
        "bounds": timing and _bounds_json(timing),
        "forecast": timing and _forecast_json(timing),
        "price_per_chip_hour": price,
        "cost": timing and price and _costs(timing, price),
        "chip": dataclasses.asdict(plan.topology.chip),
        "config": schema.to_dict(plan.own.config),
    }


def _estimates(attempt: Attempt, topology: Topology) -> Estimates:
    return estimates(attempt.config, topology, attempt.compiled)


def _bounds_json(timing: Estimates) -> dict[str, Any]:
    parts = {name: dataclasses.asdict(getattr(timing, name)) for name in ("task", "computed", "roofline")}
    totals = {"task_flops": timing.task.total, "computed_flops": timing.computed.total, "binds": timing.roofline.binds}
    return parts | totals | dataclasses.asdict(timing.bound)


def _forecast_json(timing: Estimates) -> dict[str, Any]:
    """Return the forecast of speed with the parts of the step's time, or {"none_because": reason}."""
    if timing.forecast is None or isinstance(timing.parts, str):
        return {"none_because": timing.parts}
    return {"parts": dataclasses.asdict(timing.parts)} | dataclasses.asdict(timing.forecast)


def _costs(timing: Estimates, price: float) -> dict[str, float]:
    """Return the cost of the run, {"bound": dollars, "forecast": dollars}; empty if its length is not known."""
    speeds = {"bound": timing.bound, "forecast": timing.forecast}
    hours = {name: speed.chip_hours for name, speed in speeds.items() if speed}
    return {name: of * price for name, of in hours.items() if of is not None}


def _attempt_json(attempt: Attempt | None) -> dict[str, Any] | None:
    if attempt is None:
        return None
    outcome = dataclasses.asdict(attempt.outcome) | {"needed": needed(attempt.outcome)}
    return {
        "settings": attempt.settings,
        "batch_size": attempt.config.training.batch_size,
        "fits": attempt.fits,
        **outcome,
    }


def _heading(plan: Plan) -> str:
    """Return the lines on config, slice, mesh, batch and versions."""
    topology, config = plan.topology, plan.own.config
    training = config.training
    rows = training.batch_size // training.microbatches // (plan.mesh["data"] * plan.mesh["fsdp"])
    axes = " x ".join(f"{name}={size}" for name, size in plan.mesh.items())
    split = f"in each of {training.microbatches} microbatches" if training.microbatches > 1 else "at once"
    slice_ = (
        f"{_plural(topology.chips, 'chip')}, {_plural(topology.devices, 'device')}, {_plural(topology.hosts, 'host')}"
    )
    sides = "source and as many target " if config.translates else ""
    batch = f"{training.batch_size:,} rows of {config.data.sequence_length} {sides}tokens a step"
    several = f"{topology.slices} slices of " if topology.slices > 1 else ""
    return (
        f"{config.title}, planned for {several}{topology.name} ({topology.accelerator}): {slice_}, mesh {axes}\n"
        f"{batch}, {_plural(rows, 'row')} on a device {split}\n"
        f"compiled with {', '.join(f'{name} {version}' for name, version in plan.versions.items())}"
    )


def _fit(plan: Plan) -> str:
    """Return the lines on whether the config fits, with the suggested change if it does not."""
    attempt, usable = plan.own, plan.topology.chip.per_device().usable_bytes
    if isinstance(attempt.outcome, Compiled):
        return "It fits.\n" + _memory(attempt.outcome, usable)
    lines = [
        f"IT DOES NOT FIT: a device needs {_gib(attempt.outcome.needed)} and has {_gib(attempt.outcome.available)}."
    ]
    if plan.chosen:
        flags = " ".join(map(shlex.quote, schema.flags(plan.chosen.settings)))
        lines += [f"With {flags} it does; everything below is about that.", _memory(plan.chosen.compiled, usable)]
    else:
        lines.append("Neither do microbatches, rematerialisation or split parameters help: take more or larger chips.")
    return "\n".join(lines)


def _memory(step: Compiled, usable: float) -> str:
    memory = step.memory
    parts = (
        ("arguments", memory.arguments),
        ("output", memory.output),
        ("temporary", memory.temporary),
        ("code", memory.code),
    )
    sizes = ", ".join(f"{name} {_gib(size)}" for name, size in parts)
    return f"  memory of a device    {_gib(memory.total)} of {_gib(usable)}: {sizes}"


def _step(attempt: Attempt, topology: Topology, timing: Estimates) -> str:
    """Return the lines on FLOPs, HBM traffic and collective communication of a step on one device."""
    costs = attempt.compiled.costs
    parts = ", ".join(
        f"{name.replace('_', ' ')} {value / topology.devices / 1e12:.3g}"
        for name, value in dataclasses.asdict(timing.computed).items()
        if value
    )
    reported = ", ".join(f"{name} {value:.3g}" for name, value in attempt.compiled.reported.items()) or "nothing"
    lines = [
        "A step, on one device",
        f"  model                 {timing.computed.total / topology.devices / 1e12:.4g} TFLOP ({parts})",
        f"  program               {costs.flops / 1e12:.4g} TFLOP of products, {costs.hbm_bytes / 1e9:.4g} GB of HBM "
        "traffic",
        f"  compiler's own sum    {reported} (it counts the body of a loop once)",
    ]
    for collective in costs.collectives:
        among = "slices" if collective.kind.endswith(BETWEEN_SLICES) else "devices"
        lines.append(
            f"  {collective.kind:<21} {collective.count:,.0f} over {collective.devices} {among}, "
            f"{collective.bytes / 1e6:,.4g} MB, of which a device sends {collective.sent / 1e6:,.4g} MB"
        )
    if costs.unknown_loops:
        lines.append(f"  loops counted once, because their iterations are unknown: {', '.join(costs.unknown_loops)}")
    return "\n".join(lines)


def _limits(attempt: Attempt, topology: Topology, timing: Estimates, price: float | None) -> str:
    """Return the lines on the bounds of step time, speed, and the run's duration and cost."""
    limits = timing.roofline
    lines = [
        "Lower bounds of time, for this program on this slice",
        f"  a step                {limits.seconds * 1e3:.4g} ms or more: products {limits.products * 1e3:.4g}, HBM "
        + f"{limits.memory * 1e3:.4g}, messages {limits.messages * 1e3:.4g}{_network(limits)}; {_BINDS[limits.binds]}",
    ]
    return "\n".join(lines + _speed(timing.bound, attempt, topology, price, at_most=" at most", or_more=" or more"))


def _forecast(attempt: Attempt, topology: Topology, timing: Estimates, price: float | None) -> str:
    """Return the lines on the forecast of step time, speed, and the run's duration and cost."""
    title = "Forecast of time, from the compiler's own estimates (no TPU has confirmed them)"
    if timing.forecast is None or isinstance(timing.parts, str):
        return f"{title}\n  none, because {timing.parts}"
    parts, seconds = timing.parts, timing.forecast.seconds
    lines = [
        title,
        f"  a step                {seconds * 1e3:.4g} ms: operations {parts.operations * 1e3:.4g}, kernels "
        f"{parts.kernels * 1e3:.4g}, messages {parts.messages * 1e3:.4g}{_network(parts)}",
    ]
    if seconds > parts.seconds:
        lines.append("                        less than a lower bound, which is taken instead")
    return "\n".join(lines + _speed(timing.forecast, attempt, topology, price))


def _network(times: Roofline | Forecast) -> str:
    """Return the time of messages between slices in ms as part of a sentence; "" if there are none."""
    return f", between slices {times.network * 1e3:.4g}" if times.network else ""


def _speed(
    speed: Speed, attempt: Attempt, topology: Topology, price: float | None, at_most: str = "", or_more: str = ""
) -> list[str]:
    """Return the lines on the speed of a slice, and on the run's duration and cost."""
    tokens, training = speed.tokens_per_second, attempt.config.training
    lines = [
        f"  speed                 {tokens:,.0f} tokens/s{at_most}, {tokens / topology.chips:,.0f} a chip, "
        f"MFU {speed.mfu:.1%}"
    ]
    if speed.run_seconds is None or speed.chip_hours is None:
        return [
            *lines,
            f"  {training.words:,} words".ljust(24)
            + "unknown time, because the text decides how many steps they take: "
            "`ag-jax prepare` prints it; give --config.training.words=none --config.training.steps=STEPS",
        ]
    branch = f", from {training.branch_from} on" if training.branch_from else ""
    lines.append(
        f"  {training.steps:,} steps".ljust(24)
        + f"{speed.run_seconds / 3600:,.1f} h{or_more}, {speed.chip_hours:,.1f} chip-hours{branch}"
    )
    if price is not None:
        lines.append(f"  cost                  ${speed.chip_hours * price:,.2f}{or_more}, at ${price:,.2f} a chip-hour")
    return lines


def _largest(plan: Plan) -> str:
    """Return the line on the largest batch that fits; an empty text if that was not searched for."""
    if not plan.searched:
        return ""
    if plan.largest is None:
        return "Largest batch: not even one row on a device fits."
    training = plan.largest.config.training
    rows = training.batch_size // training.microbatches // (plan.mesh["data"] * plan.mesh["fsdp"])
    constant = " in all steps" if "training.earlier_batch_sizes" in plan.largest.settings else ""
    return (
        f"Largest batch that was found to fit{constant}, all else as it is: {training.batch_size:,} rows, "
        f"{_plural(rows, 'row')} on a device in a microbatch, {_gib(needed(plan.largest.outcome))}"
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

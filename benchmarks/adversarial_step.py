"""Measure a training step under each attack relative to plain training: time, FLOPs and memory traffic.

    python benchmarks/adversarial_step.py
    python benchmarks/adversarial_step.py --figure=runs/figure4a.png
    python benchmarks/adversarial_step.py --lengths=512 --arms=plain,asa --set=adversarial.asa.dropout=shared

Figure 4 (a) of Wu et al. 2022: the arms of configs/asa/figure4_speed.py take turns in one process (`--rounds` times
`--steps` steps each) on the same batches, so that the times of a ratio were measured in the same minutes on the same
machine. FLOPs of matrix products and bytes are those of the compiled step; the body of a loop counts once per
iteration. Writes benchmarks/results/adversarial_step-DEVICE.json.

On an accelerator the model is BERT-base, as in the paper. On a CPU it has two of the twelve layers, fewer words and
rows; the work per layer and row is the same.
"""

import argparse
from typing import Any

import jax
import record
import turns
from etils import epath
from pretraining_throughput import SHARED, Runner, Variant

from ag_jax.analysis.figures import attacks as attack_figures
from ag_jax.analysis.figures import canvas
from ag_jax.data import pipeline
from ag_jax.planning import costs
from ag_jax.planning.hlo import HloModule
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import config_files, schema

CONFIG = "configs/asa/figure4_speed.py"
ON_CPU = {"model.layers": 2, "model.vocabulary_size": None, "training.batch_size": 4}


def compiled(runner: Runner) -> dict[str, float]:
    """Return the FLOPs of matrix products, the bytes read and written, and the temporary bytes of the compiled step."""
    found = costs.costs(HloModule(runner.program.as_text()), 1)
    memory = runner.program.memory_analysis()
    return {"product_flops": found.flops, "bytes_moved": found.bytes, "temporary_bytes": memory.temp_size_in_bytes}


def of_length(length: int, options: argparse.Namespace, overrides: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Measure every arm at a sequence length; return the figures by arm, with their ratios to the first arm."""
    running = []
    for arm in options.arms.split(","):
        source = f"{CONFIG}:length={length},arm={arm}"
        config = config_files.load(source, overrides).settings
        running.append(Runner(Variant(arm, arm), config, pipeline.prepare(config.data), epath.Path("never_written")))
        print(f"{length} tokens, {arm}: compiled in {running[-1].compile_seconds:.1f} s", flush=True)
    turns.take(running, options.rounds, options.steps)
    figures = {one.name: one.speed() | compiled(one) for one in running}
    base = figures[running[0].name]
    for name, of_arm in figures.items():
        of_arm["ratios"] = {
            "step_time": of_arm["step_seconds_p50"] / base["step_seconds_p50"],
            **{what: of_arm[what] / base[what] for what in ("product_flops", "bytes_moved", "temporary_bytes")},
        }
        shown = ", ".join(f"{what.replace('_', ' ')} {ratio:.2f}" for what, ratio in of_arm["ratios"].items())
        print(
            f"{length:>4} {name:<10} {of_arm['step_seconds_p50']:8.3f} s; over {running[0].name}: {shown}", flush=True
        )
    return figures


def main() -> None:
    """Measure every length, print the figures, save them and draw the figure if asked."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="128,256,512")
    parser.add_argument("--arms", default="plain,asa,freelb_2,freelb_3,smart", help="the first is what ratios are to")
    parser.add_argument("--rounds", type=int, default=3 if on_cpu else 5)
    parser.add_argument("--steps", type=int, default=2 if on_cpu else 10)
    parser.add_argument(
        "--figure", default="", metavar="PNG", help="draw the times against the lengths, as figure 4 (a) does"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="as --config.* of ag-jax"
    )
    options = parser.parse_args()
    overrides = (ON_CPU if on_cpu else {}) | SHARED | {"data.cache_dir": None}
    for item in options.set:
        name, _, text = item.partition("=")
        overrides[name] = schema.from_texts(schema.hint_of(ExperimentConfig, name), [text])
    figures = {int(length): of_length(int(length), options, overrides) for length in options.lengths.split(",")}
    conditions = {"settings": overrides, "turns": turns.described(options.rounds, options.steps)}
    device = jax.devices()[0].device_kind.lower().replace(" ", "_")
    path = record.save(f"adversarial_step-{device}", {**conditions, "lengths": figures})
    print(f"recorded in {path}")
    if options.figure:
        arms = options.arms.split(",")
        ratios = {
            arm: {length: of_arm[arm]["ratios"]["step_time"] for length, of_arm in figures.items()} for arm in arms
        }
        print(f"drawn in {canvas.save(attack_figures.draw_step_times(ratios), options.figure)}")


if __name__ == "__main__":
    main()

"""Measure the memory that guidance adds to a training step, from the compiler's memory analysis.

    python benchmarks/guidance_memory.py

Compiles the training step of RoBERTa-12 (L=512, dropout 0.1) with and without guidance on the available device,
without running it, for each `model.remat`, and saves the temporary memory of both. Writes
benchmarks/results/guidance_memory.json.
"""

import compiling
import record

ROWS, LENGTH, LAYERS = 4, 512, 12


def main() -> None:
    """Compile the steps with and without guidance, print their temporary memory and save it."""
    figures = {"layers": LAYERS, "length": LENGTH, "rows": ROWS}
    for remat in ("none", "dots", "layer"):
        temporary = {}
        for arm, mode in (("plain", "none"), ("ag", "loss")):
            step, arguments = compiling.training_step(
                layers=LAYERS, heads=12, length=LENGTH, rows=ROWS, mode=mode, remat=remat
            )
            temporary[arm] = step.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        figures[f"remat={remat}"] = {
            "plain_temporary_bytes": temporary["plain"],
            "ag_temporary_bytes": temporary["ag"],
            "ag_over_plain": temporary["ag"] / temporary["plain"],
        }
    print(figures)
    record.save("guidance_memory", figures)


if __name__ == "__main__":
    main()

"""What guidance adds to a training step's memory, from the compiler's own account of the step.

    python benchmarks/guidance_memory.py

Compiles the training step of RoBERTa-12 (L=512, dropout 0.1) for MLM and AG on the device at hand, runs neither, and
records the temporary memory of both. Writes benchmarks/results/guidance_memory.json.
"""

import compiling
import record

ROWS, LENGTH, LAYERS = 4, 512, 12


def main() -> None:
    """Compile both steps and record their memory."""
    temporary = {}
    for mode in ("none", "loss"):
        step, arguments = compiling.training_step(layers=LAYERS, heads=12, length=LENGTH, rows=ROWS, mode=mode)
        temporary[mode] = step.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    figures = {
        "layers": LAYERS,
        "length": LENGTH,
        "rows": ROWS,
        "mlm_temporary_bytes": temporary["none"],
        "ag_temporary_bytes": temporary["loss"],
        "ag_over_mlm": temporary["loss"] / temporary["none"],
    }
    print(figures)
    record.save("guidance_memory", figures)


if __name__ == "__main__":
    main()

"""Measure how compile time grows with depth: the training step of RoBERTa-8 and of RoBERTa-16 with guidance.

    python benchmarks/compile_time.py

Both are lowered and compiled `REPEATS` times in turns, without caches; the figures are medians in seconds. Writes
benchmarks/results/compile_time.json.
"""

import statistics
import time

import compiling
import jax
import record

REPEATS, LENGTH, ROWS = 3, 128, 8


def main() -> None:
    """Compile both models, print the times and save them."""
    sizes = {"RoBERTa-8": (8, 12), "RoBERTa-16": (16, 16)}
    seconds = {name: [] for name in sizes}
    for _ in range(REPEATS):
        for name, (layers, heads) in sizes.items():
            jax.clear_caches()
            step, arguments = compiling.training_step(layers=layers, heads=heads, length=LENGTH, rows=ROWS, mode="loss")
            began = time.perf_counter()
            step.lower(*arguments).compile()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    figures = {
        "length": LENGTH,
        "rows": ROWS,
        "seconds": seconds,
        "median_seconds": medians,
        "roberta_16_over_8": medians["RoBERTa-16"] / medians["RoBERTa-8"],
    }
    print(figures)
    record.save("compile_time", figures)


if __name__ == "__main__":
    main()

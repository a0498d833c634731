"""Search learning rate and warm-up of the quickstart in both arms, and train its deeper models.

The quickstart's arms (Deshpande & Narasimhan 2020, figure 3 and table 3, at a tenth of the size) have the settings that
are best without guidance.

    ag-jax search --config=quickstart_search --workdir=runs/quickstart_search

The arms are plain, without guidance, and ag, with guidance: both with three learning rates, each without warm-up and
with one over a fifth of the run (6 points an arm). The arms plain_deep and ag_deep have the quickstart's settings and
12 and 16 layers.

Hardware and time: 16 runs of 3 to 8 minutes on 2 CPU cores. The same command resumes a search that was stopped.

Expected: validation loss 6.21 (plain) and 4.97 (ag) with learning rate 2e-3 and 220 steps of warm-up. The record
(benchmarks/results/quickstart_search.json) has the 12 points with 8 layers, made by an earlier script. Deeper models
are recorded in benchmarks/results/guidance_depth.jsonl: means over three seeds of 6.23 and 5.06 with 12 layers, 6.27
and 5.23 with 16.

Deviations: the learning rates are ten to forty times those of the paper (section 4.5), because the width is only 96.
"""

from ag_jax.settings import config_files
from ag_jax.settings.config_files import OneOf


def get_config(*, arm: OneOf("ag", "plain", "plain_deep", "ag_deep") = "ag"):
    """Return the config.

    arm: `plain` without guidance or `ag` with guidance, each with the quickstart's 8 layers, or deeper: `plain_deep`,
        `ag_deep`.
    """
    name, _, deep = arm.partition("_")
    config = config_files.read(f"quickstart:arm={name}")
    if deep:
        config.model.layers = 12
    warmups = (0, config.training.get_ref("steps") // 5)
    grid = {"optimizer": {"learning_rate": (1e-3, 2e-3, 4e-3), "warmup_steps": warmups}}
    depths = {"model": {"layers": (12, 16)}}
    config.title = "Learning rate, warm-up and depth of the quickstart"
    config.search.grids = {"plain": grid, "ag": grid, "plain_deep": depths, "ag_deep": depths}
    config.comparison.arms = "plain,ag,plain_deep,ag_deep"
    return config

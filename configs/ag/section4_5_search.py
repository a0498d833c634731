"""Search the hyperparameters of pre-training with and without attention guidance (table 11, section 4.5).

Deshpande & Narasimhan 2020: section 4.5 has the grids, table 11 the settings that were chosen. Without guidance
(plain): learning rate, attention dropout and warm-up, 18 points. With guidance (ag_strength): lambda, the share of
guided heads, and alpha_0, 12 points, with the learning rate 1e-4 and without warm-up.

    ag-jax search --config=ag/section4_5_search:language=filipino,layers=12 --workdir=SEARCH
    ag-jax search --config=ag/section4_5_search:scale=small --workdir=runs/section4_5
    ag-jax train --config=ag/table3_language_modeling:language=filipino,layers=12,arm=ag,best=SEARCH --workdir=DIR

The last command trains the best point in the place of table 11. Machines that run the same command with one --workdir
share the points, and `--config.search.rungs=0.1,0.3` stops the worse half of the points after a tenth of the run.

scale=small searches the quickstart's settings: the 18 points without guidance, the same 18 with it (ag: lambda 1/2,
alpha_0 1), and 12 points of lambda and alpha_0. The paper says that guidance is robust to hyperparameters: the report
counts the points of both arms that leave the plateau, with McNemar's test over the 18 pairs.

Hardware and time: at scale=paper, 30 runs of table 3 (24 for Oromo with 8 and 12 layers). scale=small: 48 runs of 5 to
6 minutes on an idle CPU core, with two processes on two cores about 2.5 hours.

Expected: the settings of table 11. At scale=small (benchmarks/results/section4_5_search_small.json, one seed), 12 of
the 18 points with guidance leave the plateau, 8 without it, and 4 with guidance alone (p = 0.12). The best validation
losses are 4.88 (ag: 2e-3, 33 steps of warm-up, no dropout), 6.21 (plain: 2e-3, 220 steps, no dropout) and 5.11
(ag_strength: lambda 1/2, alpha_0 1).

Deviations: the paper does not say by what it chose; here it is the validation loss. A warm-up of 10,000 steps is left
out where a run is shorter (Oromo, 8 and 12 layers). At scale=small, learning rates and warm-ups are those at which a
run of 1,100 steps and width 96 learns, and alpha_0, the coefficient of guidance at the first step, is 0.1, 1 or 10,
about an eighth of the paper's values, because the guidance loss is about eight times as large in sequences of 64 tokens
as in 512.
"""

from ag_jax.settings import config_files
from ag_jax.settings.config_files import OneOf, Scale

LEARNING_RATES, DROPOUTS, WARMUPS = (1e-5, 5e-5, 1e-4), (0.0, 0.1), (0, 1_000, 10_000)
FRACTIONS, ALPHAS = (0.25, 0.5, 0.75, 1.0), (1.0, 10.0, 100.0)


def get_config(
    *,
    language: OneOf("english", "filipino", "oromo") = "english",
    layers: OneOf(8, 12, 16) = 8,
    arm: OneOf("ag", "plain", "ag_strength") = "ag",
    scale: Scale = "paper",
):
    """Return the config.

    language: language of the text, at scale=paper.
    layers: number of layers of the model.
    arm: `plain` without guidance, `ag` with guidance, `ag_strength` with the lowest lambda and alpha_0 of their grid.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    small, base = scale == "small", arm.partition("_")[0]
    table3 = f"ag/table3_language_modeling:language={language},layers={layers},arm={base}"
    config = config_files.read(f"quickstart:arm={base}" if small else table3)
    if small:
        config.model.layers = layers
    steps = config.training.get_ref("steps")
    rates = (2e-4, 1e-3, 2e-3) if small else LEARNING_RATES
    warmups = (0, steps * 3 // 100, steps // 5) if small else tuple(filter(steps.get().__gt__, WARMUPS))
    alphas = tuple(alpha / 10 for alpha in ALPHAS) if small else ALPHAS
    grid = {
        "model": {"attention_dropout": DROPOUTS},
        "optimizer": {"learning_rate": rates, "warmup_steps": warmups},
    }
    strength = {
        "guidance": {"fraction": FRACTIONS, "alpha": alphas},
        "optimizer": {"learning_rate": rates[-1:], "warmup_steps": (0,)},
    }
    if arm == "ag_strength":
        config.guidance.update(fraction=FRACTIONS[0], alpha=alphas[0])
    config.title = f"Hyperparameters of pre-training ({'small' if small else language}, {layers} layers)"
    config.search.grids = {"plain": grid, **({"ag": grid} if small else {}), "ag_strength": strength}
    config.comparison.arms = "plain,ag,ag_strength"
    return config

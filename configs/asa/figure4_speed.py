"""Measure the time of a training step under each attack at 128, 256 and 512 tokens (figure 4a).

Wu et al. 2022 (Adversarial Self-Attention for Language Understanding), figure 4 (a).

    ag-jax compare --config=configs/asa/figure4_speed.py:length=128 --workdir=runs/speed/128
    ag-jax compare --config=configs/asa/figure4_speed.py:length=512 --workdir=runs/speed/512
    ag-jax compare --config=configs/asa/figure4_speed.py:length=128,scale=small --workdir=runs/speed/small

The report of each comparison has the tokens a second of every arm.
`python benchmarks/adversarial_step.py --figure=PNG` measures the arms in turns and draws the figure.

Hardware and time: the paper does not name its GPU. 40 steps of 16 rows, five arms: minutes on an accelerator.
scale=small takes minutes on 2 CPU cores.

Expected (time of a step over that of plain training, 512 tokens): ASA about 2, slightly below FreeLB-2; FreeLB-3 and
SMART three to four. With two of the twelve layers on a CPU we measured 2.01 for ASA, 1.96 for FreeLB-2, 2.89 and 2.62
(docs/adversarial.md). Nobody has run scale=paper with this program yet.

Deviations: the paper times fine-tuning. Here it is pre-training, which needs no checkpoint and no files and has rows
without padding: BERT-base, randomly initialised, with 16 rows in float32 as in the paper. The
masked-language-modelling head adds a few per cent to every pass, and ASA has its sentence-level term. scale=small is 2
layers of 128 features.
"""

from ag_jax import config_reader
from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining

ARMS = ("plain", "asa", "freelb_2", "freelb_3", "smart")


def get_config(argument: str = ""):
    """Return the config for the arguments in `argument`, such as `name=value,name=value`.

    length: number of tokens of a row.
    arm: the arm to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    chosen = config_reader.arguments(argument, length=(128, 256, 512), arm=ARMS, scale=("paper", "small"))
    config = pretraining_config.default_config()
    config.title = f"Speed of attacks, rows of {chosen.length} tokens"
    pretraining.encoder(config, "bert")
    config.data.update(source="sotu", format="fixed_blocks", sequence_length=chosen.length, validation_fraction=0.05)
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=4096)
    config.model.update(vocabulary_size=30_522, remat="none")
    config.training.update(
        steps=40, batch_size=16, log_every=5, evaluate_every=None, milestones=(1.0,), tensorboard=False
    )
    if chosen.scale == "small":
        config.model.update(layers=2, heads=2, width=128, vocabulary_size=None)
        config.training.steps = 20
    method, _, steps = chosen.arm.partition("_")
    config.adversarial.method = "none" if method == "plain" else method
    if steps:
        config.adversarial.freelb.steps = int(steps)
    config.comparison.arms = ",".join(ARMS)
    return config

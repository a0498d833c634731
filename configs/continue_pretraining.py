"""Continue pre-training an existing model on custom text, with or without attention guidance.

Guidance as in Deshpande & Narasimhan 2020; schedule after Gururangan et al. 2020 (Don't Stop Pretraining, appendix B).

    ag-jax import --from=FacebookAI/roberta-base --workdir=runs/roberta-base
    ag-jax train --config=continue_pretraining:run=runs/roberta-base,arm=ag \
--config.data.source=my_texts/ --workdir=runs/mine
    ag-jax export --workdir=runs/mine --to=models/mine

`run` is any run directory. Its weights, encoder, tokenizer and kind of pre-training (masked words or replaced tokens)
are used.

Hardware and time: these depend on the model. RoBERTa-base needs an accelerator.

Expected: no published result, because the papers train from scratch. Compare the arms on your own text.

Deviations: training takes 12,500 steps of 256 sequences, whereas Gururangan et al. use 2,048 sequences. alpha_0 is 10
at 512 tokens, as in table 11 of Deshpande & Narasimhan, and proportionally less for shorter sequences, because the
guidance loss is a mean over n x n that shrinks as 1/n.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf


def get_config(*, run: str, arm: OneOf("ag", "plain") = "ag"):
    """Return the config.

    run: directory of the run whose model, tokenizer and weights are continued from.
    arm: `plain` without guidance, `ag` with guidance; a run that detects replaced tokens continues to do so.
    """
    config = pretraining_config.default_config()
    pretraining.continue_from(config, run)
    config.title = "Continued pre-training, with and without attention guidance"
    config.training.update(steps=12_500, batch_size=256, evaluate_every=2_500)
    config.optimizer.update(learning_rate=1e-4, warmup_steps=750, weight_decay=0.01, beta2=0.98, epsilon=1e-6)
    if arm == "ag":
        length = config.data.get_ref("sequence_length").to_float()
        config.guidance.update(mode="loss", fraction=0.5, alpha=length * 10 / 512)
    config.comparison.arms = "plain,ag"
    return config

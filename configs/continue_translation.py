"""Continue to train an existing translation model on custom pairs of texts, with or without attention guidance.

Guidance as in Deshpande & Narasimhan 2020, section 5.5. The model is any run that translates, such as an imported
MarianMT (Junczys-Dowmunt et al. 2018), of which OPUS-MT has more than a thousand (Tiedemann & Thottingal 2020).

    ag-jax import --from=Helsinki-NLP/opus-mt-en-de --workdir=runs/opus
    ag-jax train --config=continue_translation:run=runs/opus,arm=ag,source=train.en,target=train.de --workdir=runs/mine
    ag-jax export --workdir=runs/mine --to=models/mine

`run` is any run directory of a translation model. Its weights, tokenizer, model and settings of decoding are used.

Hardware and time: these depend on the model. A base model of Marian (74 million parameters) needs an accelerator.

Expected: no published result. Compare the arms on your own text.

Deviations: the paper trains from scratch. Here 10,000 steps of 32 rows start from a trained model, with a tenth of its
usual learning rate. alpha is 1, as in ag/table7_translation.
"""

from ag_jax.recipes import translation
from ag_jax.settings.config_files import OneOf


def get_config(*, run: str, source: str, target: str, arm: OneOf("ag", "base") = "ag", alpha: int = 1):
    """Return the config.

    run: directory of the run whose model, tokenizer and weights are continued from.
    source: file with the texts to translate, a line each.
    target: file with their translations, line by line.
    arm: `base` without guidance, `ag` with guidance.
    alpha: coefficient of the guidance at the first step.
    """
    config = translation.default("Continued training of a translation model")
    translation.continue_from(config, run)
    config.data.update(source=source, target=target)
    config.optimizer.update(
        learning_rate=3e-5, warmup_steps=1_000, decay="inverse_sqrt", beta1=0.9, beta2=0.98, epsilon=1e-9, clip_norm=1.0
    )
    config.training.update(steps=10_000, batch_size=32, evaluate_every=1_000, checkpoint_every=1_000)
    if arm == "ag":
        translation.guided(config, alpha=float(alpha))
    config.comparison.arms = "base,ag"
    return config

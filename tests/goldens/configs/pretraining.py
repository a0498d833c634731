"""The pre-training runs of the goldens: one layer, width 12, 300 tokenizer pieces, a few steps."""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.settings.config_files import OneOf


def get_config(*, arm: OneOf("ag", "plain", "asa") = "ag"):
    """`arm`: plain, ag (guided) or asa (with an adversary)."""
    config = pretraining_config.default_config()
    config.title = "Goldens"
    config.seed = 3
    # Held-out text of its own: the rows do not depend on how documents are held out.
    config.data.update(source="text/train.txt", validation_source="text/validation.txt", sequence_length=16)
    config.data.tokenizer.vocabulary_size = 300
    config.model.update(layers=1, heads=3, width=12, feedforward=22, max_length=16, initializer_range=0.3)
    config.optimizer.update(learning_rate=5e-3, warmup_steps=2)
    config.training.update(
        steps=9,
        batch_size=4,
        log_every=2,
        evaluate_every=4,
        checkpoint_every=100,
        keep_last=1,
        milestones=(1.0,),
        tensorboard=False,
    )
    if arm == "ag":
        config.guidance.update(mode="loss", fraction=1.0, alpha=1.0)
    if arm == "asa":
        config.adversarial.method = "asa"
    config.comparison.update(arms="plain,ag", seeds=(3,))
    config.inspection.sentence = "The union is strong."
    return config

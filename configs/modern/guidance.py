"""Pre-train with and without attention guidance in modern encoders: rotary positions, pre-norm, Muon.

Does guidance (Deshpande & Narasimhan 2020) still help with the positions, norms and optimizers of today? Rotary
positions (Su et al. 2021) make neighbours easy to find, LayerNorm before attention and feed-forward (pre-norm, Xiong et
al. 2020) and Muon (Jordan et al. 2024) make deep models easier to train. Each can be chosen by itself. The arms are the
encoder without guidance (none), with half the heads of each layer guided by Next, Prev and First (all), and with one
head of each layer guided by one of them alone (next, prev, first).

    ag-jax compare --config=modern/guidance:positions=rotary,scale=small --workdir=DIR
    ag-jax compare --config=modern/guidance:positions=rotary,norm=pre,optimizer=muon,scale=small \
--config.comparison.arms=none,all --workdir=DIR

`python benchmarks/guidance_evidence.py` trains all combinations with three seeds and records them.

Hardware and time: scale=small takes 4 to 8 minutes for each arm on 2 CPU cores. scale=paper has the text and the steps
of ag/table3_language_modeling (4 days on 8 P40 GPUs for two arms in the paper).

Expected: see docs/reproduction_guidance_modern.md. scale=paper has not been run with this program yet.

Deviations: no paper has this experiment. scale=small is the quickstart: its text, model, steps and warm-up. The
learning rates were chosen among 1e-3, 2e-3 and 4e-3 for each norm and optimizer, with learned positions and without
guidance, seed 0; all arms have the same one. scale=paper is the RoBERTa-12 of Deshpande & Narasimhan 2020, all arms
with the learning rate of their guided arm and the warm-up of the arm without guidance. With rotary positions there are
no position embeddings. Pre-norm has one more LayerNorm, after the last layer. Everything else is equal.
"""

from ag_jax.settings import config_files
from ag_jax.settings.config_files import OneOf, Scale

ARMS = ("none", "all", "next", "prev", "first")
LEARNING_RATES = {  # with scale=small
    ("post", "adamw"): 2e-3,
    ("post", "muon"): 2e-3,
    ("pre", "adamw"): 2e-3,
    ("pre", "muon"): 2e-3,
}


def get_config(
    *,
    positions: OneOf("learned", "rotary") = "learned",
    norm: OneOf("post", "pre") = "post",
    optimizer: OneOf("adamw", "muon") = "adamw",
    arm: OneOf(*ARMS) = ARMS[0],
    scale: Scale = "paper",
):
    """Return the config.

    positions: `learned` position embeddings or `rotary` positions.
    norm: LayerNorm after each residual sum (`post`) or before attention and feed-forward (`pre`).
    optimizer: `adamw` or `muon`.
    arm: patterns that heads are guided by; `ag-jax compare` trains all arms.
    scale: `paper` for the size of Deshpande & Narasimhan 2020, or `small` for 2 CPU cores.
    """
    guided = config_files.read("ag/table3_language_modeling:arm=ag")
    config = config_files.read("ag/table3_language_modeling:arm=plain")
    alpha, learning_rate = guided.guidance.alpha, guided.optimizer.learning_rate
    if scale == "small":
        config = config_files.read("quickstart:arm=plain")
        alpha, learning_rate = 1.0, LEARNING_RATES[norm, optimizer]
    config.title = f"Attention guidance with {positions} positions, {norm}-norm and {optimizer}"
    config.model.update(positions=positions, norm_position=norm)
    config.optimizer.update(kind=optimizer, learning_rate=learning_rate)
    if arm != "none":
        heads = None if arm == "all" else f"{arm}:1"
        config.guidance.update(mode="loss", fraction=0.5, alpha=alpha, heads=heads)
    config.comparison.arms = ",".join(ARMS)
    return config

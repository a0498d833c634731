"""Replaced-token detection with and without attention guidance: ELECTRA-12, its generator a unigram language model.

Deshpande & Narasimhan 2020, table 6 (section 5.4) and figure 6 (appendix A.5); the task is that of Clark et al. 2020.

    ag-jax compare --config=configs/ag/table6_electra.py --config.data.source=BOOKS --workdir=DIR
    ag-jax compare --config=configs/ag/table6_electra.py:scale=small --workdir=DIR
    ag-jax train   --config=configs/ag/table6_electra.py:generator=mlm,arm=ag,scale=small --workdir=DIR

`generator=mlm` trains ELECTRA's own small generator beside it, a quarter as wide, with the weight 50 on the detection.

Hardware and time: the paper does not say for these runs; its others had 8 P40 GPUs. scale=small is meant for a CPU and has not
been timed on an idle one yet.

Expected (scale=paper, train loss of the detection, electra/ag): final 0.27/0.10, average 0.32/0.15; guessing from a token
alone gives nearly 0.42. Nobody has run scale=paper with this program yet. scale=small is too short to show the difference: in the
one trial (ag, 600 steps, a vocabulary of 512) the guided heads follow their patterns from step 180 on, and the detection's loss
still stands on its plateau, 0.408. Give it more --config.training.steps.

Deviations: the paper gives neither text nor settings. BooksCorpus is not public: give the files with
--config.data.source=PATH; its 985M words are taken for as many tokens. Learning rate, warm-up, batch and alpha are those of
RoBERTa-12 (table 11), as section 5.4 speaks of no tuning for ELECTRA; blocks of 512 tokens across documents as in the released
code, BERT's segment and position embeddings. ELECTRA's own recipe differs: Adam without bias correction, a decay that begins
with the warm-up, and positions chosen with replacement; here they are chosen without.
"""

from ag_jax import configuration, experiment, presets

BOOKS_CORPUS = 985e6  # words (Zhu et al. 2015, table 2)


def get_config(argument: str = ""):
    """`arm`: ag or electra; `generator`: unigram or mlm; `scale`: paper or small."""
    chosen = configuration.arguments(
        argument, arm=("ag", "electra"), generator=("unigram", "mlm"), scale=("paper", "small")
    )
    config = experiment.default_config()
    config.title = "Replaced-token detection (ELECTRA-12)"
    presets.attention_guidance_code(config)
    presets.table_11(config, "english", 12, "ag" if chosen.arm == "ag" else "mlm")
    config.data.source = "data/books/*.txt"
    config.data.tokenizer.update(kind="wordpiece", vocabulary_size=30_522, lowercase=True)
    config.data.masking.count = "fixed"
    config.model.update(segments=2, position_offset=0, layer_norm_epsilon=1e-12, dtype="bfloat16")
    config.replaced_tokens.generator = chosen.generator
    if chosen.generator == "unigram":
        config.data.masking.replacement = "unigram"
    else:
        config.data.masking.update(mask_fraction=0.85, random_fraction=0.0)
    presets.epochs(config, BOOKS_CORPUS, 2)
    if chosen.scale == "small":
        config.data.tokenizer.lowercase = False
        presets.small(config, steps=1200)
        config.title = "Replaced-token detection (a small ELECTRA)"
        config.data.tokenizer.vocabulary_size = 2048
        config.model.update(layers=6, heads=6)
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = 0 if chosen.arm == "ag" else config.training.steps // 5
        config.guidance.alpha = 1.0
    config.comparison.arms = "electra,ag"
    return config

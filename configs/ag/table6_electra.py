"""Replaced-token detection with and without attention guidance: ELECTRA-12, its generator a unigram language model.

Deshpande & Narasimhan 2020, table 6 (section 5.4) and figure 6; the task is that of Clark et al. 2020.

    ag-jax compare --config=configs/ag/table6_electra.py --config.data.source=BOOKS --workdir=DIR
    ag-jax compare --config=configs/ag/table6_electra.py:scale=small --workdir=DIR
    ag-jax train   --config=configs/ag/table6_electra.py:generator=mlm,arm=ag,scale=small --workdir=DIR

Hardware and time: TODO

Expected TODO

Deviations: TODO
"""

from ag_jax import experiment, presets

BOOKS_CORPUS = 985e6  # words (Devlin et al. 2019, section 3.1), here taken for tokens


def get_config(argument: str = ""):
    """`arm`: ag or electra; `generator`: unigram or mlm; `scale`: paper or small."""
    chosen = experiment.arguments(
        argument, arm=("ag", "electra"), generator=("unigram", "mlm"), scale=("paper", "small")
    )
    config = experiment.default_config()
    config.title = "Replaced-token detection (ELECTRA-12)"
    presets.attention_guidance_code(config)
    presets.table_11(config, "english", 12, "ag" if chosen.arm == "ag" else "mlm")
    config.data.source = "data/books/*.txt"
    config.data.tokenizer.update(kind="wordpiece", vocabulary_size=30_522)
    config.data.masking.count = "fixed"
    config.model.update(segments=2, position_offset=0, layer_norm_epsilon=1e-12, dtype="bfloat16")
    config.replaced_tokens.generator = chosen.generator
    if chosen.generator == "unigram":
        config.data.masking.replacement = "unigram"
    else:
        config.data.masking.update(mask_fraction=0.85, random_fraction=0.0)
    presets.epochs(config, BOOKS_CORPUS, 2)
    if chosen.scale == "small":
        presets.small(config)
    else:
        config.data.tokenizer.lowercase = True
    config.comparison.arms = "electra,ag"
    return config

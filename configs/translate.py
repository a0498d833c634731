"""Train a Transformer to translate custom pairs of texts, with plain, hard-coded or guided attention.

Arms as in table 7 of Deshpande & Narasimhan 2020: plain attention (base), hard-coded Gaussian self-attention
(hard_coded, You et al. 2020), and an encoder with one head guided to the next token and one to the previous token in
every layer (ag). With word alignments, two further arms guide a head of the attention to the source in every layer of
the decoder towards the aligned source word (alignment, ag_alignment).

    ag-jax train --config=translate:source=train.en,target=train.de --workdir=runs/mine
    ag-jax translate --workdir=runs/mine --input=new.en --output=new.de
    ag-jax compare --config=translate:source=train.en,target=train.de,test_source=test.en,test_target=test.de \
--workdir=runs/compared

Line n of the target translates line n of the source. Files may be compressed (.gz). A .tsv or .jsonl file that holds
both sides needs no target: --config=translate:source=pairs.tsv. docs/translation.md explains the files, what is left
out, and how to translate and score.

Sizes, each with the settings of a published recipe:

    tiny    4 + 4 layers, width 128, feed-forward 256, 8,000 pieces; Multi30k in Wu et al. 2021
    small   6 + 6 layers, width 512, feed-forward 1,024, 10,000 pieces; IWSLT14 in fairseq
    base    6 + 6 layers, width 512, feed-forward 2,048, 32,000 pieces; WMT14 in Vaswani et al. 2017

By default, the size is tiny below 50,000 training pairs, small below 500,000, and base from there on. A run makes as
many passes over the pairs as the recipe does over its corpus: about 140 (tiny), 50 (small), 20 (base), but never fewer
than 1,000 or more than 8,000, 50,000 or 100,000 steps. `steps=500` is for a first try: it runs through everything, but
is too short to learn a language.

Change first: `steps` if the validation NLL still falls or has begun to rise, then `size`,
`--config.optimizer.learning_rate` and `--config.model.dropout`. `alpha` is the strength of the guidance.

Hardware and time: tiny takes two to three hours for 29,000 pairs on two CPU cores. It is an estimate from 1.8 seconds
of CPU time for a step of 64 rows of 128 tokens, of which there are 8,000. With 10,000 pairs it takes a third of that.
small and base need an accelerator.

Expected: depends on the pairs. Published BLEU of the recipes, each with tokenised text: 41.0 on Multi30k en-de
(test2016, lowercased), 34.5 on IWSLT14 de-en (lowercased), 27.3 on WMT14 en-de. This config has not
repeated them: it has been tried for some steps only. On pairs without a published result, compare the arms.

Deviations: unlike in the recipes, texts are used as they are, neither tokenised nor lowercased, the joint tokenizer is
byte-level BPE, and there is no early stopping. Where the warm-up of the learning rate is shorter than in the recipe,
its peak is lower.
"""

from ag_jax.recipes import translation
from ag_jax.settings.config_files import OneOf


def get_config(
    *,
    source: str,
    target: str = "",
    source_field: str = "source",
    target_field: str = "target",
    skip_null: bool = False,
    validation_source: str = "",
    validation_target: str = "",
    test_source: str = "",
    test_target: str = "",
    alignments: str = "",
    validation_alignments: str = "",
    arm: OneOf(*translation.ARMS, *translation.ALIGNED_ARMS) = "base",
    size: OneOf("auto", *translation.SIZES) = "auto",
    steps: int = 0,
    alpha: int = 1,
    seeds: int = 1,
):
    """Return the config.

    source: texts to translate from: files or globs with a text in each line, also compressed (.gz); without `target`,
        .tsv or .jsonl files whose records have both sides.
    target: their translations: as many files, with as many lines.
    source_field: key or column of the texts, in files whose records have both sides.
    target_field: key or column of their translations, in the same files.
    skip_null: leave records out of which a side is null or missing.
    validation_source: texts for validation; without them, a share of the training pairs is held out.
    validation_target: their translations.
    test_source: texts whose translations `ag-jax evaluate` and `compare` score.
    test_target: their translations, the references.
    alignments: word alignments of the training pairs, a line for each, such as `0-0 1-2` (Pharaoh format); for the arms
        alignment and ag_alignment.
    validation_alignments: those of `validation_source`.
    arm: variant to train; `ag-jax compare` trains base, hard_coded and ag or, with `alignments`, base, ag, alignment
        and ag_alignment.
    size: size of the model and of its training; `auto` chooses by the number of training pairs.
    steps: number of updates; 0 takes that of the size, for so many pairs.
    alpha: coefficient of the guidance at the first step.
    seeds: number of seeds of `ag-jax compare`.
    """
    config = translation.default(f"Translation of {source}")
    pair_count = translation.custom_pairs(
        config,
        train=(source, target),
        validation=(validation_source, validation_target),
        test=(test_source, test_target),
        fields={"source_field": source_field, "target_field": target_field, "skip_null": skip_null},
    )
    size = translation.size_for(pair_count) if size == "auto" else size
    translation.custom_size(config, size, pair_count, steps or None)
    translation.arms(config, arm, float(alpha), alignments, validation_alignments)
    config.comparison.seeds = tuple(range(seeds))
    return config

"""Impossible settings are refused, with the setting; ranges of single settings are the reader's."""

import pytest

from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.parallel import layouts, pairs
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.probing.config import AblationConfig, MinimalPairsConfig, ProbeConfig


def parallel(**changes) -> DataConfig:
    return DataConfig(**{"format": "parallel", "source": "a.en", "target": "a.de"} | changes)


@pytest.mark.parametrize(
    ("make", "settings", "named"),
    [
        (TokenizerConfig, {"vocabulary_size": 260}, "261"),
        (TokenizerConfig, {"lowercase": True}, "lowercase"),
        (MaskingConfig, {"mask_fraction": 0.95}, "mask_fraction"),
        (MaskingConfig, {"replacement": "unigram", "mask_fraction": 0.85}, "mask_fraction"),
        (MaskingConfig, {"longest_span": 2, "count": "bernoulli"}, "longest_span"),
        (MaskingConfig, {"earlier_rates": (0.3, 0.2), "earlier_rates_until": (5,)}, "earlier_rates"),
        (MaskingConfig, {"earlier_rates": (0.3, 0.2), "earlier_rates_until": (5, 5)}, "earlier_rates"),
        (DataConfig, {"pack": True, "format": "sentence_pair_nsp"}, "pack"),
        (DataConfig, {"duplicates": 2}, "duplicates"),
        (DataConfig, {"target": "a.de"}, "data.target"),
        (DataConfig, {"format": "parallel"}, "sotu"),
        (parallel, {"source": "tfds:wmt14"}, "data.source"),
        (parallel, {"source": "babylm:x"}, "data.source"),
        (parallel, {"target": "gs://bucket/a.de"}, "data.target"),
        (parallel, {"target": ""}, "data.target"),
        (parallel, {"validation_source": ""}, "data.validation_source"),
        (parallel, {"validation_target": "v.de"}, "data.validation_source"),
        (DataConfig, {"alignments": "a.links"}, "data.alignments"),
        (parallel, {"alignments": "a.links", "validation_source": "v.tsv"}, "data.validation_alignments"),
        (parallel, {"validation_source": "v.tsv", "validation_alignments": "v.links"}, "data.alignments"),
        (parallel, {"alignments": "a.links", "validation_alignments": "v.links"}, "data.validation_source"),
        (parallel, {"alignments": "s3://b/a.links"}, "data.alignments"),
        (parallel, {"alignments": "a.links", "sequence_length": 2**15 + 1}, "data.sequence_length"),
        (parallel, {"text_field": "body"}, "data.text_field"),
        (parallel, {"pointers": ("head",)}, "data.pointers"),
        *((DataConfig, {"pointers": names}, "data.pointers") for names in (("head", "head"), ("a.b",), ("",))),
        (parallel, {"target": None, "target_field": ""}, "target_field"),
        (parallel, {"target": None, "target_field": "source"}, "target_field"),
        (parallel, {"source_field": "en"}, "source_field"),
        (parallel, {"max_tokens": 65, "sequence_length": 64}, "sequence_length"),
    ],
)
def test_impossible_settings_are_refused(make, settings, named):
    with pytest.raises(ValueError, match=named):
        make(**settings)


def test_settings_at_the_borders_of_what_is_allowed():
    assert MaskingConfig(mask_fraction=0.9, random_fraction=0.1).random_fraction == 0.1  # 1 in floating point, about
    assert TokenizerConfig(vocabulary_size=261).kind == "byte_bpe"
    assert TokenizerConfig(kind="wordpiece", vocabulary_size=6, lowercase=True).lowercase
    assert parallel(pack=True, max_tokens=64, sequence_length=64, max_words_ratio=1.0).is_parallel
    assert parallel(validation_source="v.en", validation_target="v.de").is_parallel
    assert parallel(validation_source="v.tsv", source_field="en", target_field="de").validation_target is None
    assert parallel(target=None, source="a.tsv", source_field="en").target is None
    assert not DataConfig(format="segment_pair_nsp", duplicates=2).is_parallel
    assert MaskingConfig() == MaskingConfig(rate=0.15, mask_fraction=0.8, random_fraction=0.1, count="fixed")
    masking = MaskingConfig(rate=0.1, earlier_rates=(0.3, 0.2), earlier_rates_until=(2, 3), evaluation_rate=0.4)
    assert masking.highest_rate == 0.3 and MaskingConfig(rate=0.4, count="bernoulli").highest_rate == 0.4
    assert masking.for_evaluation == MaskingConfig(rate=0.4) and MaskingConfig().for_evaluation == MaskingConfig()


def test_files_that_must_be_on_a_disk():
    url = "gs://bucket/files"
    for setting, use in (
        ("data=", lambda: FinetuningConfig(checkpoint="run", tasks={"sst2": Recipe()}, data=url)),
        ("custom.test", lambda: CustomTask(kind="classification", train="train.tsv", test=url)),
        ("data=", lambda: ProbeConfig(kind="coreference", data=url)),
        ("ablation.data", lambda: AblationConfig(data=url)),
        ("minimal_pairs.data", lambda: MinimalPairsConfig(data=url)),
        ("data=", lambda: layouts.find("multi30k", url, "en", "de")),
        ("data.target", lambda: next(iter(pairs.PairFiles(__file__, url)))),
    ):
        with pytest.raises(ValueError, match=f"^{setting}.*{url}"):
            use()

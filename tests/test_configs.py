"""Every config file: its docstring is complete, every variant parses, and each variant takes a training step."""

import dataclasses
import functools
import gzip
import importlib.util
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.data import pipeline
from ag_jax.data.parallel import pairs, toys
from ag_jax.models.encoder import Encoder
from ag_jax.pretraining import build, comparison, run
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.search import points
from ag_jax.recipes import babylm, pretraining, translation
from tests.cases import some
from tests.data.parallel import test_layouts as layouts
from tests.finetuning import test_configs as finetuning
from tests.finetuning import tiny_tasks

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
# Need a run to go on with: tests/interop/test_initial_weights.py, and below.
CONTINUED = {"continue_pretraining.py", "continue_translation.py", "asa/table6_pretraining.py"}
ALL = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.py"))
PROBES = {"probe.py", "ag/table8_probes.py"}  # tests/probing reads them
FILES = sorted(set(ALL) - CONTINUED - PROBES - set(finetuning.ARGUMENTS))
TRANSLATION, CUSTOM = "ag/table7_translation.py", "translate.py"
ARGUMENTS = {
    "quickstart.py": {"arm": ("mlm", "ag")},
    "quickstart_search.py": {"arm": ("mlm", "ag", "mlm_deep", "ag_deep")},
    "ag/section4_5_search.py": {
        "language": ("english", "filipino", "oromo"),
        "layers": (8, 12, 16),
        "arm": ("mlm", "ag", "ag_strength"),
        "scale": ("paper", "small"),
    },
    "ag/table3_language_modeling.py": {
        "language": ("english", "filipino", "oromo"),
        "layers": (8, 12, 16),
        "arm": ("mlm", "ag"),
        "scale": ("paper", "small"),
    },
    "ag/table5_pattern_ablation.py": {
        "arm": ("all", "no_next_prev", "no_first", "no_period", "no_delim"),
        "scale": ("paper", "small"),
    },
    "ag/table9_tpu_gpu.py": {"hardware": ("tpu", "gpu"), "arm": ("mlm", "ag"), "scale": ("paper", "small")},
    "ag/table6_electra.py": {
        "arm": ("electra", "ag"),
        "generator": ("unigram", "mlm"),
        "scale": ("paper", "small"),
    },
    "ag/table8_training.py": {"arm": ("mlm", "ag", "ag_all"), "scale": ("paper", "small,data=texts")},
    TRANSLATION: {
        "dataset": ("iwslt16", "wmt14", "multi30k", "iwslt14"),
        "arm": ("base", "hard_coded", "ag"),
        "scale": ("paper", "small"),
    },
    CUSTOM: {"arm": ("base", "hard_coded", "ag"), "size": ("tiny", "small", "base")},
    "asa/figure4_speed.py": {
        "length": (128, 256, 512),
        "arm": ("plain", "asa", "freelb_2", "freelb_3", "smart"),
        "scale": ("paper", "small"),
    },
    "deberta/table4_ablation.py": {
        "arm": ("deberta", "no_emd", "no_c2p", "no_p2c", "no_emd_c2p", "no_emd_p2c", "roberta"),
        "positions": ("none", "input"),
        "scale": ("paper", "small"),
    },
    "modern/guidance.py": {
        "positions": ("learned", "rotary"),
        "norm": ("post", "pre"),
        "optimizer": ("adamw", "muon"),
        "arm": ("none", "all", "next", "prev", "first"),
        "scale": ("paper", "small"),
    },
    "modern/modernbert.py": {"arm": ("mlm", "ag"), "length": (1024, 8192), "scale": ("paper", "small")},
    "babylm/strict_small.py": {"arm": babylm.ARMS, "scale": ("paper", "small")},
    "babylm/strict.py": {"arm": babylm.ARMS, "scale": ("paper", "small")},
    "roberta/table1_masking.py": {"arm": ("static", "dynamic"), "scale": ("paper", "small")},
    "roberta/table2_input_formats.py": {
        "arm": ("segment_pair_nsp", "sentence_pair_nsp", "full_sentences", "doc_sentences"),
        "scale": ("paper", "small"),
    },
    "roberta/table3_batch_size.py": {"arm": ("256", "2k", "8k"), "scale": ("paper", "small")},
    "roberta/table4_data_and_steps.py": {
        "arm": ("100k", "more_text", "300k", "500k"),
        "scale": ("paper", "small"),
    },
    "roberta/table9_pretraining.py": {"size": ("base", "large"), "arm": ("mlm", "ag"), "scale": ("paper", "small")},
}
TINY = {
    "model.layers": 1,
    "model.width": 24,  # two numbers a head, because rotary positions pair them
    "model.heads": 12,
    "data.tokenizer.vocabulary_size": 300,
    "training.steps": 1,
    "training.batch_size": 8,
    "training.microbatches": 1,
    "training.earlier_batch_sizes": (),
    "training.earlier_batch_sizes_until": (),
    "training.tensorboard": False,
    "training.milestones": (),
    "training.milestone_words": (),
    "training.words": None,
    "data.max_words": None,
    "optimizer.warmup_steps": 0,
    "optimizer.decay_steps": None,
}
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. " * 6


def variants(name):
    choices = ARGUMENTS[name]
    for values in itertools.product(*choices.values()):
        yield ",".join(f"{key}={value}" for key, value in zip(choices, values, strict=True))


REQUIRED: dict[str, str] = {}  # arguments without which a config is not read, filled in by `corpora`


def write_corpora(folder: pathlib.Path) -> None:
    """Write toy pairs in the files of all published parallel corpora, a folder for each."""
    lines = {"train": 300, "validation": 40, "test": 5}
    toys.write(folder, "dictionary", lines)
    texts = {
        name: {"en": (folder / f"{name}.source").read_text(), "de": (folder / f"{name}.target").read_text()}
        for name in lines
    }
    for side in ("en", "de"):
        text = {name: of[side].splitlines() for name, of in texts.items()}
        plain = {"train": "train", "val": "validation", "test_2016_flickr": "test", "test_2017_flickr": "test"}
        layouts.put(folder / "multi30k", {f"{name}.{side}": text[part] for name, part in plain.items()})
        plain = {"train": "train", "newstest2013": "validation", "newstest2014": "test"}
        layouts.put(folder / "wmt14", {f"{name}.{side}": text[part] for name, part in plain.items()})
        for year, pair, sets in (
            (14, "de-en", ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")),
            (16, "en-de", ("TED.dev2010", *(f"TED.tst{year}" for year in range(2010, 2015)))),
            (16, "en-de", ("QED.tst2016", "TED.tst2015", "TED.tst2016")),
        ):
            corpus, content = folder / f"iwslt{year}", layouts.segments(*text["validation"])
            layouts.put(corpus, {f"{pair}/IWSLT{year}.{name}.{pair}.{side}.xml": content for name in sets})
            layouts.put(corpus, {f"{pair}/train.tags.{pair}.{side}": text["train"]})


@pytest.fixture(scope="module", autouse=True)
def corpora(tmp_path_factory):
    """Make the text that the config files read while they are parsed, and note where it is."""
    folder = tmp_path_factory.mktemp("corpora")
    write_corpora(folder)
    REQUIRED[TRANSLATION] = f"data={folder}"
    REQUIRED["roberta/table4_data_and_steps.py"] = "data=texts/"
    REQUIRED["babylm/strict_small.py"] = REQUIRED["babylm/strict.py"] = "source=texts/"
    REQUIRED[CUSTOM] = f"source={folder / 'train.source'},target={folder / 'train.target'}"
    yield
    REQUIRED.clear()


def parsed(name: str, argument: str = "", **overrides) -> pretraining_config.ExperimentConfig:
    argument = ",".join(filter(None, (REQUIRED.get(name), argument)))
    return pretraining_config.parse(config_reader.load(f"{CONFIGS / name}:{argument}", overrides))


def test_no_config_is_forgotten():
    assert set(ARGUMENTS) == set(FILES)
    assert set(finetuning.TRIED) == set(finetuning.ARGUMENTS) <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_docstring_is_a_lab_note(name):
    spec = importlib.util.spec_from_file_location("config", CONFIGS / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "ag-jax" in module.__doc__ and f"--config={name.removesuffix('.py')}" in module.__doc__
    assert "et al." in module.__doc__ or "Deshpande & Narasimhan 2020" in module.__doc__
    for heading in ("Hardware and time:", "Expected", "Deviations:"):
        assert heading in module.__doc__, f"{name} lacks {heading!r}"


@pytest.mark.parametrize("name", FILES)
def test_every_variant_parses(name):
    for argument in variants(name):
        config = parsed(name, argument)
        separate = {"electra"} if name.startswith("babylm/") else set()  # its loss is that of another task
        assert set(config.comparison.arms.split(",")) == set(ARGUMENTS[name]["arm"]) - separate


@pytest.mark.parametrize("name", FILES)
def test_arms_differ(name):
    arms = ARGUMENTS[name]["arm"]
    configs = [json.dumps(config_reader.to_dict(parsed(name, f"arm={arm}"))) for arm in arms]
    assert len(set(configs)) == len(arms)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Write twelve small documents, from which the tokenizer and rows of all tests are made, but those of pairs."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(12):
        (folder / f"{number}.txt").write_text(TEXT)

    def settings(name):
        # A unigram model with few pieces is not always found; the bytes of a text always are.
        is_of_pairs = name in (TRANSLATION, CUSTOM)
        of_texts = {"data.source": str(folder / "*.txt"), "data.skip_words": (), "data.validation_fraction": 0.1}
        return {"data.tokenizer.kind": "byte_bpe"} if is_of_pairs else of_texts

    return settings


def small_scale(name: str, arm: str) -> str:
    return f"arm={arm},scale={ARGUMENTS[name]['scale'][-1]}" if "scale" in ARGUMENTS[name] else f"arm={arm}"


# The others take seconds each to compile programs that are nearly those of other tests.
@pytest.mark.parametrize("name", some(FILES, TRANSLATION, "deberta/table4_ablation.py"))
def test_one_tiny_step(name, source, tmp_path, one_device):
    """A run from the config file to the summary, with the last arm, which has the most settings."""
    config = parsed(name, small_scale(name, ARGUMENTS[name]["arm"][-1]), **TINY, **source(name))
    summary = run.train(config, epath.Path(tmp_path / "run"))
    assert 0 < summary["validation_loss"] < 20


@pytest.mark.parametrize(
    ("name", "arm"),
    some(
        [(name, arm) for name in FILES for arm in ARGUMENTS[name]["arm"]],
        *((name, ARGUMENTS[name]["arm"][-1]) for name in FILES),  # the last arm has the most settings
    ),
)
def test_every_arm_can_be_traced(name, arm, source, tmp_path, one_device):
    """The train step of each arm has consistent types and shapes, checked without compilation."""
    config = parsed(name, small_scale(name, arm), **TINY, **source(name))
    job = run.make_job(config, epath.Path(tmp_path), pipeline.prepare(config.data))
    batch = next(iter(job.batches(0, 1)))
    state, metrics = jax.eval_shape(job.program.train_step, job.program.abstract, batch, job.key, job.hyperparameters)
    assert state.step.shape == () and job.objective.primary_metric.metric in metrics


# Typed from the paper a second time, to detect a slip in `recipes.pretraining.TABLE_11`: language, model, learning
# rate, warm-up steps, alpha_0/lambda, batch size (Deshpande & Narasimhan 2020, table 11).
PAPERS_TABLE_11 = """
English  RoBERTa-8-MLM  1e-4 10000 -       120
English  RoBERTa-12-MLM 5e-5 10000 -       84
English  RoBERTa-16-MLM 1e-5 10000 -       48
English  RoBERTa-8-AG   1e-4 0     100/0.5 120
English  RoBERTa-12-AG  1e-4 0     10/0.5  84
English  RoBERTa-16-AG  1e-4 0     10/0.5  48
Filipino RoBERTa-8-MLM  1e-4 10000 -       40
Filipino RoBERTa-12-MLM 5e-5 10000 -       28
Filipino RoBERTa-16-MLM 1e-5 10000 -       16
Filipino RoBERTa-8-AG   1e-4 0     100/0.5 40
Filipino RoBERTa-12-AG  1e-4 0     10/0.5  28
Filipino RoBERTa-16-AG  1e-4 0     10/0.5  16
Oromo    RoBERTa-8-MLM  1e-4 1000  -       40
Oromo    RoBERTa-12-MLM 5e-5 1000  -       40
Oromo    RoBERTa-16-MLM 1e-5 1000  -       32
Oromo    RoBERTa-8-AG   1e-4 0     100/0.5 40
Oromo    RoBERTa-12-AG  1e-4 0     10/0.5  40
Oromo    RoBERTa-16-AG  1e-4 0     10/0.5  32
"""


@pytest.mark.parametrize("row", PAPERS_TABLE_11.strip().splitlines(), ids=lambda row: "-".join(row.split()[:2]))
def test_table_11(row):
    language, model, learning_rate, warmup, alpha_and_fraction, batch = row.split()
    _, layers, arm = model.split("-")
    config = parsed("ag/table3_language_modeling.py", f"language={language.lower()},layers={layers},arm={arm.lower()}")
    assert config.optimizer.learning_rate == float(learning_rate)
    assert config.optimizer.warmup_steps == int(warmup)
    assert config.training.batch_size == int(batch)
    heads = {"8": 12, "12": 12, "16": 16}[layers]  # table 10
    assert (config.model.layers, config.model.heads, config.model.width) == (int(layers), heads, 768)
    assert config.guidance.mode == ("loss" if arm == "AG" else "none")
    if arm == "AG":
        alpha, fraction = map(float, alpha_and_fraction.split("/"))
        assert (config.guidance.alpha, config.guidance.fraction) == (alpha, fraction)
        assert build.assignment(config).counts == (("next", 1), ("prev", 1), ("first", heads // 2 - 2))


def searched(name: str, argument: str = "") -> dict[str, list[str]]:
    """Return the names of the points of each arm of a search, as its config file has them."""
    found = points.study(f"{CONFIGS / name}:{argument}", {})
    return {arm: [found.points[number].name for number in numbers] for arm, numbers in found.arms.items()}


def test_the_grids_of_section_4_5():
    """Deshpande & Narasimhan 2020, section 4.5: 18 points without guidance and 12 with it."""
    found = searched("ag/section4_5_search.py", "language=filipino,layers=12")
    rates, warmups = ("1e-05", "5e-05", "0.0001"), ("0", "1000", "10000")
    assert sorted(found["mlm"]) == sorted(
        f"attention_dropout{dropout}-lr{rate}-warmup{warmup}"
        for rate, dropout, warmup in itertools.product(rates, ("0", "0.1"), warmups)
    )
    assert sorted(found["ag_strength"]) == sorted(
        f"alpha{alpha}-fraction{fraction}-lr0.0001-warmup0"
        for alpha, fraction in itertools.product(("1", "10", "100"), ("0.25", "0.5", "0.75", "1"))
    )
    assert list(found) == ["ag_strength", "mlm"]
    assert len(searched("ag/section4_5_search.py", "language=oromo,layers=8")["mlm"]) == 12


def test_the_small_search_has_the_same_points_in_two_arms():
    """And the share of 6 heads that each lambda guides is 2, 3, 5 or all."""
    found = points.study(f"{CONFIGS / 'ag/section4_5_search.py'}:scale=small", {})
    names = {arm: [found.points[number].name for number in numbers] for arm, numbers in found.arms.items()}
    assert {arm: len(of_arm) for arm, of_arm in names.items()} == {"mlm": 18, "ag": 18, "ag_strength": 12}
    assert names["mlm"] == names["ag"] and "attention_dropout0.1-lr0.002-warmup220" in names["mlm"]
    configs = [point.configs[0] for point in found.points if point.arm == "ag_strength"]
    guided = {sum(count for _, count in build.assignment(config).counts) for config in configs}
    assert guided == {2, 3, 5, 6} and {config.guidance.alpha for config in configs} == {0.1, 1.0, 10.0}
    assert {config.training.steps for config in configs} == {1_100} and {config.model.layers for config in configs} == {
        8
    }


def test_the_search_of_the_quickstart():
    found = searched("quickstart_search.py")
    assert found["mlm"] == found["ag"] and len(found["ag"]) == 6 and "lr0.002-warmup220" in found["ag"]
    assert found["mlm_deep"] == found["ag_deep"] == ["layers12", "layers16"]


def test_table_3_takes_the_best_points_of_a_search(tmp_path):
    name = "ag/table3_language_modeling.py"
    strength = {"guidance.alpha": 1.0, "guidance.fraction": 0.75, "optimizer.learning_rate": 1e-4}
    arms = {
        "mlm": {"settings": {"optimizer.learning_rate": 7e-5, "optimizer.warmup_steps": 123}, "validation_loss": 3.0},
        "ag": {"settings": {"optimizer.learning_rate": 1e-2}, "validation_loss": 2.5},
        "ag_strength": {"settings": strength, "validation_loss": 2.0},
    }
    (tmp_path / "best.json").write_text(json.dumps({"metric": "validation_loss", "arguments": {}, "arms": arms}))
    without = parsed(name, f"arm=mlm,best={tmp_path}")
    assert (without.optimizer.learning_rate, without.optimizer.warmup_steps) == (7e-5, 123)
    best = parsed(name, f"arm=ag,best={tmp_path}")
    assert (best.guidance.fraction, best.guidance.alpha, best.optimizer.learning_rate) == (0.75, 1.0, 1e-4)
    with pytest.raises(ValueError, match="No such file or directory: .*other/best.json"):
        parsed(name, f"arm=ag,best={tmp_path / 'other'}")
    searched_with = {"language": "oromo", "layers": 12, "scale": "paper"}
    content = {"metric": "validation_loss", "arms": arms, "arguments": searched_with}
    (tmp_path / "best.json").write_text(json.dumps(content))
    assert parsed(name, f"language=oromo,arm=mlm,best={tmp_path}").optimizer.warmup_steps == 123
    for wrong, named in (("", "language=oromo"), ("language=oromo,scale=small,", "scale=paper")):
        with pytest.raises(ValueError, match=f"is of a search with {named}, expected"):
            parsed(name, f"{wrong}arm=mlm,best={tmp_path}")


@pytest.mark.parametrize(
    ("language", "tokens", "epochs", "held_out"),
    [("english", 2116e6, 10, 0.01), ("filipino", 36e6, 40, 0.10), ("oromo", 4.6e6, 40, 0.03)],
)
def test_the_corpora_of_table_2_and_the_epochs_of_section_4(language, tokens, epochs, held_out):
    config = parsed("ag/table3_language_modeling.py", f"language={language},layers=12")
    assert config.data.expected_tokens == tokens
    seen = config.training.steps * config.training.batch_size * 510
    assert seen == pytest.approx(epochs * tokens, rel=1e-3) and config.data.validation_fraction == held_out


# Tokens (Deshpande & Narasimhan 2020, table 2) and gigabytes (Liu et al. 2019, section 3.2) that a paper states of the
# text of a config; 985M words of BooksCorpus are no number of tokens, and other texts are not those of the papers.
STATED = {
    "ag/section4_5_search.py": {"expected_tokens": 2_116_000_000},
    "ag/table3_language_modeling.py": {"expected_tokens": 2_116_000_000},
    "ag/table5_pattern_ablation.py": {"expected_tokens": 2_116_000_000},
    "ag/table8_training.py": {"expected_tokens": 2_116_000_000},
    "ag/table9_tpu_gpu.py": {"expected_tokens": 2_116_000_000},
    "modern/guidance.py": {"expected_tokens": 2_116_000_000},
    "roberta/table4_data_and_steps.py": {"expected_gigabytes": 16.0 + 76.0 + 38.0 + 31.0},
}


@pytest.mark.parametrize("name", FILES)
def test_the_size_of_a_text_is_compared_with_what_its_paper_states(name):
    for scale in ARGUMENTS[name].get("scale", ()):
        data = parsed(name, f"arm={ARGUMENTS[name]['arm'][-1]},scale={scale}").data
        found = {key: value for key in ("expected_tokens", "expected_gigabytes") if (value := getattr(data, key))}
        assert found == (STATED.get(name, {}) if scale == "paper" else {})


@pytest.mark.parametrize(
    ("corpora", "gigabytes"),
    [("all", 161.0), ("wikipedia,cc_news,books", 92.0), ("stories", 31.0), ("books", None), ("books,stories", None)],
)
def test_the_sizes_of_robertas_corpora(corpora, gigabytes):
    """Those of books and of Wikipedia are stated together."""
    assert parsed("roberta/table9_pretraining.py", f"data=T,corpora={corpora}").data.expected_gigabytes == gigabytes
    smaller = parsed("roberta/table4_data_and_steps.py", "arm=100k")
    assert smaller.data.expected_gigabytes == 16.0


@pytest.mark.parametrize("arm", ["mlm", "ag"])
def test_the_tpu_and_the_gpu_run_differ_in_batch_epochs_title_and_loop_alone(arm):
    tpu, gpu = (parsed("ag/table9_tpu_gpu.py", f"hardware={hardware},arm={arm}") for hardware in ("tpu", "gpu"))
    theirs, ours = (config_reader.flat(config_reader.to_dict(config)) for config in (tpu, gpu))
    assert theirs.keys() == ours.keys()
    different = {key for key in ours if theirs[key] != ours[key]}
    assert different == {"title", "training.batch_size", "training.steps", "model.scan_layers"}
    for config, epochs in ((tpu, 8), (gpu, 7)):  # appendix A.4
        tokens = config.training.steps * config.training.batch_size * 510
        assert tokens == pytest.approx(epochs * 2116e6, rel=1e-4)
    docstring = (CONFIGS / "ag/table9_tpu_gpu.py").read_text()
    assert (
        f"{tpu.training.steps:,} steps of 256 sequences on the TPU, {gpu.training.steps:,} of 84 on the GPUs"
        in docstring
    )


@pytest.mark.parametrize(
    ("hardware", "devices", "tensor"),
    [
        ("tpu", 4, 1),
        ("tpu", 8, 1),
        ("tpu", 32, 1),
        ("tpu", 256, 1),
        ("gpu", 1, 1),
        ("gpu", 4, 1),
        ("gpu", 7, 1),
        ("gpu", 8, 2),
    ],
)
def test_table9_fits_the_meshes_that_its_docstring_names(hardware, devices, tensor):
    config = parsed("ag/table9_tpu_gpu.py", f"hardware={hardware}", **{"mesh.tensor": tensor})
    assert config.mesh.data is None, "all devices"
    assert config.training.batch_size // config.training.microbatches % (devices // tensor * config.mesh.fsdp) == 0
    assert config.model.heads % tensor == 0


# Layers, width, heads, width of the feed-forward layer, peak learning rate, warm-up steps (Liu et al. 2019, table 9).
@pytest.mark.parametrize(
    ("size", "expected"),
    [("base", (12, 768, 12, 3072, 6e-4, 24_000)), ("large", (24, 1024, 16, 4096, 4e-4, 30_000))],
)
def test_roberta_table_9(size, expected):
    config = parsed("roberta/table9_pretraining.py", f"arm=mlm,size={size}")
    model, optimizer, training = config.model, config.optimizer, config.training
    architecture = (model.layers, model.width, model.heads, model.feedforward or 4 * model.width)
    assert (*architecture, optimizer.learning_rate, optimizer.warmup_steps) == expected
    assert (model.dropout, model.attention_dropout, optimizer.decay) == (0.1, 0.1, "linear")
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.clip_norm) == (0.9, 0.98, 1e-6, None)
    assert (training.steps, training.batch_size, optimizer.weight_decay) == (500_000, 8192, 0.01)
    guided = parsed("roberta/table9_pretraining.py", f"arm=ag,size={size}")
    assert guided.guidance.mode == "loss" and guided.optimizer == optimizer and guided.model == model


def test_roberta_table_4():
    of = {arm: parsed("roberta/table4_data_and_steps.py", f"arm={arm}") for arm in ("100k", "more_text", "500k")}
    assert [config.training.steps for config in of.values()] == [100_000, 100_000, 500_000]
    assert of["100k"].data.source == "texts/books,texts/wikipedia"
    assert of["500k"].data.source == ",".join(
        f"texts/{name}" for name in ("books", "wikipedia", "cc_news", "openwebtext", "stories")
    )
    assert all(config.model.width == 1024 for config in of.values())


def test_corpora_of_roberta_that_cannot_be_meant():
    name = "roberta/table9_pretraining.py"
    assert parsed(name, "data=T,corpora=cc_news").data.source == "T/cc_news"
    for argument, message in (
        ("data=T,corpora=news", "expected names among books, .*, or all, got 'news'"),
        ("corpora=books", "corpora=books are folders in data=FOLDER: give data, too"),
    ):
        with pytest.raises(ValueError, match=message):
            parsed(name, argument)


@pytest.mark.parametrize(
    ("arm", "batch_size", "steps", "learning_rate"),
    [("256", 256, 1_000_000, 1e-4), ("2k", 2048, 125_000, 7e-4), ("8k", 8192, 31_000, 1e-3)],
)
def test_roberta_table_3(arm, batch_size, steps, learning_rate):
    """The paper's 31K steps of 8K rows are 31,250 here, so that all arms see the same number of rows."""
    config = parsed("roberta/table3_batch_size.py", f"arm={arm}")
    assert (config.training.batch_size, config.optimizer.learning_rate) == (batch_size, learning_rate)
    assert config.training.steps == pytest.approx(steps, rel=0.01)
    assert config.training.batch_size * config.training.steps == 256_000_000


@pytest.mark.parametrize(
    ("name", "arm"), [("roberta/table1_masking.py", "dynamic"), ("roberta/table2_input_formats.py", "full_sentences")]
)
def test_bert_as_the_ablations_of_roberta_have_it(name, arm):
    """BERT's settings in Liu et al. 2019, sections 2 and 3.1."""
    config = parsed(name, f"arm={arm}")
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.decay) == (1e-4, 10_000, "linear")
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay) == (0.9, 0.98, 1e-6, 0.01)
    assert (config.training.steps, config.training.batch_size, config.data.sequence_length) == (1_000_000, 256, 512)


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("arm", ARGUMENTS["deberta/table4_ablation.py"]["arm"])
def test_arms_of_the_deberta_ablation_lack_what_their_name_says(arm, scale):
    config = parsed("deberta/table4_ablation.py", f"arm={arm},scale={scale}")
    model, lacking = config.model, ["emd", "c2p", "p2c"] if arm == "roberta" else arm.split("_")
    positions = "input" if arm == "roberta" else "none"
    assert [term not in model.relative.names for term in ("c2p", "p2c")] == [term in lacking for term in ("c2p", "p2c")]
    assert (model.absolute_positions, model.mask_decoder_passes) == (
        (positions, 0) if "emd" in lacking else ("decoder", 2)
    )
    assert model.relative.span == config.data.sequence_length and model.token_types == 0 and not model.relative.shared
    if scale == "paper":
        assert (model.layers, model.heads, model.width) == (12, 12, 768)
        assert (config.training.steps, config.training.batch_size) == (1_000_000, 256)


@pytest.mark.parametrize("name", pretraining.ENCODERS)
def test_published_encoders(name):
    """The settings that distinguish published encoders; every setting exists in the config."""
    config = pretraining_config.default_config()
    pretraining.encoder(config, name)
    model = pretraining_config.parse(config).model
    deberta = name.startswith("deberta")
    assert (
        (model.mask_decoder_passes == 2)
        == (model.absolute_positions == "decoder")
        == (model.relative.terms == "c2p,p2c")
        == deberta
    )
    assert (model.relative.buckets == 256) == model.relative.normalized == name.startswith(("deberta_v2", "deberta_v3"))
    assert model.relative.shared != (name == "deberta_v1") and model.relative.key_bias != (name == "deberta_v1")
    assert (model.convolution == 3) == name.startswith("deberta_v2") and model.is_projected == (name == "electra")
    assert model.token_types == {"bert": 2, "roberta": 1, "electra": 2}.get(name, 0)
    is_modern = name.startswith(("modernbert", "ettin"))
    assert (model.window == 128) == (model.global_every == 3) == (not model.first_norm) == is_modern
    assert (
        model.gated
        == (model.positions == "rotary")
        == (model.norm_position == "pre")
        == (is_modern or name == "neobert")
    )
    assert model.position_offset == 2 * (name == "roberta")


@pytest.mark.parametrize(
    ("name", "vocabulary", "published"),
    [
        ("bert", 30_522, 110),
        ("roberta", 50_265, 125),
        ("deberta_v2", 128_100, 900),
        ("deberta_v2_xxlarge", 128_100, 1570),  # its "1.5B" are 3.14 GB of 16-bit numbers, with the word head
        ("modernbert_base", 50_368, 149),
        ("modernbert_large", 50_368, 395),
        ("ettin_17m", 50_368, 17),
        ("ettin_32m", 50_368, 32),
        ("ettin_68m", 50_368, 68),
        ("ettin_1b", 50_368, 1028),
    ],
)
def test_published_numbers_of_parameters(name, vocabulary, published):
    """In millions, of the encoder: published ones, of which some count a pooler or the word head."""
    config = pretraining_config.default_config()
    pretraining.encoder(config, name)
    model = dataclasses.replace(pretraining_config.parse(config).model, vocabulary_size=vocabulary)
    batch = {name: jnp.zeros((1, 8), jnp.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
    init = functools.partial(Encoder(model).init, deterministic=True)
    count = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0), batch)))
    assert count / 1e6 == pytest.approx(published, rel=0.02)


def test_the_largest_deberta():
    """As the config.json of microsoft/deberta-v2-xxlarge has it; all else is as in the xlarge model."""
    xlarge, xxlarge = (pretraining.ENCODERS[name] for name in ("deberta_v2", "deberta_v2_xxlarge"))
    config = pretraining_config.default_config()
    pretraining.encoder(config, "deberta_v2_xxlarge")
    model = pretraining_config.parse(config).model
    assert (model.layers, model.heads, model.width, model.feedforward or 4 * model.width) == (48, 24, 1536, 6144)
    assert (model.convolution, model.convolution_activation, model.relative.buckets) == (3, "gelu", 256)
    assert (model.max_length, model.token_types, model.layer_norm_epsilon) == (512, 0, 1e-7)
    assert xxlarge == xlarge | {"layers": 48}


# Typed from the released code and its neighbours a second time: dataset, layers, heads, width, features, dropout, label
# smoothing, learning rate, warm-up steps, decay, steps, tokens of a batch (of both sides, or of the target).
RECIPES = """
iwslt16  5 4 288 507  0.1 0.0 3e-4    0    linear       100000 6000  both
wmt14    6 8 512 2048 0.1 0.1 6.99e-4 4000 inverse_sqrt 100000 50800 both
iwslt14  6 4 512 1024 0.3 0.1 5e-4    4000 inverse_sqrt 50000  4096  target
multi30k 4 4 128 256  0.3 0.1 5e-3    2000 inverse_sqrt 8000   8192  target
"""


@pytest.mark.parametrize("row", RECIPES.strip().splitlines(), ids=lambda row: row.split()[0])
def test_recipes_of_table_7(row):
    name, *numbers, decay, steps, tokens, side = row.split()
    layers, heads, width, features, dropout, smoothing, rate, warmup = map(float, numbers)
    config = parsed(TRANSLATION, f"dataset={name},arm=base")
    model, optimizer = config.model, config.optimizer
    assert (model.layers, config.decoder.layers, model.heads, model.width) == (layers, layers, heads, width)
    assert (model.feedforward, model.dropout, model.attention_dropout) == (features, dropout, 0)
    # Vaswani et al. 2017.
    assert (model.norm_position, model.activation, model.positions, model.token_types) == (
        "post",
        "relu",
        "sinusoidal",
        0,
    )
    assert model.embedding_scale and not model.embedding_norm and config.decoder.tie == "all"
    assert config.translation.label_smoothing == smoothing and optimizer.decay == decay
    assert optimizer.learning_rate == pytest.approx(rate, rel=1e-3) and optimizer.warmup_steps == warmup
    assert (optimizer.beta2, optimizer.clip_norm, config.training.steps) == (0.98, None, int(steps))
    filled = 0.96 * config.training.batch_size * config.data.sequence_length * (2 if side == "both" else 1)
    assert filled == pytest.approx(int(tokens), rel=0.03)
    assert config.translation.test_sets and (config.data.validation_source is None) == (name == "iwslt14")


def test_arms_of_table_7():
    """The paper's patterns: a Next and a Prev head in the encoder and none elsewhere."""
    arms = {arm: parsed(TRANSLATION, f"arm={arm}") for arm in ARGUMENTS[TRANSLATION]["arm"]}
    assert arms["ag"].guidance.heads == "next:1,prev:1" and arms["ag"].guidance.alpha == 1
    assert arms["ag"].guidance.decoder_heads is arms["ag"].guidance.cross_heads is None
    fixed = arms["hard_coded"]
    assert fixed.model.fixed_attention.offsets == (-1, 1) and fixed.decoder.fixed_attention.offsets == (-1, 0)
    assert not fixed.model.fixed_attention.normalized and fixed.guidance.mode == "none"
    assert not arms["base"].model.fixed_attention.offsets and arms["base"].guidance.mode == "none"
    searched = parsed(TRANSLATION, "search=True").comparison.arms.split(",")
    assert len(searched) == 10 and set(arms) < set(searched)
    assert parsed(TRANSLATION, "arm=ag,alpha=100").guidance.alpha == 100
    assert [parsed(TRANSLATION, f"arm={arm},alpha=7").guidance.alpha for arm in searched[2:]] == [7.0] * 6 + [
        10.0,
        100.0,
    ]
    patterns = {arm: parsed(TRANSLATION, f"arm={arm}").guidance for arm in searched[3:8]}
    assert {arm: (of.heads.removeprefix("next:1,prev:1"), of.decoder_heads) for arm, of in patterns.items()} == {
        "ag_first": (",first:1", None),
        "ag_period": (",period:1", None),
        "ag_delim": (",delim:1", None),
        "ag_decoder_prev": ("", "prev:1"),
        "ag_decoder_first": ("", "first:1"),
    }


@pytest.mark.parametrize("dataset", ["multi30k", "iwslt16", "iwslt14", "wmt14"])
def test_reports_show_a_sentence_of_the_source_language(dataset):
    english = parsed(TRANSLATION, f"dataset={dataset}").inspection.sentence
    (first, *_) = pairs.training(parsed(TRANSLATION, f"dataset={dataset},languages=de-en").data)
    shown = parsed(TRANSLATION, f"dataset={dataset},languages=de-en").inspection.sentence
    assert english.startswith("A brown dog") and shown == first.source != ""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("languages=ende", "expected two languages with a hyphen, such as languages=en-de, got 'ende'"),
        ("dataset=multi30k,languages=en-fr", "has no training text of multi30k: expected train.en with train.fr"),
        ("arm=agg", "arm"),
    ],
)
def test_table_7_names_what_is_wrong(argument, message):
    with pytest.raises(ValueError, match=message):
        parsed(TRANSLATION, argument)


# Layers, width, features, vocabulary, dropout, tokens of a side of a batch: of the published recipes, typed again.
SIZES = {
    "tiny": (4, 128, 256, 8000, 0.3, 8192),
    "small": (6, 512, 1024, 10_000, 0.3, 4096),
    "base": (6, 512, 2048, 32_000, 0.1, 26_624),
}


# Pairs of the corpus, the size that suits them, steps, and rows of a batch.
@pytest.mark.parametrize(
    ("pairs", "size", "steps", "rows"),
    [
        (300, "tiny", 1_000, 4),
        (10_000, "tiny", 2_758, 64),
        (29_000, "tiny", 8_000, 64),
        (49_999, "tiny", 8_000, 64),
        (50_000, "small", 15_625, 32),
        (160_000, "small", 50_000, 32),
        (499_999, "small", 50_000, 32),
        (500_000, "base", 11_111, 104),
        (1_000_000, "base", 22_222, 104),
        (9_000_000, "base", 100_000, 104),
    ],
)
def test_the_size_of_a_model_follows_the_number_of_custom_pairs(pairs, size, steps, rows, capsys):
    translation.note_size.cache_clear()
    config = translation.default("custom")
    assert translation.size_for(pairs) == size
    assert f"{pairs:,} training pairs: size={size} is used" in capsys.readouterr().err
    translation.custom_size(config, size, pairs)
    model, training, warmup = config.model, config.training, config.optimizer.warmup_steps
    layers, width, features, vocabulary, dropout, tokens = SIZES[size]
    assert (model.layers, config.decoder.layers, model.width, model.feedforward) == (layers, layers, width, features)
    assert (config.data.tokenizer.vocabulary_size, model.dropout) == (vocabulary, dropout) and model.attention_biases
    assert (training.steps, training.batch_size, training.microbatches) == (steps, rows, 1)
    assert rows * config.data.sequence_length == (tokens if rows > 4 else 512)
    assert 0 < warmup <= steps / 4 and 20 * training.checkpoint_every <= steps >= 10 * training.evaluate_every
    assert config.translation.average <= training.keep_last


def test_a_short_run_warms_up_to_a_lower_peak():
    """The peak falls with the square root of the warm-up: a quarter of the steps, a half of the peak."""
    peaks = {}
    for steps in (None, 2_000, 3):
        config = translation.default("custom")
        translation.custom_size(config, "tiny", 29_000, steps)
        peaks[steps] = config.optimizer.warmup_steps, config.optimizer.learning_rate
    assert peaks == {
        None: (2_000, 5e-3),
        2_000: (500, pytest.approx(2.5e-3)),
        3: (0, pytest.approx(5e-3 * 2_000**-0.5)),
    }


def test_custom_files(tmp_path):
    """Compressed files, tables without a target, validation and test sets; the first text is drawn in reports."""
    toys.write(tmp_path, "dictionary", {"train": 300, "test": 5})
    source, target = ((tmp_path / f"train.{side}").read_text().splitlines() for side in ("source", "target"))
    table = "".join(f"{one}\t{other}\n" for one, other in zip(source, target, strict=True))
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(table.encode()))

    def read(**arguments):
        argument = ",".join(f"{name}={tmp_path / value}" for name, value in arguments.items())
        return pretraining_config.parse(config_reader.load(f"{CONFIGS / CUSTOM}:{argument}", {}))

    of_table = read(source="pairs.tsv.gz")
    assert of_table.data.target is None and of_table.inspection.sentence == source[0]
    assert (of_table.training.batch_size, of_table.model.layers) == (4, 4), "300 pairs"
    (tmp_path / "named.tsv").write_text(f"id\ten\tde\n1\t{source[0]}\t{target[0]}\n")
    named = f"source={tmp_path / 'named.tsv'},target_field=de"
    own = pretraining_config.parse(config_reader.load(f"{CONFIGS / CUSTOM}:{named},source_field=en", {}))
    assert own.inspection.sentence == source[0] and list(pairs.training(own.data)) == [(source[0], target[0])]
    with pytest.raises(ValueError, match='the header: expected the field "source", got only .*; set source_field'):
        config_reader.load(f"{CONFIGS / CUSTOM}:{named}", {})
    full = read(
        source="train.source",
        target="train.target",
        validation_source="pairs.tsv.gz",
        test_source="test.source",
        test_target="test.target",
    )
    assert full.data.validation_source.endswith("pairs.tsv.gz") and full.data.validation_target is None
    assert full.translation.test_sets == {"test": (str(tmp_path / "test.source"), str(tmp_path / "test.target"))}
    for arguments, message in (
        ({"source": "train.source"}, "train.source has no counterpart: set target to the file with its translations"),
        ({"source": "nowhere.en", "target": "train.target"}, "line [0-9]+: source='.*nowhere.en' does not exist"),
        ({"source": "pairs.tsv.gz", "test_target": "test.target"}, "test_target=.* translates nothing"),
        ({"source": "pairs.tsv.gz", "test_source": "test.source"}, "test_source=.* has no references: .*test_target"),
        (
            {"source": "pairs.tsv.gz", "test_source": "test.source", "test_target": "train.target"},
            "test.source has 5 lines and .*train.target has 300",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read(**arguments)


def test_small_has_the_arms_own_alpha():
    guided = parsed("ag/table3_language_modeling.py", "layers=12,arm=ag,scale=small")
    assert guided.guidance.alpha == 10.0 / 8
    assert guided.model.layers == 12


def test_small_table_3_has_the_optimizer_and_length_of_the_quickstart():
    """And of a search at scale=small, whose best points it takes."""
    for arm in ("mlm", "ag"):
        small, quick = (
            parsed("ag/table3_language_modeling.py", f"arm={arm},scale=small"),
            parsed("quickstart.py", f"arm={arm}"),
        )
        for of in (small, quick):
            assert (of.optimizer.learning_rate, of.optimizer.warmup_steps, of.training.steps) == (2e-3, 220, 1100)
        assert (small.model.heads, small.model.width) == (quick.model.heads, quick.model.width)


def test_the_methods_of_asas_figure_4():
    configs = {
        arm: parsed("asa/figure4_speed.py", f"length=512,arm={arm}") for arm in ARGUMENTS["asa/figure4_speed.py"]["arm"]
    }
    of = {arm: config.adversarial for arm, config in configs.items()}
    assert {arm: attack.method for arm, attack in of.items()} == {
        **{"plain": "none", "asa": "asa", "freelb_2": "freelb", "freelb_3": "freelb", "smart": "smart"}
    }
    assert (of["freelb_2"].freelb.passes, of["freelb_3"].freelb.passes, of["smart"].smart.steps) == (2, 3, 1)
    for config in configs.values():
        assert (config.model.layers, config.model.width, config.model.dtype) == (12, 768, "float32")
        assert (config.training.batch_size, config.data.sequence_length) == (16, 512)


def test_asas_table_6(tmp_path):
    start = tiny_tasks.checkpoint(tmp_path)
    long = json.loads((start / "config.json").read_text())
    long["model"]["max_length"] = 512
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "config.json").write_text(json.dumps(long))
    assert parsed("asa/table6_pretraining.py", f"run={tmp_path / 'long'}").data.sequence_length == 256
    paper, small = (
        parsed("asa/table6_pretraining.py", f"run={start},arm=asa,scale={scale}") for scale in ("paper", "small")
    )
    assert (paper.adversarial.method, paper.adversarial.asa.tau) == ("asa", 0.1)
    assert (paper.training.steps, paper.training.batch_size, paper.data.sequence_length) == (20_000, 1024, 32)
    optimizer = paper.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.clip_norm) == (2e-5, 0.01, 1.0)
    assert (
        optimizer.warmup_steps == 0.06 * paper.training.steps
        and paper.model.dropout == paper.model.attention_dropout == 0.1
    )
    assert small.training.steps * small.training.batch_size * small.data.sequence_length < 1e6
    assert parsed("asa/table6_pretraining.py", f"run={start},arm=plain").adversarial.method == "none"


@pytest.mark.exhaustive
def test_asas_table_6_as_a_comparison(tmp_path, one_device):
    start = tiny_tasks.checkpoint(tmp_path)
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(TEXT)
    few = {key: value for key, value in TINY.items() if not key.startswith(("model", "data"))}
    few |= {
        "data.source": str(tmp_path / "*.txt"),
        "training.steps": 2,
        "training.log_every": 1,
        "training.milestones": (0.0, 1.0),
    }
    source = f"{CONFIGS / 'asa/table6_pretraining.py'}:run={start},scale=small"
    report = comparison.compare(source, few, epath.Path(tmp_path / "w"))
    arms = json.loads((report.parent / "report.json").read_text())["arms"]
    assert "masked" not in arms["plain"] and 0.1 < arms["asa"]["masked"]["all"] < 0.9
    assert len(arms["asa"]["masked"]["layers"]) == 1
    text = report.read_text()
    assert "| asa | " in text and "![Masked share](figures/masked_share.png)" in text and "| Tokens a second | " in text
    assert (report.parent / "figures" / "masked_share.png").exists()

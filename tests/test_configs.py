"""Every config file parses, with all arms; one trains; the numbers are those of the papers."""

import dataclasses
import functools
import gzip
import importlib.util
import itertools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from ag_jax.data.parallel import pairs, toys
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.models.encoder import Encoder
from ag_jax.pretraining import build, run
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.search import points
from ag_jax.probing.config import ProbingConfig
from ag_jax.recipes import pretraining, translation
from ag_jax.settings import config_files, schema
from tests.cases import some
from tests.data.parallel import test_layouts as layouts
from tests.goldens.make import GOLDENS

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
# Need a run to go on with: tests/interop/test_initial_weights.py, and below.
CONTINUED = {"continue_pretraining.py", "continue_translation.py", "asa/table6_pretraining.py"}
ALL = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.py"))
TEXTS = {name: (CONFIGS / name).read_text() for name in ALL}
PROBES = {"probe.py", "ag/table8_probes.py"}
FINETUNED = {name for name in ALL if "recipes import finetuning" in TEXTS[name]}
PRETRAINED = sorted(set(ALL) - CONTINUED - PROBES - FINETUNED)
TRANSLATION, CUSTOM = "ag/table7_translation.py", "translate.py"
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
    (folder / "report.json").write_text(json.dumps({"arms": {"one": {}, "other": {}}, "seeds": [0]}))
    REQUIRED.update(dict.fromkeys([*FINETUNED, "probe.py"], "checkpoint=C"))
    REQUIRED["ag/table1_mismatched_pretraining.py"] = "english=E,french=F"
    REQUIRED["ag/table4_downstream.py"] = "plain=P,ag=A"
    REQUIRED["asa/table1_generalization.py"] = "checkpoint=C,longer=L,pretrained=P"
    REQUIRED["finetune/downstream.py"] = f"runs={folder},tasks=sst2"
    REQUIRED["finetune/own.py"] = "checkpoint=C,train=a.csv"
    REQUIRED["ag/table8_probes.py"] = "data=texts"
    REQUIRED["ag/pointers.py"] = "source=trees.conllu"
    REQUIRED[TRANSLATION] = f"data={folder}"
    REQUIRED["roberta/table4_data_and_steps.py"] = "data=texts/"
    REQUIRED["babylm/strict_small.py"] = REQUIRED["babylm/strict.py"] = "source=texts/"
    REQUIRED[CUSTOM] = f"source={folder / 'train.source'},target={folder / 'train.target'}"
    yield
    REQUIRED.clear()


def load(name: str, *arguments: str, **overrides):
    argument = ",".join(filter(None, (REQUIRED.get(name), *arguments)))
    return config_files.load(f"{CONFIGS / name}:{argument}", overrides)


def parsed(name: str, *arguments: str, **overrides) -> ExperimentConfig:
    return load(name, *arguments, **overrides).settings


def small(name: str) -> str:
    """The argument for the small scale, if the file has one."""
    return {"ag/table8_training.py": "scale=small,data=texts"}.get(name, "scale=small" * ("scale=" in TEXTS[name]))


def arms_of(name: str) -> list[str]:
    return parsed(name).comparison.arms.split(",")


@pytest.mark.parametrize("name", sorted(set(ALL) - CONTINUED))
def test_every_config_parses_and_its_arms_differ(name):
    spec = importlib.util.spec_from_file_location("config", CONFIGS / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert f"--config={name.removesuffix('.py')}" in module.__doc__ and "Deviations:" in module.__doc__
    for scale in {"", small(name)}:
        config = load(name, scale).settings
        kind = type(config)
        assert kind is (
            FinetuningConfig if name in FINETUNED else ProbingConfig if name in PROBES else ExperimentConfig
        )
        arms = config.comparison.arms if kind is ExperimentConfig else config.arms
        names = arms.split(",") if arms and name != "probe.py" else []
        found = {json.dumps(schema.to_dict(load(name, scale, f"arm={arm}").settings)) for arm in names}
        assert len(found) == len(names) and len(names) != 1
        if kind is FinetuningConfig and scale:
            assert {recipe.max_length for recipe in config.tasks.values()} == {64}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Write twelve small documents, from which the tokenizer and rows of all tests are made, but those of pairs.

    They are also there with trees, in which the head of each word is the word before it.
    """
    folder = tmp_path_factory.mktemp("text")
    for number in range(12):
        (folder / f"{number}.txt").write_text(TEXT)
    columns = "{}\t{}\t_\t_\t_\t_\t{}\t_\t_\t_"
    words = "\n".join(columns.format(head + 1, word, head) for head, word in enumerate(TEXT.split()))
    (folder / "trees.conllu").write_text(f"# newdoc\n{words}\n\n" * 12)

    def settings(name):
        # A unigram model with few pieces is not always found; the bytes of a text always are.
        files = "trees.conllu" if name == "ag/pointers.py" else "*.txt"
        of_texts = {"data.source": str(folder / files), "data.skip_words": (), "data.validation_fraction": 0.1}
        return {"data.tokenizer.kind": "byte_bpe"} if name in (TRANSLATION, CUSTOM) else of_texts

    return settings


# The others take seconds each to compile programs that are nearly those of other tests: `quickstart` is trained in
# test_command.py, `translate` in test_translating.py, and tasks in tests/finetuning.
@pytest.mark.parametrize("name", some(PRETRAINED, "deberta/table4_ablation.py"))
def test_one_tiny_step(name, source, tmp_path, one_device):
    """A run from the config file to the summary, with the last arm, which has the most settings."""
    config = parsed(name, small(name), f"arm={arms_of(name)[-1]}", **TINY, **source(name))
    summary = run.train(config, epath.Path(tmp_path / "run"))
    assert 0 < summary["validation_loss"] < 20


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


def test_table_11():
    for row in PAPERS_TABLE_11.strip().splitlines():
        language, model, learning_rate, warmup, alpha_and_fraction, batch = row.split()
        _, layers, arm = model.split("-")
        arguments = f"language={language.lower()},layers={layers},arm={'ag' if arm == 'AG' else 'plain'}"
        config = parsed("ag/table3_language_modeling.py", arguments)
        assert config.optimizer.learning_rate == float(learning_rate), row
        assert (config.optimizer.warmup_steps, config.training.batch_size) == (int(warmup), int(batch)), row
        heads = {"8": 12, "12": 12, "16": 16}[layers]  # table 10
        assert (config.model.layers, config.model.heads, config.model.width) == (int(layers), heads, 768)
        assert config.guidance.mode == ("loss" if arm == "AG" else "none")
        if arm == "AG":
            alpha, fraction = map(float, alpha_and_fraction.split("/"))
            assert (config.guidance.alpha, config.guidance.fraction) == (alpha, fraction), row
            assert build.assignment(config).counts == (("next", 1), ("prev", 1), ("first", heads // 2 - 2))
    guided = parsed("ag/table3_language_modeling.py", "layers=12,arm=ag,scale=small")
    assert (guided.guidance.alpha, guided.model.layers) == (10.0 / 8, 12)


def searched(name: str, argument: str = "") -> dict[str, list[str]]:
    """Return the names of the points of each arm of a search, as its config file has them."""
    found = points.study(config_files.load(f"{CONFIGS / name}:{argument}", {}))
    return {arm: [found.points[number].name for number in numbers] for arm, numbers in found.arms.items()}


def test_the_grids_of_section_4_5():
    """Deshpande & Narasimhan 2020, section 4.5: 18 points without guidance and 12 with it."""
    found = searched("ag/section4_5_search.py", "language=filipino,layers=12")
    rates, warmups = ("1e-05", "5e-05", "0.0001"), ("0", "1000", "10000")
    assert sorted(found["plain"]) == sorted(
        f"attention_dropout{dropout}-lr{rate}-warmup{warmup}"
        for rate, dropout, warmup in itertools.product(rates, ("0", "0.1"), warmups)
    )
    assert sorted(found["ag_strength"]) == sorted(
        f"alpha{alpha}-fraction{fraction}-lr0.0001-warmup0"
        for alpha, fraction in itertools.product(("1", "10", "100"), ("0.25", "0.5", "0.75", "1"))
    )
    assert len(searched("ag/section4_5_search.py", "language=oromo,layers=8")["plain"]) == 12


def test_table_3_takes_the_best_points_of_a_search(tmp_path):
    name = "ag/table3_language_modeling.py"
    strength = {"guidance.alpha": 1.0, "guidance.fraction": 0.75, "optimizer.learning_rate": 1e-4}
    arms = {
        "plain": {"settings": {"optimizer.learning_rate": 7e-5, "optimizer.warmup_steps": 123}, "validation_loss": 3.0},
        "ag": {"settings": {"optimizer.learning_rate": 1e-2}, "validation_loss": 2.5},
        "ag_strength": {"settings": strength, "validation_loss": 2.0},
    }
    content = {"metric": "validation_loss", "arguments": {}, "arms": arms}
    (tmp_path / "best.json").write_text(json.dumps(content))
    without = parsed(name, f"arm=plain,best={tmp_path}")
    assert (without.optimizer.learning_rate, without.optimizer.warmup_steps) == (7e-5, 123)
    best = parsed(name, f"arm=ag,best={tmp_path}")
    assert (best.guidance.fraction, best.guidance.alpha, best.optimizer.learning_rate) == (0.75, 1.0, 1e-4)
    with pytest.raises(ValueError, match="other/best.json"):
        parsed(name, f"arm=ag,best={tmp_path / 'other'}")
    content["arguments"] = {"language": "oromo", "layers": 12, "scale": "paper"}
    (tmp_path / "best.json").write_text(json.dumps(content))
    assert parsed(name, f"language=oromo,arm=plain,best={tmp_path}").optimizer.warmup_steps == 123
    for wrong, named in (("", "language=oromo"), ("language=oromo,scale=small,", "scale=paper")):
        with pytest.raises(ValueError, match=named):
            parsed(name, f"{wrong}arm=plain,best={tmp_path}")


def test_the_corpora_of_table_2_and_the_epochs_of_section_4():
    rows = {"english": (2116e6, 10, 0.01), "filipino": (36e6, 40, 0.10), "oromo": (4.6e6, 40, 0.03)}
    for language, (tokens, epochs, held_out) in rows.items():
        config = parsed("ag/table3_language_modeling.py", f"language={language},layers=12")
        assert (config.data.expected_tokens, config.data.validation_fraction) == (tokens, held_out)
        seen = config.training.steps * config.training.batch_size * 510
        assert seen == pytest.approx(epochs * tokens, rel=1e-3)


def test_the_sizes_of_robertas_corpora():
    """Sizes are in gigabytes (Liu et al. 2019, section 3.2); those of books and of Wikipedia are stated together."""
    sizes = {"all": 161.0, "wikipedia,cc_news,books": 92.0, "stories": 31.0, "books": None, "books,stories": None}
    for corpora, gigabytes in sizes.items():
        data = parsed("roberta/table9_pretraining.py", f"data=T,corpora={corpora}").data
        assert data.expected_gigabytes == gigabytes
    of = {arm: parsed("roberta/table4_data_and_steps.py", f"arm={arm}") for arm in ("100k", "more_text", "500k")}
    assert [(config.training.steps, config.data.expected_gigabytes) for config in of.values()] == [
        *((100_000, 16.0), (100_000, 161.0), (500_000, 161.0))
    ]
    assert of["100k"].data.source == "texts/books,texts/wikipedia" and of["500k"].model.width == 1024
    for argument, named in (("data=T,corpora=news", "'news'"), ("corpora=books", "corpora=books")):
        with pytest.raises(ValueError, match=named):
            parsed("roberta/table9_pretraining.py", argument)


def test_the_tpu_and_the_gpu_run_differ_in_batch_epochs_title_and_loop_alone():
    tpu, gpu = (parsed("ag/table9_tpu_gpu.py", f"hardware={hardware},arm=ag") for hardware in ("tpu", "gpu"))
    theirs, ours = (schema.flat(schema.to_dict(config)) for config in (tpu, gpu))
    different = {key for key in ours if theirs[key] != ours[key]}
    assert different == {"title", "training.batch_size", "training.steps", "model.scan_layers"}
    for config, epochs in ((tpu, 8), (gpu, 7)):  # appendix A.4
        tokens = config.training.steps * config.training.batch_size * 510
        assert tokens == pytest.approx(epochs * 2116e6, rel=1e-4)


def test_roberta():
    """Liu et al. 2019: tables 3 and 9, and BERT as sections 2 and 3.1 have it."""
    for size, expected in (("base", (12, 768, 12, 3072, 6e-4, 24_000)), ("large", (24, 1024, 16, 4096, 4e-4, 30_000))):
        config = parsed("roberta/table9_pretraining.py", f"arm=plain,size={size}")
        model, optimizer, training = config.model, config.optimizer, config.training
        architecture = (model.layers, model.width, model.heads, model.feedforward or 4 * model.width)
        assert (*architecture, optimizer.learning_rate, optimizer.warmup_steps) == expected
        assert (model.dropout, model.attention_dropout, optimizer.clip_norm) == (0.1, 0.1, None)
        assert (training.steps, training.batch_size) == (500_000, 8192)
        guided = parsed("roberta/table9_pretraining.py", f"arm=ag,size={size}")
        assert guided.guidance.mode == "loss" and guided.optimizer == optimizer and guided.model == model
    bert = [parsed(name) for name in ("roberta/table1_masking.py", "roberta/table2_input_formats.py")]
    for of in bert:
        assert (of.optimizer.learning_rate, of.optimizer.warmup_steps) == (1e-4, 10_000)
        assert (of.training.steps, of.training.batch_size, of.data.sequence_length) == (1_000_000, 256, 512)
    for of in (config, *bert):
        adam = of.optimizer.beta1, of.optimizer.beta2, of.optimizer.epsilon, of.optimizer.weight_decay
        assert (*adam, of.optimizer.decay) == (0.9, 0.98, 1e-6, 0.01, "linear")
    for arm, size, rate in (("256", 256, 1e-4), ("2k", 2048, 7e-4), ("8k", 8192, 1e-3)):
        config = parsed("roberta/table3_batch_size.py", f"arm={arm}")
        assert (config.training.batch_size, config.optimizer.learning_rate) == (size, rate)
        assert size * config.training.steps == 256_000_000  # the paper's 31K steps of 8K rows are 31,250


def test_arms_of_the_deberta_ablation_lack_what_their_name_says():
    for arm, scale in itertools.product(arms_of("deberta/table4_ablation.py"), ("paper", "small")):
        config = parsed("deberta/table4_ablation.py", f"arm={arm},scale={scale}")
        model, lacking = config.model, {"emd", "c2p", "p2c"} if arm == "roberta" else {*arm.split("_")}
        assert {"c2p", "p2c"} - lacking == {*model.relative.names} & {"c2p", "p2c"}
        positions = ("input" if arm == "roberta" else "none", 0) if "emd" in lacking else ("decoder", 2)
        assert (model.absolute_positions, model.mask_decoder_passes) == positions
        assert (model.relative.span, model.token_types) == (config.data.sequence_length, 0)
        assert (config.data.masking.unit, config.data.masking.longest_span) == ("word", 3)
        if scale == "paper":
            training = config.training.steps, config.training.batch_size
            assert (model.layers, model.heads, model.width, *training) == (12, 12, 768, 1_000_000, 256)


def test_published_encoders():
    """The settings that distinguish published encoders."""
    for name in pretraining.ENCODERS:
        config = pretraining_config.default_config()
        pretraining.encoder(config, name)
        model, deberta = pretraining_config.parse(config).model, name.startswith("deberta")
        of_deberta = model.mask_decoder_passes == 2, model.absolute_positions == "decoder", model.relative.terms != ""
        assert {*of_deberta, model.relative.terms == "c2p,p2c"} == {deberta}, name
        later = model.relative.buckets == 256, model.relative.normalized
        assert {*later} == {name.startswith(("deberta_v2", "deberta_v3"))}, name
        assert model.relative.shared == model.relative.key_bias == (name != "deberta_v1")
        assert (model.convolution == 3) == name.startswith("deberta_v2") and model.is_projected == (name == "electra")
        assert model.token_types == {"bert": 2, "roberta": 1, "electra": 2}.get(name, 0)
        modern = name.startswith(("modernbert", "ettin"))
        assert {model.window == 128, model.global_every == 3, not model.first_norm} == {modern}, name
        rotary = model.gated, model.positions == "rotary", model.norm_position == "pre"
        assert {*rotary} == {modern or name == "neobert"} and model.position_offset == 2 * (name == "roberta")


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


# Typed from the released code and its neighbours a second time: dataset, layers, heads, width, features, dropout, label
# smoothing, learning rate, warm-up steps, decay, steps, tokens of a batch (of both sides, or of the target).
RECIPES = """
iwslt16  5 4 288 507  0.1 0.0 3e-4    0    linear       100000 6000  both
wmt14    6 8 512 2048 0.1 0.1 6.99e-4 4000 inverse_sqrt 100000 50800 both
iwslt14  6 4 512 1024 0.3 0.1 5e-4    4000 inverse_sqrt 50000  4096  target
multi30k 4 4 128 256  0.3 0.1 5e-3    2000 inverse_sqrt 8000   8192  target
"""


def test_recipes_of_table_7():
    for row in RECIPES.strip().splitlines():
        name, *numbers, decay, steps, tokens, side = row.split()
        layers, heads, width, features, dropout, smoothing, rate, warmup = map(float, numbers)
        config = parsed(TRANSLATION, f"dataset={name},arm=base")
        model, optimizer = config.model, config.optimizer
        assert (model.layers, config.decoder.layers, model.heads, model.width) == (layers, layers, heads, width)
        assert (model.feedforward, model.dropout, model.attention_dropout) == (features, dropout, 0)
        # Vaswani et al. 2017.
        form = (model.norm_position, model.activation, model.positions, model.token_types)
        assert form == ("post", "relu", "sinusoidal", 0)
        assert model.embedding_scale and not model.embedding_norm and config.decoder.tie == "all"
        assert config.translation.label_smoothing == smoothing and optimizer.decay == decay
        assert optimizer.learning_rate == pytest.approx(rate, rel=1e-3) and optimizer.warmup_steps == warmup
        assert (optimizer.beta2, optimizer.clip_norm, config.training.steps) == (0.98, None, int(steps))
        filled = 0.96 * config.training.batch_size * config.data.sequence_length * (2 if side == "both" else 1)
        assert filled == pytest.approx(int(tokens), rel=0.03)
        assert config.translation.test_sets and (config.data.validation_source is None) == (name == "iwslt14")
        reverse = parsed(TRANSLATION, f"dataset={name},languages=de-en")
        assert reverse.inspection.sentence == next(iter(pairs.training(reverse.data))).source != ""


def test_arms_of_table_7():
    """The paper's patterns: a Next and a Prev head in the encoder and none elsewhere."""
    arms = {arm: parsed(TRANSLATION, f"arm={arm}") for arm in arms_of(TRANSLATION)}
    assert arms["ag"].guidance.heads == "next:1,prev:1" and arms["ag"].guidance.alpha == 1
    assert arms["ag"].guidance.decoder_heads is arms["ag"].guidance.cross_heads is None
    fixed = arms["hard_coded"]
    assert fixed.model.fixed_attention.offsets == (-1, 1) and fixed.decoder.fixed_attention.offsets == (-1, 0)
    assert not fixed.model.fixed_attention.normalized and fixed.guidance.mode == "none"
    assert not arms["base"].model.fixed_attention.offsets and arms["base"].guidance.mode == "none"
    searched = parsed(TRANSLATION, "search=True").comparison.arms.split(",")
    assert len(searched) == 10 and set(arms) < set(searched)
    alphas = [parsed(TRANSLATION, f"arm={arm},alpha=7").guidance.alpha for arm in searched[2:]]
    assert alphas == [7.0] * 6 + [10.0, 100.0]
    files = "alignments=a.links,validation_alignments=v.links"
    aligned = parsed(TRANSLATION, files).comparison.arms.split(",")
    guided = {arm: parsed(TRANSLATION, f"arm={arm},{files}").guidance for arm in aligned}
    both = {arm: (of.mode == "loss" and of.heads, of.cross_heads) for arm, of in guided.items()}
    heads, cross_heads = "next:1,prev:1", "alignment:1"
    expected = (False, None), (heads, None), ("", cross_heads), (heads, cross_heads)
    assert both == dict(zip(("base", "ag", "alignment", "ag_alignment"), expected, strict=True))
    with pytest.raises(ValueError, match="train.fr"):
        parsed(TRANSLATION, "dataset=multi30k,languages=en-fr")


# Layers, width, features, vocabulary, dropout, tokens of a side of a batch: of the published recipes, typed again.
SIZES = {
    "tiny": (4, 128, 256, 8000, 0.3, 8192),
    "small": (6, 512, 1024, 10_000, 0.3, 4096),
    "base": (6, 512, 2048, 32_000, 0.1, 26_624),
}


def test_the_size_of_a_model_follows_the_number_of_custom_pairs():
    rows_of = [  # pairs of the corpus, the size that suits them, steps, and rows of a batch
        *((300, "tiny", 1_000, 4), (10_000, "tiny", 2_758, 64), (49_999, "tiny", 8_000, 64)),
        *((50_000, "small", 15_625, 32), (160_000, "small", 50_000, 32), (499_999, "small", 50_000, 32)),
        *((500_000, "base", 11_111, 104), (9_000_000, "base", 100_000, 104)),
    ]
    for count, size, steps, rows in rows_of:
        config = translation.default("custom")
        assert translation.size_for(count) == size
        translation.custom_size(config, size, count)
        model, training, warmup = config.model, config.training, config.optimizer.warmup_steps
        layers, width, features, vocabulary, dropout, tokens = SIZES[size]
        found = model.layers, config.decoder.layers, model.width, model.feedforward
        assert found == (layers, layers, width, features)
        assert (config.data.tokenizer.vocabulary_size, model.dropout) == (vocabulary, dropout)
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
    """Compressed tables without a target, named columns and test sets; the first text is drawn in reports."""
    toys.write(tmp_path, "dictionary", {"train": 300, "test": 5})
    source, target = ((tmp_path / f"train.{side}").read_text().splitlines() for side in ("source", "target"))
    table = "".join(f"{one}\t{other}\n" for one, other in zip(source, target, strict=True))
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(table.encode()))
    (tmp_path / "named.tsv").write_text(f"id\ten\tde\n1\t{source[0]}\t{target[0]}\n")

    def read(fields="", **arguments):
        argument = ",".join(f"{name}={tmp_path / value}" for name, value in arguments.items())
        return config_files.load(f"{CONFIGS / CUSTOM}:{argument}{fields}", {}).settings

    tested = {"test_source": "test.source", "test_target": "test.target"}
    of_table = read(source="pairs.tsv.gz", **tested)
    assert of_table.data.target is None and of_table.inspection.sentence == source[0]
    assert (of_table.training.batch_size, of_table.model.layers) == (4, 4), "300 pairs"
    assert of_table.translation.test_sets == {"test": (str(tmp_path / "test.source"), str(tmp_path / "test.target"))}
    own = read(",source_field=en,target_field=de", source="named.tsv")
    assert own.inspection.sentence == source[0] and list(pairs.training(own.data)) == [(source[0], target[0])]
    with pytest.raises(ValueError, match="5 lines and .* 300"):
        read(source="pairs.tsv.gz", test_source="test.source", test_target="train.target")


def test_asas_table_6(tmp_path):
    start = shutil.copytree(GOLDENS / "finished", tmp_path / "run")
    config = (start / "config.json").read_text()
    (start / "config.json").write_text(config.replace('"max_length": 16', '"max_length": 32'))
    paper, small = (
        parsed("asa/table6_pretraining.py", f"run={start},arm=asa,scale={scale}") for scale in ("paper", "small")
    )
    assert (paper.adversarial.method, paper.adversarial.asa.tau) == ("asa", 0.1)
    assert (paper.training.steps, paper.training.batch_size, paper.data.sequence_length) == (20_000, 1024, 32)
    optimizer = paper.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.clip_norm) == (2e-5, 0.01, 1.0)
    assert optimizer.warmup_steps == 0.06 * paper.training.steps and paper.model.dropout == 0.1
    assert small.training.steps * small.training.batch_size * small.data.sequence_length < 1e6
    assert parsed("asa/table6_pretraining.py", f"run={start},arm=plain").adversarial.method == "none"


@pytest.mark.parametrize("name", ["modern/modernbert", "roberta/table9_pretraining"])
def test_a_small_model_is_trained_on_the_text_that_is_given(name, tmp_path):
    for corpus in ("books", "wikipedia", "cc_news", "openwebtext", "stories"):
        (tmp_path / corpus).mkdir()
    given = parsed(name + ".py", f"data={tmp_path},scale=small").data.source
    assert str(tmp_path) in given and parsed(name + ".py", "scale=small").data.source == "sotu"

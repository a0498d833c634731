"""`inspect` opens every kind of model at its own length, and saves its figures elsewhere in read-only directories."""

import dataclasses
import errno
import json
import pathlib
import re
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import cli, config_reader, pipelines
from ag_jax.analysis import maps, pairs
from ag_jax.analysis.figures import plots
from ag_jax.analysis.figures.curves import Plateau
from ag_jax.attention.guidance import Assignment, GuidanceConfig
from ag_jax.command_line import verbs
from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.distributed import storage
from ag_jax.finetuning import best
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.job import make_head
from ag_jax.inspection import looking, pages
from ag_jax.inspection.heads import Chosen, restrict
from ag_jax.interop import exporting, finetuned, importing, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.pretraining import comparison, origin, run, workloads
from ag_jax.pretraining.config import ExperimentConfig, InspectionConfig
from ag_jax.pretraining.report import ArmResults
from ag_jax.probing.ablation import heads
from ag_jax.training.config import TrainingConfig
from tests import tiny
from tests.finetuning import tasks
from tests.viewer import views

TOKENIZER, CONFIG = tasks.TOKENIZER, tasks.pretrained().config
TEXT = "we build strong roads " * 5  # 20 tokens: of the models' 24 positions 22, of the run's 16 tokens 14 are free
MARIAN = {"positions": "sinusoidal", "position_offset": 0, "token_types": 0, "embedding_norm": False}
SUMMARY = {"steps": 9, "train_loss": 3.0, "average_train_loss": 3.0}


def save_trial(directory, score, seed, metric="accuracy"):
    """Write a finished trial with random weights; return its directory."""
    head = make_head(tasks.task("classification"), "roberta", 16)
    params = tiny.params(head.model(CONFIG), tiny.task_batch("classification"), seed=seed)
    finetuned.save(FineTuned(head, CONFIG, TOKENIZER, params), epath.Path(directory / "weights"))
    done = {"task": "sst2", "learning_rate": 1e-5, "batch_size": 8, "seed": seed, "epochs": [], "seconds": 1}
    done["examples"] = {"train": 8, "validation": 4}
    done |= dict.fromkeys(("best_epoch", "truncated", "cut_words", "lost", "skipped"), 1)
    (directory / "result.json").write_text(json.dumps(done | {"metrics": {metric: score}}))
    return directory


def save_suite(directory, *names):
    """Write a suite without trials; return its directory."""
    directory.mkdir(parents=True)
    recipe = Recipe(learning_rates=(1e-5,), batch_sizes=(8,))
    config = FinetuningConfig(checkpoint="x", tasks=dict.fromkeys(names, recipe), seeds=(0, 1, 5))
    (directory / "config.json").write_text(json.dumps(config_reader.to_dict(config)))
    return directory


def save_translation(directory):
    """Write a run that translates, with 2 + 3 layers and random weights; return its directory."""
    TOKENIZER.save(directory.with_name("tokenizer"))
    config = ExperimentConfig(
        data=DataConfig(
            source="a.en",
            target="a.de",
            format="parallel",
            sequence_length=16,
            tokenizer=TokenizerConfig(path=str(directory.with_name("tokenizer"))),
        ),
        model=dataclasses.replace(CONFIG, **MARIAN),
        decoder=DecoderConfig(layers=3),
        decoding=DecodingConfig(beam_size=2, max_length="1.0x+3"),
        guidance=GuidanceConfig("loss", heads="next:1", decoder_heads="prev:2", cross_heads="diagonal:1"),
        training=TrainingConfig(batch_size=8, milestones=(0.0,)),
        inspection=InspectionConfig(sentence=TEXT),
    )
    model = workloads.reference_model(config, TOKENIZER)
    params = tiny.params(model, pipeline.empty_batch(config.data, rows=1), seed=len(directory.name))
    run.write(config, epath.Path(directory), TOKENIZER, params)
    return directory


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make models to inspect.

    A guided run, its Hugging Face export, an imported run, a comparison of runs, a comparison of suites, a run that
    translates, and its export.
    """
    directory = tmp_path_factory.mktemp("models")
    TOKENIZER.save(directory / "tokenizer")
    config = ExperimentConfig(
        data=DataConfig(sequence_length=16, tokenizer=TokenizerConfig(path=str(directory / "tokenizer"))),
        model=CONFIG,
        guidance=GuidanceConfig("loss", heads="next:1"),
        training=TrainingConfig(batch_size=8),
    )
    model = workloads.reference_model(config, TOKENIZER)
    batch = {
        name: np.ones((1, 6), np.int32)
        for name in ("tokens", "original", "segment_ids", "token_type_ids", "masked_positions")
    }
    run.write(config, epath.Path(directory / "run"), TOKENIZER, tiny.params(model, batch))
    save_translation(directory / "translation")
    exporting.convert(epath.Path(directory / "translation"), None, str(directory / "marian"))
    for name, loss in (("ag-seed0", 2.5), ("mlm-seed0", 2.75), ("mlm-seed1", None)):
        copied = shutil.copytree(directory / "run", directory / "compared" / name)
        if loss:
            (copied / "summary.json").write_text(json.dumps(SUMMARY | {"validation_loss": loss}))
    (directory / "compared" / "report.json").write_text('{"arms": {"mlm": {}, "ag": {}}, "seeds": [0, 1]}')
    exporting.convert(epath.Path(directory / "run"), None, str(directory / "hf"))
    (shutil.copytree(directory / "run", directory / "imported") / origin.FILE).write_text('{"model_type": "roberta"}')

    for arm, scores in (("plain", (0.5, 0.75)), ("asa", (0.625, 0.5))):
        suite = save_suite(directory / "arms" / arm, "rte", "sst2", "stsb")
        for seed, score in enumerate(scores):
            save_trial(suite / "sst2" / f"lr1e-05-bs8-seed{seed}", score, seed)
    save_trial(directory / "arms" / "plain" / "stsb" / "lr1e-05-bs8-seed5", 0.9, 5, "pearson")
    (directory / "arms" / "report.json").write_text('{"arms": ["plain", "asa"], "seeds": [0, 1]}')
    return directory


def request(place, text=TEXT, target=None, without=(), **more):
    return cli.Request(None, {}, workdir=str(place), step=None, text=text, translation=target, without=without, **more)


def inspect(place, capsys, target=None, count=3, without=()):
    """Run `inspect`; return its output, its warnings and the paths of the figures, of which there must be `count`."""
    status = cli.run_safely("inspect", request(place, target=target, without=without))
    said, warned = capsys.readouterr()
    assert status == 0, warned
    drawn = [epath.Path(line.removeprefix("drawn: ")) for line in said.splitlines() if line.startswith("drawn: ")]
    assert len(drawn) == count and all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    return said, warned, drawn


@pytest.mark.parametrize(
    ("place", "found", "said", "length"),
    [
        ("run", "run", "step 0 of {}", 16),
        ("imported", "imported", "step 0 of {}", 24),
        ("hf", "hf", "{}", 24),
        ("compared", "compared/ag-seed0", "step 0 of {} (the lowest validation loss of 2 runs, 2.500)", 16),
        ("arms/asa/sst2/lr1e-05-bs8-seed1", "arms/asa/sst2/lr1e-05-bs8-seed1", "{}", 24),
        (
            "arms/plain",
            "arms/plain/sst2/lr1e-05-bs8-seed1",
            "{} (the best accuracy of 2 trials of sst2 with weights, 0.7500; for stsb add the task to --workdir)",
            24,
        ),
        (
            "arms/plain/stsb",
            "arms/plain/stsb/lr1e-05-bs8-seed5",
            "{} (the best pearson of one trial of stsb with weights, 0.9000)",
            24,
        ),
        (
            "arms/asa",
            "arms/asa/sst2/lr1e-05-bs8-seed0",
            "{} (the best accuracy of 2 trials of sst2 with weights, 0.6250)",
            24,
        ),
        (
            "arms",
            "arms/plain/sst2/lr1e-05-bs8-seed1",
            "{} (the best accuracy of 4 trials of sst2 with weights, 0.7500)",
            24,
        ),
    ],
)
def test_every_directory_is_opened_at_its_own_length(places, place, found, said, length):
    opened = best.open_for_inspection(str(places / place))
    assert (opened.directory, opened.length) == (places / found, length)
    assert opened.description == said.format(places / found)
    is_run = place in ("run", "imported", "compared")
    assert (opened.step, opened.assignment) == ((0, Assignment((("next", 1),))) if is_run else (None, Assignment()))


@pytest.mark.parametrize("kind", [str, pathlib.Path, epath.Path])
def test_every_function_takes_a_path_as_text_too(kind, tmp_path):
    """The error of a directory that is not there is about the directory, not about the type of its name."""
    missing, other = kind(tmp_path / "absent"), kind(tmp_path / "other")
    names = ("fill_mask", "embed", "classify", "choose", "tag", "answer", "translate")
    functions = [getattr(pipelines, name) for name in names]
    functions += [run.open_run, run.evaluate, run.best_step, best.open_for_inspection, opening.open_encoder]
    functions += [heads.ablate, importing.open_model, importing.open_finetuned]
    functions += [lambda path: importing.convert(path, other), lambda path: exporting.convert(path, None, other)]
    for function in functions:
        with pytest.raises((FileNotFoundError, ValueError), match=re.escape(str(missing))):
            function(missing)
    assert best.find(missing) is None and best.resolve(missing) == str(missing) and run.read_summary(missing) is None


def test_what_is_opened_is_shown_in_a_line(places):
    """A notebook shows it: where it is, its step and its size, without its arrays."""
    opened, translation = best.open_for_inspection(places / "run"), best.open_for_inspection(places / "translation")
    attention = looking.look(opened, TEXT).shown[0][0]
    trial = finetuned.load(places / "arms/asa/sst2/lr1e-05-bs8-seed1")
    of_run = run.open_run(places / "run")
    for one in (opened, of_run, translation, translation.translator, attention, trial):
        assert "\n" not in repr(one) and len(repr(one)) < 700
    for one in (opened, of_run):
        numbers = sum(leaf.size for leaf in jax.tree.leaves(of_run.params))
        assert (
            f"'{places / 'run'}'" in repr(one)
            and "step=0" in repr(one)
            and f"params=<{numbers:,} numbers>" in repr(one)
        )
        assert f"<{CONFIG.layers} layers of {CONFIG.heads} heads, width {CONFIG.width}>" in repr(one)
    assert f"weights_NHQK=float32{list(attention.weights_NHQK.shape)}" in repr(attention)


@pytest.mark.parametrize("place", ["run", "arms/asa/sst2/lr1e-05-bs8-seed1", "hf"])
def test_the_parameters_are_those_of_the_encoder(places, place):
    source = finetuned.load(places / place) if place.startswith("arms") else run.open_run(places / "run")
    ours, theirs = (of.params["encoder"]["layers"] for of in (best.open_for_inspection(places / place), source))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_config_that_was_changed_after_the_training_is_refused(places, tmp_path):
    changed = tmp_path / "run"
    shutil.copytree(places / "run", changed)
    settings = json.loads((changed / "config.json").read_text())
    settings["model"]["layers"] += 1
    (changed / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ValueError,
        match=r"run/config.json has other settings .*\n  model.layers: there 2, now 3",
    ):
        run.open_run(changed)


def test_figures_of_a_hugging_face_model_are_beside_the_user(places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(places.joinpath("hf").iterdir())
    said, warned, drawn = inspect(places / "hf", capsys)
    assert "for 22 tokens\n" in said and "cannot write" not in warned
    assert sorted(places.joinpath("hf").iterdir()) == before
    assert {path.parent for path in drawn} == {epath.Path("ag-jax-output/hf/figures")}


def test_a_pair_has_tables_and_figures_of_three_kinds(places, capsys):
    said, _, drawn = inspect(places / "translation", capsys, "we build the union", count=9)
    assert said.startswith(
        f"step 0 of {places / 'translation'}\ntext: {TEXT}\ntranslation, as given: we build the union\n"
    )
    kinds = [line.partition(":")[0] for line in said.splitlines() if "attention mass on the patterns' targets" in line]
    assert kinds == ["Encoder", "Decoder", "Cross-attention"]
    words = len(TOKENIZER.encode("we build the union"))
    assert f"for {1 + words} tokens that the decoder reads and 16 of the source (5 more were cut off)\n" in said
    guided = [line.split().count("guided") for line in said.splitlines() if "guided" in line]
    heads = [line.split()[1:3] for line in said.splitlines() if re.match(" *layer +heads? ", line)]
    assert guided == [1, 1, 1] and heads == [["head", "1"], ["heads", "1-2"], ["head", "1"]]
    names = [
        f"attention_{kind}{name}_step0.png"
        for kind in ("", "decoder_", "cross_")
        for name in ("overview", "heads", "mass")
    ]
    assert [path.name for path in drawn] == names


def test_the_translation_is_by_default_the_models_own(places, monkeypatch, capsys):
    """As the run decodes, of as much of the text as is shown."""
    shown, opened = [], best.open_for_inspection(places / "translation")
    honest = pairs.pair_maps
    monkeypatch.setattr(
        pairs, "pair_maps", lambda *given, **more: shown.append((given, honest(*given, **more))) or shown[-1][1]
    )
    monkeypatch.setattr(plots, "save_inspection", lambda *given: [])
    assert cli.run_safely("inspect", request(places / "translation", text=None)) == 0
    ((given, found),) = shown
    beginning = " ".join(TEXT.split()[:15])
    assert found.encoder.ids_L.tolist() == [*TOKENIZER.encode(beginning), TOKENIZER.specials.end]
    ((own, *_),) = opened.translator([beginning])
    assert own.text and given[4] == own.text != opened.translator([TEXT])[0][0].text
    assert f"translation, by this model: {own.text}\n" in capsys.readouterr().out
    assert opened.translator.config.beam_size == 2
    assert opened.translator.beginning(TEXT, 1000).text == opened.translator([TEXT])[0][0].text
    assert opened.translator.beginning(" ", 5).text == ""


def test_spaces_around_a_text_are_not_translated(places, monkeypatch):
    """As by `Translator`, to whose tokenizer they may be tokens."""
    translator = best.open_for_inspection(places / "translation").translator
    encoded = []
    monkeypatch.setattr(translator.tokenizer, "encode", lambda text: encoded.append(text) or [])
    translator.beginning(" good \n", 9)
    assert encoded == ["good"]


def test_a_translation_model_in_the_files_of_transformers(places):
    """The export of a run, which has the run's maps; it is shown at the length of its positions."""
    opened = [best.open_for_inspection(places / name) for name in ("translation", "marian")]
    assert [one.is_ours for one in opened] == [True, False] and [one.length for one in opened] == [16, 24]
    found = [
        pairs.pair_maps(one.translator.model, one.translator.params, one.tokenizer, TEXT, "we build the union", 16)
        for one in opened
    ]
    for ours, theirs in zip(*found, strict=True):
        assert ours.tokens == theirs.tokens and ours.row_tokens == theirs.row_tokens
        np.testing.assert_allclose(ours.weights_NHQK, theirs.weights_NHQK, atol=1e-6)


def numbers(said):
    """The rows of a table of attention mass, by layer."""
    rows = [line.split() for line in said.splitlines()]
    return {row[0]: row[1:] for row in rows if row and row[0].isdigit()}


def test_heads_whose_outputs_are_zeroed(places, tmp_path, capsys):
    place = shutil.copytree(places / "run", tmp_path / "run")
    whole, _, ordinary = inspect(place, capsys)
    before = {path: path.read_bytes() for path in ordinary}
    said, _, drawn = inspect(place, capsys, without=["1.2", " 1.1", "1.2"])
    title = "Encoder, output of heads 1.1, 1.2 of the encoder zeroed: attention mass on the patterns' targets, for 16 "
    assert title in said and "zeroed" not in whole
    assert numbers(said)["1"] == numbers(whole)["1"] and numbers(said)["2"] != numbers(whole)["2"]
    assert [path.name for path in drawn] == [
        f"attention_{name}_step0_without1.1+1.2.png" for name in ("overview", "heads", "mass")
    ]
    assert {path: path.read_bytes() for path in ordinary} == before


def test_a_zeroed_head_equals_an_output_kernel_of_zeros(places, monkeypatch, capsys):
    """For a text and its translation, whose three kinds of attention all depend on the encoder."""
    shown, opened = [], best.open_for_inspection(places / "translation")
    monkeypatch.setattr(plots, "save_inspection", lambda maps, *given: shown.append(maps) or [])
    given = request(places / "translation", target="we build the union", without=["2.1"])
    assert cli.run_safely("inspect", given) == 0
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.splitlines() if "zeroed" in line] == [
        f"{kind}, output of head 2.1 of the encoder zeroed" for kind in ("Encoder", "Decoder", "Cross-attention")
    ]
    params = jax.tree.map(np.array, opened.translator.params)
    settings = (opened.tokenizer, TEXT, "we build the union", opened.length)
    whole = pairs.pair_maps(opened.translator.model, params, *settings)
    params["encoder"]["layers"]["attention"]["output"]["kernel"][1, 0] = 0.0
    for found, edited in zip(shown, pairs.pair_maps(opened.translator.model, params, *settings), strict=True):
        np.testing.assert_allclose(found.weights_NHQK, edited.weights_NHQK, atol=1e-6)
    np.testing.assert_allclose(shown[0].weights_NHQK, whole.encoder.weights_NHQK, atol=1e-6)
    assert np.abs(shown[2].weights_NHQK - whole.cross.weights_NHQK).max() > 1e-3


@pytest.mark.parametrize("place", ["run", "translation"])
def test_attention_that_is_not_finite_is_refused(places, monkeypatch, capsys, place):
    opened = best.open_for_inspection(places / place)
    params = jax.tree.map(np.array, opened.params)
    params["encoder"]["layers"]["attention"]["query"]["kernel"][1] = np.nan
    changes = {"params": params}
    if opened.translator is not None:
        changes["translator"] = dataclasses.replace(opened.translator, params=params)
    monkeypatch.setattr(best, "open_for_inspection", lambda *_, **__: dataclasses.replace(opened, **changes))
    target = None if place == "run" else "we build the union"
    assert cli.run_safely("inspect", request(places / place, target=target)) == 1
    message = f"Encoder of {opened.name}: the attention is not finite in layer 2"
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["1.3"], "--without=1.3: expected heads LAYER.HEAD from 1.1 to 2.2, got '1.3'"),
        (["1.1", "0.1"], "--without=1.1,0.1: expected heads LAYER.HEAD from 1.1 to 2.2, got '0.1'"),
        (["3.1"], "got '3.1'"),
        (["1"], "got '1'"),
        (["1.1.1"], "got '1.1.1'"),
        (["1.-1"], "got '1.-1'"),
        ([""], "got ''"),
    ],
)
def test_heads_that_cannot_be_zeroed(places, names, message, capsys):
    assert cli.run_safely("inspect", request(places / "run", without=names)) == 1
    said, warned = capsys.readouterr()
    assert message in warned and not said


def draw(place, monkeypatch, capsys, **chosen):
    """Run `inspect` without drawing; return (kind, step, layers, heads, caption) of the figures of each kind."""
    drawn = []
    monkeypatch.setattr(
        plots,
        "save_inspection",
        lambda maps, _, __, ___, step, layers, heads: (
            drawn.append((maps.kind, step, layers, heads, maps.caption)) or []
        ),
    )
    status = cli.run_safely("inspect", request(place, **chosen))
    return drawn, status, capsys.readouterr()


def test_layers_and_heads_of_the_figures(places, monkeypatch, capsys):
    ((_, _, layers, heads, caption),), status, _ = draw(places / "run", monkeypatch, capsys, layers=["2", "1", "2"])
    assert (status, layers, heads) == (0, (0, 1), ())
    assert caption[0] == f"Encoder: {places.name}/run, step 0" and caption[1] == f"(16 of 22 tokens) {TEXT}"
    ((_, _, layers, heads, _),), _, _ = draw(places / "run", monkeypatch, capsys, layers=["all"])
    assert (layers, heads) == ((0, 1), ())
    ((_, _, layers, heads, _),), _, _ = draw(places / "run", monkeypatch, capsys, heads=["2.1"])
    assert (layers, heads) == (None, ((1, 0),))
    found, _, _ = draw(places / "translation", monkeypatch, capsys, target="we build")
    assert [(kind, layers, heads) for kind, _, layers, heads, _ in found] == [
        (kind, None, ()) for kind in ("encoder", "decoder", "cross")
    ]
    assert [caption[1] for *_, caption in found] == [
        f"(16 of 21 tokens) {TEXT}",
        "we build",
        f"(19 of 24 tokens) {TEXT} → we build",
    ]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"layers": ["3"]}, "--layers=3: expected layers from 1 to 2, or all, got '3'"),
        ({"layers": ["0"]}, "got '0'"),
        ({"layers": ["1", "all"]}, "got 'all'"),
        ({"heads": ["3.1"]}, "--heads=3.1: expected heads LAYER.HEAD from 1.1 to 2.2, got '3.1'"),
        ({"heads": ["2"]}, "--heads=2: expected heads LAYER.HEAD from 1.1 to 2.2, got '2'"),
        (
            {"layers": ["1"], "heads": ["1.1"]},
            "leave out --layers or --heads, because --heads=LAYER.HEAD has the layers",
        ),
        ({"layers": ["1"], "html": "a.html"}, "leave out --layers or --html, because a page shows all layers"),
    ],
)
def test_layers_and_heads_that_do_not_exist(places, monkeypatch, capsys, chosen, message):
    drawn, status, (said, warned) = draw(places / "run", monkeypatch, capsys, **chosen)
    assert status == 1 and message in warned and not said and not drawn


def test_of_every_kind_the_chosen_heads_that_it_has():
    assert restrict(Chosen(heads=("5.2", "1.3")), [(6, 4), (2, 4), (2, 2)]) == [
        (None, ((0, 2), (4, 1))),
        (None, ((0, 2),)),
        (None, ()),
    ]
    assert restrict(Chosen(layers=("5", "1")), [(6, 4), (2, 4)]) == [((0, 4), ()), ((0,), ())]


def test_names_of_figures_are_short_and_distinct():
    many = [tuple((layer, head) for layer in range(12) for head in range(start, 12)) for start in (0, 1)]
    names = [plots.file_suffix(100, heads) for heads in ((), ((2, 1),), *many)]
    assert names[:2] == ["_step100", "_step100_without3.2"] and names[2].startswith("_step100_without_144_heads_")
    assert len(set(names)) == 4 and max(map(len, names)) < 60
    assert plots.file_suffix(None, ()) == ""


@pytest.mark.parametrize(
    ("place", "target", "message"),
    [
        ("run", "we build", "--target is for models that translate, and .*run does not: leave --target out"),
        ("hf", "we build", "--target is for models that translate, and .*hf does not"),
    ],
)
def test_targets_that_cannot_be_shown(places, place, target, message, capsys):
    assert cli.run_safely("inspect", request(places / place, target=target)) == 1
    said, warned = capsys.readouterr()
    assert re.search(message, warned) and not said


def test_a_report_draws_the_same_translation_for_all_arms(places, tmp_path, monkeypatch):
    runs = {"base": epath.Path(places / "translation"), "ag": epath.Path(save_translation(tmp_path / "another"))}
    shown, honest = [], plots.mean_figure
    monkeypatch.setattr(plots, "mean_figure", lambda maps, *given: shown.append(maps) or honest(maps, *given))
    for name in ("loss_curves", "mass_curves", "map_figure"):
        monkeypatch.setattr(plots, name, lambda *given, **settings: epath.Path("another.png"))
    patterns = []
    monkeypatch.setattr(plots, "pattern_figure", lambda tokens, targets, path, text: patterns.append(targets) or path)
    with_configs = {arm: (place, run.read_config(place)) for arm, place in runs.items()}
    results = [ArmResults(arm, [], [[]], {}) for arm in runs]
    report = comparison._figures(
        tmp_path, with_configs, results, SimpleNamespace(tokenizer=TOKENIZER), Plateau(5.0, {})
    )
    *_, drawn, page = report
    assert [list(of_figure) for of_figure in patterns] == [["next"]]  # that guides heads of the encoder
    assert drawn == ("Cross-attention to the sentence, translated by base", "figures/cross_attention.png")
    assert (tmp_path / drawn[1]).read_bytes().startswith(b"\x89PNG")
    assert page == ("All heads, as a page to open in a browser", "figures/maps.html")
    assert [view["name"] for view in views_of(tmp_path / page[1])] == ["base, step 0", "ag, step 0"]

    (maps,) = shown
    own = best.open_for_inspection(runs["base"]).translator.beginning(TEXT, 15).text
    tokens = TOKENIZER.tokens(TOKENIZER.encode(own)[:15])
    assert [one.kind for one in maps.values()] == ["cross", "cross"]
    assert all(list(one.row_tokens[1:]) == tokens and len(one.tokens) == 16 for one in maps.values())
    assert np.abs(maps["base"].weights_NHQK - maps["ag"].weights_NHQK).max() > 0.01


def edit(path, change):
    """Apply `change` to the content of a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def attack_run(directory, method):
    opened = run.open_run(directory)
    shutil.rmtree(directory)
    config = dataclasses.replace(opened.config, adversarial=AdversarialConfig(method))
    run.write(config, epath.Path(directory), TOKENIZER, opened.params)
    return directory


def attack_suite(directory, method):
    edit(directory / "config.json", lambda values: values["tasks"]["sst2"]["adversarial"].update(method=method))
    return directory / "sst2" / "lr1e-05-bs8-seed1"


def test_attention_under_an_attack_on_embeddings(places, tmp_path, monkeypatch, capsys):
    """Of a run, whose loss needs masked tokens, and of a trial, whose loss needs a label."""
    monkeypatch.setattr(plots, "save_inspection", lambda *given: [])
    place = attack_run(shutil.copytree(places / "run", tmp_path / "run"), "freelb")
    said, _, (drawn,) = inspect(place, capsys, count=1)
    assert drawn.name == "attention_attacked_step0.png"
    _, table = said.split("Attack freelb: Jensen-Shannon divergence (base 2")
    found = {line.split()[0]: float(line.split()[1]) for line in table.splitlines() if re.match(r" *(1|2|mean) ", line)}
    assert found.keys() == {"1", "2", "mean"} and 0 < found["mean"] < 1
    (read,) = re.findall(r"a copy of the text with masked tokens, as in training.\n(.*)", table)
    assert TOKENIZER.tokens([TOKENIZER.specials.mask])[0] in read.split()

    place = attack_suite(shutil.copytree(places / "arms" / "asa", tmp_path / "suite"), "smart")
    said, _, (drawn,) = inspect(place, capsys, count=1)
    assert drawn.name == "attention_attacked.png" and "Attack smart: Jensen-Shannon" in said


@pytest.mark.parametrize(
    ("method", "reason"), [("bernoulli", "drawn by a rule"), ("asa", "the adversary was not saved with the model")]
)
def test_attacks_that_cannot_be_shown(places, tmp_path, method, reason):
    place = attack_suite(shutil.copytree(places / "arms" / "asa", tmp_path / "suite"), method)
    opened = best.open_for_inspection(epath.Path(place))
    assert opened.attack is None and reason in opened.no_attack
    if method == "bernoulli":
        opened = best.open_for_inspection(
            epath.Path(attack_run(shutil.copytree(places / "run", tmp_path / "run"), method))
        )
        assert opened.attack is None and reason in opened.no_attack


def test_a_model_without_steps_and_directories_without_a_model(places, tmp_path):
    with pytest.raises(ValueError, match="step=3 selects a checkpoint of a run"):
        best.open_for_inspection(places / "hf", 3)
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"{directory} is no model: expected the directory of a run"):
            best.open_for_inspection(directory)
    with pytest.raises(
        FileNotFoundError, match="no finished trial of .*suite has saved its weights.*--config.keep=best"
    ):
        best.open_for_inspection(save_suite(tmp_path / "suite", "sst2"))
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(ValueError, match="report.json: expected a JSON object"):
        best.open_for_inspection(tmp_path)


@pytest.fixture
def read_only(monkeypatch):
    """Return a list; directories added to it are read-only for all ways in which results are written."""
    closed = []

    def closing(write):
        def guarded(path, *rest, **more):
            if any(directory in (path, *path.parents) for directory in closed):
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return write(path, *rest, **more)

        return guarded

    local = type(epath.Path("."))
    for name in ("mkdir", "write_text", "write_bytes"):
        monkeypatch.setattr(local, name, closing(getattr(local, name)))
    return closed


def evaluate(place, monkeypatch, capsys):
    """Run `evaluate` with invented numbers; return its status, output and warnings."""
    monkeypatch.setattr(run, "evaluate", lambda workdir, step: {"step": 0, "mlm_loss": 2.5})
    return cli.run_safely("evaluate", cli.Request(None, {}, str(place), None, None)), *capsys.readouterr()


def test_a_read_only_run_is_inspected_and_evaluated(places, tmp_path, monkeypatch, capsys, read_only):
    """Results of a read-only run are printed, and files are written to another directory."""
    monkeypatch.chdir(tmp_path)
    read_only.append(places / "run")
    said, warned, drawn = inspect(places / "run", capsys)
    assert (
        said.startswith(f"step 0 of {places / 'run'}\n")
        and "for 16 tokens (6 more were cut off)" in said
        and "guided" in said
    )
    assert {path.parent for path in drawn} == {epath.Path("ag-jax-output/run/figures")}
    assert f"cannot write to {places / 'run'}" in warned and "the files are in ag-jax-output/run" in warned

    status, said, warned = evaluate(places / "run", monkeypatch, capsys)
    assert status == 0 and json.loads(said) == {"step": 0, "mlm_loss": 2.5}
    assert (tmp_path / "ag-jax-output" / "run" / "evaluation.json").read_text() == said
    assert "the files are in ag-jax-output/run" in warned


def test_a_current_directory_that_is_read_only_too(places, tmp_path, monkeypatch, capsys, read_only):
    monkeypatch.chdir(tmp_path)
    read_only += [places / "run", epath.Path("ag-jax-output")]
    status, said, warned = evaluate(places / "run", monkeypatch, capsys)
    place = epath.Path(warned.strip().rpartition(" ")[2])
    assert status == 0 and (place / "evaluation.json").read_text() == said
    shutil.rmtree(place)


def test_results_are_printed_even_if_nothing_can_be_written(places, tmp_path, monkeypatch, capsys, read_only):
    monkeypatch.chdir(tmp_path)
    read_only += [places, epath.Path("ag-jax-output"), tmp_path]
    monkeypatch.setattr(storage.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    status, said, warned = evaluate(places / "run", monkeypatch, capsys)
    assert status == 1 and json.loads(said)["mlm_loss"] == 2.5 and "Read-only file system" in warned


def views_of(path):
    """The views of a page."""
    (meta,) = re.findall(r'id="meta">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(meta)["views"]


def page(place, path, capsys, **more):
    """Write a page of `inspect`; return its views."""
    status = cli.run_safely("inspect", request(place, html=str(path), **more))
    said, warned = capsys.readouterr()
    assert status == 0, warned
    assert said.endswith(f"written, to open in a browser: {path}\n") and "attention mass on the patterns" in said
    return views_of(path)


def test_a_page_in_place_of_figures(places, tmp_path, capsys):
    place = shutil.copytree(places / "run", tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    (view,) = page(place, tmp_path / "new" / "maps.html", capsys)
    assert not (place / "figures").exists()
    assert (view["name"], view["step"], view["kind"], len(view["columns"])) == ("run, step 0", 0, "Encoder", 16)
    assert view["guided"] == [["next", *[None] * (view["heads"] - 1)]] * view["layers"] and view["special"] == [0, 15]
    opened = best.open_for_inspection(place)
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, TEXT, 16)
    masses = maps.attention_mass(attention, opened.special, opened.assignment)
    assert view["targets"].keys() == masses.keys()
    for name, mass_NH in masses.items():
        found = np.array(view["targets"][name]["mass"], float)
        np.testing.assert_allclose(found, mass_NH, rtol=1e-3)
    # Written again over an earlier page, but over nothing else.
    page(place, tmp_path / "new" / "maps.html", capsys)
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    assert cli.run_safely("inspect", request(place, html=str(tmp_path / "mine.html"))) == 1
    assert "exists and was not written by `ag-jax inspect`" in capsys.readouterr().err
    assert cli.run_safely("inspect", request(place, html=str(tmp_path))) == 1
    assert f"Is a directory: '{tmp_path}'" in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


def test_a_page_of_several_models_and_steps(places, tmp_path, capsys):
    other = shutil.copytree(places / "run", tmp_path / "run")
    more = {"against": [str(other), str(places / "hf")], "steps": ["all"], "heads": ["2.1"]}
    found = page(places / "run", tmp_path / "maps.html", capsys, **more)
    assert [view["name"] for view in found] == [
        f"{places.name}/run, step 0",
        f"{tmp_path.name}/run, step 0",
        f"{places.name}/hf",
    ]
    assert [view["model"] for view in found] == [f"{places.name}/run", f"{tmp_path.name}/run", f"{places.name}/hf"]
    for wrong, message in (
        ({"steps": ["7"]}, "there is no checkpoint of step 7; the run has 0"),
        ({"heads": ["9.1"]}, "--heads=9.1: expected heads LAYER.HEAD from 1.1 to 2.2, got '9.1'"),
        ({"against": [str(tmp_path / "absent")]}, "absent is no model"),
    ):
        assert cli.run_safely("inspect", request(places / "run", html=str(tmp_path / "b.html"), **wrong)) == 1
        assert message in capsys.readouterr().err and not (tmp_path / "b.html").exists()
    assert cli.run_safely("inspect", request(places / "hf", html=str(tmp_path / "b.html"), steps=["all"])) == 1
    assert "selects checkpoints of a run, but" in capsys.readouterr().err
    assert cli.run_safely("inspect", request(places / "run", steps=["all"])) == 1
    assert "give --html=FILE, too" in capsys.readouterr().err


def test_heads_of_a_page_that_another_model_lacks():
    """They are known before anything is drawn; a decoder with fewer layers stores those that it has."""
    shallow = dataclasses.replace(CONFIG, layers=1)
    other = SimpleNamespace(model=SimpleNamespace(config=shallow), directory="shallow")
    seen = SimpleNamespace(opened=SimpleNamespace(model=SimpleNamespace(config=CONFIG), directory="deep"))
    page = pages.Page("m.html", lambda directory, step: other, against=["shallow"])
    with pytest.raises(ValueError, match=r"--without=2.1: expected heads .* --against=shallow has only 1 layers of"):
        pages.make_views(page, seen, TEXT, ((0, 1), (1, 0)))
    view = views.view()  # 2 layers of 3 heads
    assert pages._heads_of(view, ((0, 0), (1, 3), (1, 2), (4, 1))) == ((0, 0), (1, 2))
    assert pages._heads_of(view, None) is None


def test_a_page_of_a_translation(places, tmp_path, capsys):
    found = page(places / "translation", tmp_path / "maps.html", capsys, target="we build the union")
    assert [view["kind"] for view in found] == ["Encoder", "Decoder", "Cross-attention"]
    assert [view["causal"] for view in found] == [False, True, False]
    assert found[1]["columns"] == found[2]["rows"] and found[2]["columns"] == found[0]["columns"]


def test_a_page_of_an_attacked_model(places, tmp_path, capsys):
    """Whose attack reads a copy of the text with masked tokens."""
    place = attack_run(shutil.copytree(places / "run", tmp_path / "run"), "freelb")
    plain, without, attacked = page(place, tmp_path / "maps.html", capsys)
    assert (without["name"], attacked["name"]) == (
        "run, step 0, without the attack",
        "run, step 0, with the attack",
    )
    assert without["columns"] == attacked["columns"] != plain["columns"] and "masked tokens" in attacked["note"]
    assert "hiddenHeads" not in attacked  # it perturbs embeddings
    parts = {re.search(r"\b16 of [0-9]+ tokens", view["note"])[0] for view in (plain, without, attacked)}
    assert len(parts) == 1  # the text was cut in all of them


@pytest.mark.parametrize(("given", "page"), [(["--html"], "maps.html"), (["--html=a.html"], "a.html")])
def test_the_flag_of_a_page_needs_no_value(given, page):
    for rest in ([], ["--workdir=x"]):
        _, fields = verbs.parse(["inspect", *given, *rest])
        assert fields["html"] == page
    assert verbs.parse(["inspect", "--html", "b.html"])[1]["html"] == "b.html"

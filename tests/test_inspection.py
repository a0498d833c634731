"""`inspect` opens every kind of model at its own length, and saves its figures elsewhere in read-only directories."""

import dataclasses
import errno
import json
import re
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.analysis import maps, pairs
from ag_jax.analysis.figures import canvas, plots
from ag_jax.analysis.figures.curves import Plateau
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.config import GuidanceConfig
from ag_jax.command_line import cli, parser
from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.distributed import storage
from ag_jax.finetuning import best
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.task_training import make_head
from ag_jax.inspection import pages
from ag_jax.inspection.heads import Chosen, restrict
from ag_jax.interop import exporting, finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.pretraining import comparison, initial_weights, origin, run, run_directory, workloads
from ag_jax.pretraining.config import ExperimentConfig, InspectionConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.pretraining.report import ArmResults
from ag_jax.settings import schema
from ag_jax.training.config import TrainingConfig
from tests import results as stored
from tests import tiny
from tests.finetuning import tasks
from tests.verbs import verb_of

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
    stored.write(directory, done | {"metrics": {metric: score}})
    return directory


def save_suite(directory, *names):
    """Write a suite without trials; return its directory."""
    directory.mkdir(parents=True)
    recipe = Recipe(learning_rates=(1e-5,), batch_sizes=(8,))
    config = FinetuningConfig(checkpoint="x", tasks=dict.fromkeys(names, recipe), seeds=(0, 1, 5))
    (directory / "config.json").write_text(json.dumps(schema.to_dict(config)))
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
    initial_weights.write(config, epath.Path(directory), TOKENIZER, params)
    return directory


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A guided run, its Hugging Face export, an imported run, comparisons of runs and of suites, a run that translates,
    and its export.
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
    names = ("tokens", "original", "segment_ids", "token_type_ids", "masked_positions")
    params = tiny.params(model, {name: np.ones((1, 6), np.int32) for name in names})
    initial_weights.write(config, epath.Path(directory / "run"), TOKENIZER, params)
    save_translation(directory / "translation")
    exporting.convert(epath.Path(directory / "translation"), None, str(directory / "marian"))
    for name, loss in (("ag-seed0", 2.5), ("plain-seed0", 2.75), ("plain-seed1", None)):
        copied = shutil.copytree(directory / "run", directory / "compared" / name)
        if loss:
            stored.write(copied, SUMMARY | {"validation_loss": loss})
    (directory / "compared" / "report.json").write_text('{"arms": {"plain": {}, "ag": {}}, "seeds": [0, 1]}')
    exporting.convert(epath.Path(directory / "run"), None, str(directory / "hf"))
    (shutil.copytree(directory / "run", directory / "imported") / origin.FILE).write_text('{"model_type": "roberta"}')

    for arm, scores in (("plain", (0.5, 0.75)), ("asa", (0.625, 0.5))):
        suite = save_suite(directory / "arms" / arm, "rte", "sst2", "stsb")
        for seed, score in enumerate(scores):
            save_trial(suite / "sst2" / f"lr1e-05-bs8-seed{seed}", score, seed)
    save_trial(directory / "arms" / "plain" / "stsb" / "lr1e-05-bs8-seed5", 0.9, 5, "pearson")
    (directory / "arms" / "report.json").write_text('{"arms": ["plain", "asa"], "seeds": [0, 1]}')
    return directory


@pytest.fixture
def drawn(monkeypatch):
    """A list to which `inspect` appends (maps, layers, heads) of the figures of each kind, which it does not draw."""
    recorded = []

    def save(maps, assignment, special, folder, step, layers, heads, text):
        recorded.append((maps, layers, heads))
        name = f"{maps.kind}{plots.file_suffix(step, maps.without, text)}.png"
        (folder / name).write_bytes(b"\x89PNG")
        return [folder / name]

    monkeypatch.setattr(plots, "save_inspection", save)
    monkeypatch.setattr(plots, "draw_attack", lambda *given: None)
    monkeypatch.setattr(plots, "save", lambda figure, path: path.write_bytes(b"\x89PNG") and path)
    return recorded


def request(name, place, text=TEXT, target=None, without=(), **more):
    return verb_of(name, workdir=str(place), text=text, target=target, without=without, **more)


def inspect(place, capsys, **given):
    """Run `inspect`; return its output, its warnings and the paths of the figures."""
    status = cli.run_safely(request("inspect", place, **given))
    said, warned = capsys.readouterr()
    assert status == 0, warned
    paths = [
        epath.Path(line.removeprefix("drawn: file://")) for line in said.splitlines() if line.startswith("drawn: ")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    return said, warned, paths


@pytest.mark.parametrize(
    ("place", "found", "named", "length"),
    [
        ("run", "run", ["step 0 of"], 16),
        ("imported", "imported", ["step 0 of"], 24),
        ("hf", "hf", [], 24),
        ("compared", "compared/ag-seed0", ["step 0 of", "validation loss of 2 runs, 2.500"], 16),
        ("arms/asa/sst2/lr1e-05-bs8-seed1", "arms/asa/sst2/lr1e-05-bs8-seed1", [], 24),
        ("arms/plain", "arms/plain/sst2/lr1e-05-bs8-seed1", ["accuracy of 2 trials of sst2", "0.7500; for stsb"], 24),
        ("arms/plain/stsb", "arms/plain/stsb/lr1e-05-bs8-seed5", ["pearson of one trial of stsb", "0.9000"], 24),
        ("arms/asa", "arms/asa/sst2/lr1e-05-bs8-seed0", ["2 trials of sst2", "0.6250"], 24),
        ("arms", "arms/plain/sst2/lr1e-05-bs8-seed1", ["4 trials of sst2", "0.7500)"], 24),
    ],
)
def test_every_directory_is_opened_at_its_own_length(places, place, found, named, length):
    opened = best.open_for_inspection(str(places / place))
    assert (opened.directory, opened.length) == (places / found, length)
    assert all(word in opened.description for word in (str(places / found), *named))
    is_run = place in ("run", "imported", "compared")
    assert (opened.step, opened.assignment) == ((0, Assignment((("next", 1),))) if is_run else (None, Assignment()))
    if place.startswith("arms"):
        source = finetuned.load(places / found)
    else:  # an export has the parameters of the run
        source = open_run(places / ("run" if place == "hf" else found))
    ours, theirs = (of.params["encoder"]["layers"] for of in (opened, source))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_config_that_was_changed_after_the_training_is_refused(places, tmp_path):
    changed = shutil.copytree(places / "run", tmp_path / "run")
    edit(changed / "config.json", lambda settings: settings["model"].update(layers=CONFIG.layers + 1))
    with pytest.raises(ValueError, match=r"model.layers: there 2, now 3"):
        open_run(changed)


def test_figures_of_a_hugging_face_model_are_beside_the_user(places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(places.joinpath("hf").iterdir())
    said, warned, paths = inspect(places / "hf", capsys)
    assert "for 22 tokens\n" in said and "cannot write" not in warned
    assert sorted(places.joinpath("hf").iterdir()) == before
    (suffix,) = {path.stem.partition("_we_build_")[2] for path in paths}
    names = [f"attention_{of}_we_build_{suffix}.png" for of in ("overview", "heads", "mass")]
    assert suffix and paths == [tmp_path / "ag-jax-output/hf/figures" / name for name in names]


def test_a_pair_has_tables_figures_and_views_of_three_kinds(places, drawn, tmp_path, capsys):
    said, *_ = inspect(places / "translation", capsys, target="we build the union")
    assert "as given: we build the union\n" in said
    kinds = [line.partition(":")[0] for line in said.splitlines() if "attention mass on the patterns' targets" in line]
    assert kinds == ["Encoder", "Decoder", "Cross-attention"]
    words = len(TOKENIZER.encode("we build the union"))
    assert f"for {1 + words} tokens that the decoder reads and 16 of the source (5 more were cut off)\n" in said
    guided = [line.split().count("guided") for line in said.splitlines() if "guided" in line]
    numbers = [line.split()[1] for line in said.splitlines() if re.match(" *head ", line)]
    assert guided == [1, 1, 1] and numbers == ["0", "0-1", "0"]
    assert [(one.kind, layers, chosen) for one, layers, chosen in drawn] == [
        (kind, None, ()) for kind in ("encoder", "decoder", "cross")
    ]
    parts = [f"(16 of 21 tokens) {TEXT}", "we build the union", f"({17 + words} of {22 + words} tokens) {TEXT} → "]
    assert all(one.caption[1].startswith(part) for (one, *_), part in zip(drawn, parts, strict=True))
    found = page(places / "translation", tmp_path / "maps.html", capsys, target="we build the union")
    assert [(view["kind"], view["causal"]) for view in found] == list(zip(kinds, (False, True, False), strict=True))
    assert found[1]["columns"] == found[2]["rows"] and found[2]["columns"] == found[0]["columns"]
    assert [view["texts"] for view in found] == [["Source"], ["Translation"], ["Source", "Translation"]]
    assert [view["otherTexts"] for view in found] == [
        [["Translation", "we build the union"]],
        [["Source", TEXT]],
        [],
    ]


def test_the_translation_is_by_default_the_models_own(places, drawn, capsys):
    """The run decodes as much of the text as is shown, with its own settings."""
    opened = best.open_for_inspection(places / "translation")
    said, *_ = inspect(places / "translation", capsys, text=None)
    (encoder, decoder, _) = (maps for maps, *_ in drawn)
    beginning = " ".join(TEXT.split()[:15])
    assert encoder.ids_L.tolist() == [*TOKENIZER.encode(beginning), TOKENIZER.specials.end]
    own = opened.translator([beginning])[0][0].text
    assert own and decoder.ids_L[1:].tolist() == TOKENIZER.encode(own)[:15]
    assert f"by this model: {own}\n" in said and opened.translator.config.beam_size == 2
    assert opened.translator.beginning(f" {TEXT}\n", 15).text == own and not opened.translator.beginning(" ", 5).text


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


def test_a_zeroed_head_equals_an_output_kernel_of_zeros(places, drawn, capsys):
    """For a text and its translation, whose three kinds of attention all depend on the encoder."""
    opened = best.open_for_inspection(places / "translation")
    given = {"target": "we build the union", "without": ["1.0", " 1.0"]}
    said, _, paths = inspect(places / "translation", capsys, **given)
    assert said.count("output of head 1.0 of the encoder zeroed") == 3
    assert re.fullmatch("encoder_step0_we_build_strong_[0-9a-f]{4}_without1.0.png", paths[0].name)
    params = jax.tree.map(np.array, opened.translator.params)
    settings = (opened.tokenizer, TEXT, "we build the union", opened.length)
    whole = pairs.pair_maps(opened.translator.model, params, *settings)
    params["encoder"]["layers"]["attention"]["output"]["kernel"][1, 0] = 0.0
    shown = [maps.weights_NHQK for maps, *_ in drawn]
    for found, edited in zip(shown, pairs.pair_maps(opened.translator.model, params, *settings), strict=True):
        np.testing.assert_allclose(found, edited.weights_NHQK, atol=1e-6)
    np.testing.assert_allclose(shown[0], whole.encoder.weights_NHQK, atol=1e-6)
    assert np.abs(shown[2] - whole.cross.weights_NHQK).max() > 1e-3


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
    assert cli.run_safely(request("inspect", places / place, target=target)) == 1
    assert f"{opened.name}: the attention is not finite in layer 1" in capsys.readouterr().err.replace("\n", " ")


PAGE = {"html": "new.html"}


@pytest.mark.parametrize(
    ("place", "given", "named"),
    [
        ("run", {"without": ["0.0", "0.2"]}, "--without=0.0,0.2: .* 0.0 to 1.1, got '0.2'"),
        ("run", {"without": ["2.0"]}, "'2.0'"),
        ("run", {"without": ["1.1.1"]}, "'1.1.1'"),
        ("run", {"layers": ["2"]}, "--layers=2: .* 0 to 1.*'2'"),
        ("run", {"layers": ["1", "all"]}, "'all'"),
        ("run", {"heads": ["2.0"]}, "--heads=2.0: .*'2.0'"),
        ("run", {"layers": ["1"], "heads": ["1.1"]}, "--layers or --heads"),
        ("run", {"layers": ["1"], "html": "a.html"}, "--layers or --html"),
        ("run", {"target": "we build"}, "--target .*run"),
        ("run", PAGE | {"steps": ["7"]}, "step 7; the run has 0"),
        ("run", PAGE | {"heads": ["9.1"]}, "--heads=9.1"),
        ("run", PAGE | {"against": ["absent"]}, "absent"),
        ("hf", PAGE | {"steps": ["all"]}, "--steps=all"),
        ("run", {"steps": ["all"]}, "--html"),
        ("run", {"html": "mine.html"}, "mine.html exists"),
    ],
)
def test_what_cannot_be_shown(places, place, given, named, drawn, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    assert cli.run_safely(request("inspect", places / place, **given)) == 1
    assert re.search(named, capsys.readouterr().err.replace("\n", " ")) and not drawn
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>" and not (tmp_path / "new.html").exists()


@pytest.mark.parametrize(
    ("chosen", "layers", "of_heads"),
    [
        ({"layers": ["1", "0", "1"]}, (0, 1), ()),
        ({"layers": ["all"]}, (0, 1), ()),
        ({"heads": ["1.0"]}, None, ((1, 0),)),
    ],
)
def test_layers_and_heads_of_the_figures(places, drawn, capsys, chosen, layers, of_heads):
    inspect(places / "run", capsys, **chosen)
    ((maps, *found),) = drawn
    assert found == [layers, of_heads]
    assert maps.caption[:2] == (f"Encoder: {places.name}/run, step 0", f"(16 of 22 tokens) {TEXT}")


def test_of_every_kind_the_chosen_heads_that_it_has():
    assert restrict(Chosen(heads=("4.1", "0.2")), [(6, 4), (2, 4), (2, 2)]) == [
        (None, ((0, 2), (4, 1))),
        (None, ((0, 2),)),
        (None, ()),
    ]
    assert restrict(Chosen(layers=("4", "0")), [(6, 4), (2, 4)]) == [((0, 4), ()), ((0,), ())]


def test_names_of_figures_are_short_and_distinct():
    many = [tuple((layer, head) for layer in range(12) for head in range(start, 12)) for start in (0, 1)]
    names = [plots.file_suffix(100, heads) for heads in ((), ((2, 1),), *many)]
    assert names[:2] == ["_step100", "_step100_without2.1"] and plots.file_suffix(None, ()) == ""
    names += [plots.file_suffix(100, (), text) for text in ("We build.", "We build, now.", "道", "路", "x" * 99)]
    assert len(set(names)) == 9 and max(map(len, names)) < 60 and re.fullmatch("[a-z0-9_.]+", "".join(names))


def test_a_report_draws_the_same_translation_for_all_arms(places, tmp_path, monkeypatch):
    runs = {"base": epath.Path(places / "translation"), "ag": epath.Path(save_translation(tmp_path / "another"))}
    shown, drawn = [], []
    monkeypatch.setattr(canvas, "save", lambda figure, path: path)
    monkeypatch.setattr(plots, "draw_means", lambda maps, *given: shown.append(maps))
    monkeypatch.setattr(
        plots, "draw_training", lambda stages, *given: drawn.extend((name, of.names) for name, _, of in stages)
    )
    for name in ("draw_losses", "draw_masses"):
        monkeypatch.setattr(plots, name, lambda *given: None)
    with_configs = {arm: (place, run_directory.read_config(place)) for arm, place in runs.items()}
    results = [ArmResults(arm, [], [[]], {}) for arm in runs]
    sections = comparison._figures(
        tmp_path, with_configs, results, SimpleNamespace(tokenizer=TOKENIZER), Plateau(5.0, {})
    )
    assert drawn == [("base, step 0", ("next",)), ("ag, step 0", ("next",))]  # heads of the encoder
    page, *_, cross = sections["Attention"]
    assert cross.path == "figures/cross_attention.png" and page.startswith("[figures/maps.html](figures/maps.html)")
    assert [view["name"] for view in views_of(tmp_path / "figures" / "maps.html")] == ["base, step 0", "ag, step 0"]
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


def attack_run(places, directory, method):
    """Write the run of `places` as one that was trained against an attack; return its directory."""
    opened = open_run(places / "run")
    config = dataclasses.replace(opened.config, adversarial=AdversarialConfig(method))
    initial_weights.write(config, epath.Path(directory), TOKENIZER, opened.params)
    return directory


def attack_suite(places, directory, method):
    directory = shutil.copytree(places / "arms" / "asa", directory)
    edit(directory / "config.json", lambda values: values["tasks"]["sst2"]["adversarial"].update(method=method))
    return directory / "sst2" / "lr1e-05-bs8-seed1"


def test_attention_under_an_attack_on_embeddings(places, drawn, tmp_path, capsys):
    """The run's loss needs masked tokens; both figures and a page are made."""
    place = attack_run(places, tmp_path / "run", "freelb")
    said, _, paths = inspect(place, capsys)
    assert paths[-1].name.startswith("attention_attacked_step0_we_build_strong_")
    _, table = said.split("Attack freelb: ")
    found = {line.split()[0]: float(line.split()[1]) for line in table.splitlines() if re.match(r" *(0|1|mean) ", line)}
    assert found.keys() == {"0", "1", "mean"} and 0 < found["mean"] < 1
    (read,) = re.findall(r"masked tokens, as in training.\n(.*)", table)
    assert TOKENIZER.tokens([TOKENIZER.specials.mask])[0] in read.split()

    plain, without, attacked = page(place, tmp_path / "maps.html", capsys)
    assert (without["name"], attacked["name"]) == ("run, step 0, without the attack", "run, step 0, with the attack")
    assert without["columns"] == attacked["columns"] != plain["columns"] and "masked tokens" in attacked["note"]
    assert "hiddenHeads" not in attacked  # it perturbs embeddings
    (cut,) = {view["leftOut"] for view in (plain, without, attacked)}
    assert cut > 0


@pytest.mark.parametrize(
    ("make", "method", "reason"),
    [
        (attack_suite, "bernoulli", "drawn by a rule"),
        (attack_suite, "asa", "was not saved"),
        (attack_run, "bernoulli", "drawn by a rule"),
    ],
)
def test_attacks_that_cannot_be_shown(places, tmp_path, make, method, reason):
    opened = best.open_for_inspection(make(places, tmp_path / "attacked", method))
    assert opened.attack is None and reason in opened.no_attack


def test_a_model_without_steps_and_directories_without_a_model(places, tmp_path):
    with pytest.raises(ValueError, match="step=3 "):
        best.open_for_inspection(places / "hf", 3)
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"{directory} is no model"):
            best.open_for_inspection(directory)
    with pytest.raises(FileNotFoundError, match="keep=best"):
        best.open_for_inspection(save_suite(tmp_path / "suite", "sst2"))
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(ValueError, match="report.json"):
        best.open_for_inspection(tmp_path)


def test_a_read_only_run_is_inspected_and_evaluated(places, drawn, tmp_path, monkeypatch, capsys):
    """Results are printed and written to another directory, to a temporary one, or to none."""
    closed, local = [], type(epath.Path("."))

    def closing(write):
        def guarded(path, *rest, **more):
            if any(directory in (path, *path.parents) for directory in closed):
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return write(path, *rest, **more)

        return guarded

    for name in ("mkdir", "write_text", "write_bytes"):
        monkeypatch.setattr(local, name, closing(getattr(local, name)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "evaluate", lambda workdir, step: {"step": 0, "mlm_loss": 2.5})
    monkeypatch.setattr(storage.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    closed.append(places / "run")
    said, warned, (path,) = inspect(places / "run", capsys)
    assert "for 16 tokens (6 more were cut off)" in said
    assert path.parent == tmp_path / "ag-jax-output/run/figures" and str(places / "run") in warned
    for read_only, place in ((None, tmp_path / "ag-jax-output/run"), ("ag-jax-output", tmp_path), (tmp_path, None)):
        closed.append(epath.Path(read_only or "nothing"))
        status = cli.run_safely(verb_of("evaluate", workdir=str(places / "run")))
        said, warned = capsys.readouterr()
        assert json.loads(said) == {"step": 0, "mlm_loss": 2.5} and status == (place is None)
        if place is None:
            assert "Read-only file system" in warned
        else:
            written = tmp_path / warned.partition("\nnext: ")[0].rpartition(" ")[2] / "evaluation.json"
            assert written.is_relative_to(place) and written.read_text() == said


def meta_of(path):
    """What a page says about itself."""
    (meta,) = re.findall(r'id="meta">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(meta)


def views_of(path):
    """The views of a page."""
    return meta_of(path)["views"]


def page(place, path, capsys, **more):
    """Write a page of `inspect`; return its views."""
    said, *_ = inspect(place, capsys, html=str(path), **more)
    assert said.endswith(f": {storage.link(path)}\n") and "attention mass on the patterns" in said
    return views_of(path)


def test_a_page_in_place_of_figures_and_one_of_several_models_and_steps(places, tmp_path, capsys):
    place = shutil.copytree(places / "run", tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    more = {"against": [str(places / "run"), str(places / "hf")], "steps": ["all"], "heads": ["1.0"]}
    found = page(place, tmp_path / "new" / "maps.html", capsys, **more)
    models = [f"{tmp_path.name}/run", f"{places.name}/run", f"{places.name}/hf"]
    assert [view["model"] for view in found] == models
    assert [view["name"] for view in found] == [f"{models[0]}, step 0", f"{models[1]}, step 0", models[2]]
    assert meta_of(tmp_path / "new" / "maps.html")["other"] == 1  # the first of `against` is compared
    (view,) = page(place, tmp_path / "new" / "maps.html", capsys)  # written over the first page
    assert not (place / "figures").exists()
    assert (view["name"], view["step"], view["kind"], len(view["columns"])) == ("run, step 0", 0, "Encoder", 16)
    assert view["guided"] == [["next", *[None] * view["heads"]]] * view["layers"] and view["special"] == [0, 15]
    opened = best.open_for_inspection(place)
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, TEXT, 16)
    masses = maps.attention_mass(attention, opened.special, opened.assignment)
    assert view["targets"].keys() == masses.keys()
    for name, mass_NH in masses.items():
        found = np.array(view["targets"][name]["mass"], float)  # behind the heads of a layer, their mean
        np.testing.assert_allclose(found, np.append(mass_NH, mass_NH.mean(1, keepdims=True), 1), rtol=1e-3)


def test_heads_of_a_page_that_another_model_lacks():
    shallow = dataclasses.replace(CONFIG, layers=1)
    other = SimpleNamespace(model=SimpleNamespace(config=shallow), directory="shallow")
    seen = SimpleNamespace(opened=SimpleNamespace(model=SimpleNamespace(config=CONFIG), directory="deep"))
    page = pages.Page("m.html", lambda directory, step: other, against=["shallow"])
    with pytest.raises(ValueError, match=r"--without=1.0: .* --against=shallow has only 1 layers of"):
        pages.make_views(page, seen, TEXT, ((0, 1), (1, 0)))


def test_the_flag_of_a_page_needs_no_value():
    for given, name in ((["--html"], "maps.html"), (["--html=a.html"], "a.html"), (["--html", "b.html"], "b.html")):
        assert parser.parse(["inspect", *given, "--workdir=x"]).html == name

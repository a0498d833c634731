"""Tasks of a few examples, in the layouts of their official distributions, and a trial that trains nothing."""

import json
import pathlib
import zlib

import numpy as np
from etils import epath

from ag_jax.data import pipeline
from ag_jax.data.tasks import catalogue
from ag_jax.data.tasks.task import TaggedSentence, Texts
from ag_jax.data.text import batching
from ag_jax.finetuning import kinds
from ag_jax.finetuning.trial import facts_of
from ag_jax.grid import store
from ag_jax.grid.cells import Result
from ag_jax.interop.opening import Pretrained
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import initial_weights, workloads
from ag_jax.settings import schema
from tests import tiny
from tests.finetuning.tasks import TOKENIZER

GOOD = ("a warm and funny film", "truly good", "one of the best", "charming work", "i liked it")
BAD = ("a cold and boring film", "truly bad", "one of the worst", "tired work", "i hated it")
VALIDATION, TEST = 11, 7
FEW = {
    "epochs": 1,
    "max_length": 16,
    "batch_sizes": (8,),
    "train_examples": 8,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def sentence(number: int) -> tuple[str, int]:
    label = number % 2
    return f"{(BAD, GOOD)[label][number % 5]} number {number}", label


def write(folder: pathlib.Path) -> pathlib.Path:
    """SST-2 and RTE with test sets without labels, STS-B, Oromo NER as one file."""
    for name in ("SST-2", "RTE", "STS-B", "oromo_ner"):
        (folder / name).mkdir(parents=True)
    for split, count in (("train", 24), ("dev", VALIDATION)):
        rows = [sentence(number) for number in range(count)]
        _table(folder / "SST-2" / f"{split}.tsv", ["sentence", "label"], rows)
        pairs = [
            (number, text, text.upper(), ("not_entailment", "entailment")[label])
            for number, (text, label) in enumerate(rows)
        ]
        _table(folder / "RTE" / f"{split}.tsv", ["index", "sentence1", "sentence2", "label"], pairs)
        scores = [(number, text, text.upper(), 5 * label) for number, (text, label) in enumerate(rows)]
        _table(folder / "STS-B" / f"{split}.tsv", ["index", "sentence1", "sentence2", "score"], scores)
    tests = [(number, sentence(number)[0]) for number in range(TEST)]
    _table(folder / "SST-2" / "test.tsv", ["index", "sentence"], tests)
    _table(folder / "RTE" / "test.tsv", ["index", "sentence1", "sentence2"], [(*row, "so it is") for row in tests])
    words = "\n".join(f"Caaltuu{number}\tB-PER\ndeemte\tO\nFinfinnee\tB-LOC\n" for number in range(17))
    (folder / "oromo_ner" / "all.conll").write_text(words)
    _others(folder)
    return folder


def _others(folder: pathlib.Path) -> None:
    """ANLI, WNUT-17, DREAM, RACE, SQuAD, and sets of Filipino and Oromo."""
    files = {}
    for split, dev, count in (("train", "train", 9), ("validation", "dev", 5), ("test", "test", 3)):
        texts = [sentence(number) for number in range(count)]
        rows = [
            {"uid": f"{split}{number}", "context": text, "hypothesis": text.upper(), "label": "en"[label]}
            for number, (text, label) in enumerate(texts)
        ]
        files[f"anli_v1.0/R1/{dev}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
        words = [f"in\tO\n{('London', 'Paris')[label]}\tB-location\nnow\tO\n" for _, label in texts]
        files[f"wnut17/{split}.conll"] = "\n".join(words)
        hate = "".join(f'"{text}",{label}\n' for text, label in texts)
        files[f"filipino_hatespeech/{split}.csv"] = f"text,label\n{hate}"
        news = "".join(f"{('health', 'sports')[label]}\t{text}\t{text}\n" for text, label in texts)
        files[f"oromo_news/{split}.tsv"] = f"category\theadline\ttext\n{news}"
        asked = [
            [
                ["M: " + text],
                [{"question": "How is it?", "choice": ["bad", "good", "new"], "answer": ("bad", "good")[label]}],
                f"{split}{number}",
            ]
            for number, (text, label) in enumerate(texts)
        ]
        files[f"dream/{split}.json"] = json.dumps(asked)
        for number, (text, label) in enumerate(texts):
            for level in ("middle", "high"):
                options = [["bad", "good", "new", "old"]]
                article = {
                    "article": text,
                    "questions": ["It is _ ."],
                    "options": options,
                    "answers": ["AB"[label]],
                    "id": f"{level}{number}",
                }
                files[f"RACE/{dev}/{level}/{number}.txt"] = json.dumps(article)
        for version in ("1.1", "2.0"):
            files[f"squad/{dev}-v{version}.json"] = json.dumps({"data": [_article(split, texts, version == "2.0")]})
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _article(split: str, texts: list[tuple[str, int]], unanswerable: bool) -> dict:
    paragraphs = []
    for number, (text, label) in enumerate(texts):
        impossible = unanswerable and not label
        answers = [] if impossible else [{"text": "number", "answer_start": text.index("number")}]
        asked = {"id": f"{split}{number}", "question": "What is it?", "answers": answers}
        paragraphs.append({"context": text, "qas": [asked | ({"is_impossible": impossible} if unanswerable else {})]})
    return {"title": "films", "paragraphs": paragraphs}


def checkpoint(folder: pathlib.Path) -> pathlib.Path:
    """A run directory of a model of one layer with random weights, and a tokenizer of these words."""
    (folder / "text.txt").write_text("\n".join(sentence(number)[0] + "." for number in range(60)))
    settings = {
        "data.source": str(folder / "text.txt"),
        "data.sequence_length": 24,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 1,
        "model.width": 12,
        "model.heads": 3,
        "model.max_length": 32,
    }
    values = pretraining_config.default_config()
    values.update_from_flattened_dict(settings)
    config = schema.parse(pretraining_config.ExperimentConfig, values)
    tokenizer = pipeline.prepare_tokenizer(config.data)
    params = tiny.params(workloads.reference_model(config, tokenizer), batching.empty_batch(config.data, 1))
    initial_weights.write(config, epath.Path(folder / "run"), tokenizer, params)
    return folder / "run"


def _table(path: pathlib.Path, header: list[str], rows) -> None:
    path.write_text("\n".join("\t".join(map(str, row)) for row in [header, *rows]) + "\n")


def guess(example, *key) -> tuple[object, object]:
    """A prediction that is right about two times in three, and its scores; a function of the example and the key."""
    luck = zlib.crc32(repr((example.id, key)).encode()) % 3
    if isinstance(example, TaggedSentence):
        tags = ["O" if luck == 0 else tag for tag in example.tags]
        labels = catalogue.find("oromo_ner").labels
        return tags, [[float(label == tag) for label in labels] for tag in tags]
    truth = example.label if isinstance(example, Texts) and example.label is not None else 0
    if isinstance(truth, float):
        return truth - luck, truth - luck
    chosen = int(truth) if luck else 1 - int(truth)
    return chosen, [2.0 * (chosen == number) - luck for number in range(2)]


def run_trial(one, config, start, splits, directory, keep, labels) -> Result:
    """Stand in for `task_training.run_trial`: write the files that it would write, with guessed predictions."""
    directory.mkdir(parents=True, exist_ok=True)
    started = bool(start.description.startswith("trial"))
    key = (one.task, one.learning_rate, one.batch_size, one.seed, started, *one.swept.values())
    artifacts = {}
    for name, examples in {"validation": splits.validation, **splits.others}.items():
        lines = []
        for example in examples:
            prediction, scores = guess(example, *key)
            lines.append(json.dumps({"id": example.id, "prediction": prediction, "scores": scores}) + "\n")
        artifacts[name] = store.write_text(directory, f"predictions_{name}.jsonl", "".join(lines))
    values = kinds.evaluate(splits.task, splits.validation, [guess(one, *key)[0] for one in splits.validation])
    result = {
        **facts_of(one),
        "start": start.description,
        "epochs": [{"epoch": 2, "train_loss": 0.5, "metrics": values}],  # without a figure of curves
        "best_epoch": 2,
        "metrics": values,
        "others": {},
        "steps": 4,
        "planned_steps": 4,
        "truncated": 3,
        "cut_words": 2,
        "lost": 1,
        "skipped": splits.train.skipped,
        "examples": {"train": len(splits.train), "validation": len(splits.validation)},
        "seconds": 1.5,
    }
    if keep:
        (directory / "weights").mkdir(exist_ok=True)
        (directory / "weights" / "task.json").write_text("{}")
    return Result(result, artifacts)


def open_encoder(checkpoint, step=None, *, fresh=False):
    """Stand in for `opening.open_encoder`; the description of a run ends with its length in files, and its only
    parameter is the number in its file `params`.
    """
    params = {"encoder": np.float32((path := pathlib.Path(checkpoint) / "params").exists() and path.read_text())}
    if (pathlib.Path(checkpoint) / "weights").exists():
        return Pretrained(EncoderConfig(max_length=64), TOKENIZER, params, "roberta", f"trial {checkpoint}")
    if not pathlib.Path(checkpoint).is_dir():
        raise FileNotFoundError(f"{checkpoint} is no model")
    step = len([*pathlib.Path(checkpoint).iterdir()])
    return Pretrained(EncoderConfig(max_length=64), TOKENIZER, params, "roberta", f"step {step} of {checkpoint}")


def accuracies(splits, *key) -> float:
    return float(np.mean([guess(example, *key)[0] == example.label for example in splits.validation]))

"""The undamaged directories: what the program writes and reads, small, in one working directory."""

import bz2
import gzip
import io
import json
import lzma
import os
import pathlib
import shutil
import tarfile

import tokenizers as huggingface
from etils import epath

from ag_jax.data import pipeline
from ag_jax.data.config import TokenizerConfig
from ag_jax.interop import exporting
from tests.data.conftest import sentencepiece_model
from tests.finetuning import tiny_tasks
from tests.goldens import inputs, make

HUGGINGFACE = pathlib.Path(__file__).parent.parent / "interop" / "goldens"
SENTENCES = [
    f"The house number {number} of our union is strong. We will build it, and they said no!" for number in range(40)
]
ACCENTS = "Việt Nam, một con mèo; 한글; ガギ; naïve café"
# Tasks of `tiny_tasks`, one for each layout of files.
TASKS = tuple("sst2 rte stsb oromo_ner anli_r1 wnut17 filipino_hatespeech oromo_news dream race squad1 squad2".split())


def build(here: pathlib.Path) -> None:
    """Write everything below `here`, which must be the working directory, and $AG_JAX_CACHE below it."""
    inputs.write(here)
    make.make(epath.Path(here))
    for directory in sorted(HUGGINGFACE.iterdir()):
        shutil.copytree(directory, here / "huggingface" / directory.name)
        (here / "huggingface" / directory.name / "expected.safetensors").unlink()
    (here / "all_tasks").mkdir()
    tiny_tasks.write(here / "all_tasks")
    exporting.convert(next((here / "trial_kept" / "sst2").iterdir()), None, str(here / "huggingface" / "classifier"))
    _older_tokenizers(here)
    _custom_tasks(here / "custom")
    _sources(here / "sources")
    _annotated(here / "annotated")
    _caches(here)


def _older_tokenizers(here: pathlib.Path) -> None:
    """Vocabularies as older models have them, and sentencepiece models."""
    older = here / "huggingface" / "older_roberta"
    shutil.copytree(here / "exported", older)
    library = huggingface.Tokenizer.from_file(str(older / "tokenizer.json"))
    (older / "tokenizer.json").unlink()
    library.model.save(str(older))
    added = {token.content: id for id, token in library.get_added_tokens_decoder().items()}
    (older / "added_tokens.json").write_text(json.dumps(added))
    settings = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 16}
    (older / "tokenizer_config.json").write_text(json.dumps(settings))
    (older / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "mask_token": "<mask>"}))
    bert = here / "huggingface" / "bert"
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "tokenize_chinese_chars": True}
    (bert / "tokenizer_config.json").write_text(json.dumps(settings))
    (bert / "added_tokens.json").write_text("{}")
    for kind in ("bpe", "unigram"):
        (here / "sentencepiece" / kind).mkdir(parents=True)
        model = sentencepiece_model([*SENTENCES, ACCENTS], model_type=kind, vocab_size=64, hard_vocab_limit=False)
        (here / "sentencepiece" / kind / "spiece.model").write_bytes(model)


def _custom_tasks(folder: pathlib.Path) -> None:
    """Files of custom tasks, plain and compressed: a table, JSON lines, and the columns of CoNLL."""
    folder.mkdir()
    rows = [(f"{sentence} {ACCENTS}", ("né", "no")[number % 2]) for number, sentence in enumerate(SENTENCES)]
    tagged = [
        "# text = " + text + "\n" + "\n".join(f"{word}\t{'B-PER' if word == 'We' else 'O'}" for word in text.split())
        for text, _ in rows
    ]
    files = {
        "x.csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows),
        "x.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows),
        "x.conll": "\n\n".join(tagged) + "\n",
    }
    for name, content in files.items():
        (folder / name).write_text(content)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content.encode(), mtime=0))


def _sources(folder: pathlib.Path) -> None:
    """The same documents in every form that text comes in."""
    folder.mkdir()
    text = "\n\n".join(SENTENCES).encode()
    lines = "".join(json.dumps({"text": sentence}) + "\n" for sentence in SENTENCES).encode()
    array = json.dumps([{"text": sentence} for sentence in SENTENCES]).encode()
    table = {mark: "".join(f"{row}\n" for row in ("id" + mark + "text", *_rows(mark))).encode() for mark in ",\t"}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as opened:
        for number, sentence in enumerate(SENTENCES):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(sentence)
            opened.addfile(member, io.BytesIO(sentence.encode()))
    plain = {"txt": text, "jsonl": lines, "json": array, "csv": table[","], "tsv": table["\t"]}
    plain["tar"] = archive.getvalue()
    packers = {"": bytes, ".gz": lambda data: gzip.compress(data, mtime=0), ".xz": lzma.compress, ".bz2": bz2.compress}
    for ending, data in plain.items():
        for packed, pack in packers.items():
            (folder / f"x.{ending}{packed}").write_bytes(pack(data))
    (folder / "x.JSONL").write_bytes(lines)


def _annotated(folder: pathlib.Path) -> None:
    """Pairs of texts and files of probes, each plain and compressed."""
    folder.mkdir()
    both = [(sentence, f"{sentence[::-1]} {ACCENTS}") for sentence in SENTENCES]
    words = [sentence.split() for sentence in SENTENCES]
    trees = ["\n".join(f"{n}\t{w}\t_\t_\t_\t_\t{n - 1}\tdep\t_\t_" for n, w in enumerate(of, 1)) for of in words]
    conll = [
        "\n".join(f"a 0 {n} {w} NN * - - - - * {'(1)' if n == 1 else '-'}" for n, w in enumerate(of)) for of in words
    ]
    preco = {"id": "a", "sentences": words, "mention_clusters": [[[n, 0, 1] for n in range(len(words))]]}
    files = {
        "x.en": "".join(f"{source}\n" for source, _ in both),
        "x.de": "".join(f"{target}\n" for _, target in both),
        "x.tsv": "".join(f"{source}\t{target}\n" for source, target in both),
        "x.jsonl": "".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in both),
        "x.sgm": "".join(f"<seg id={n}>{target} &amp;</seg>\n" for n, (_, target) in enumerate(both)),
        "x.conllu": "# newdoc id = a\n" + "\n\n".join(trees) + "\n\n",
        "x.conll": "#begin document (a); part 000\n" + "\n\n".join(conll) + "\n\n#end document\n",
        "preco.jsonl": json.dumps(preco) + "\n",
        "minimal.jsonl": "".join(
            json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": "a"}) + "\n" for good, bad in both
        ),
        "minimal.csv": "sentence_good,sentence_bad\n" + "".join(f'"{good}","{bad}"\n' for good, bad in both),
    }
    for name, content in files.items():
        (folder / name).write_text(content)
        (folder / f"{name}.gz").write_bytes(gzip.compress(content.encode(), mtime=0))


def _rows(mark: str) -> list[str]:
    return [f'{number}{mark}"{sentence}"' for number, sentence in enumerate(SENTENCES)]


def _caches(here: pathlib.Path) -> None:
    """A cache with each kind of file: rows of sentences in documents, of pairs, and packed."""
    os.environ["AG_JAX_CACHE"] = str(here / "cache")
    for config in cached_configs():
        pipeline.prepare(config, quiet=True)


def cached_configs() -> tuple[pipeline.DataConfig, ...]:
    """The settings of the data that is cached."""
    tokenizer = TokenizerConfig(vocabulary_size=300)
    given = {"source": "text/train.txt", "validation_source": "text/validation.txt", "tokenizer": tokenizer}
    return (
        pipeline.DataConfig(**given, sequence_length=16),
        pipeline.DataConfig(**given, sequence_length=32, format="segment_pair_nsp"),
        pipeline.DataConfig(**given, sequence_length=64, format="doc_sentences", pack=True),
    )

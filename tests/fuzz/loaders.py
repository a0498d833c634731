"""The loaders of the program, each with the files that are damaged and with what its result must not do."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import sentencepiece
from etils import epath

from ag_jax.data import pipeline, tokenizers
from ag_jax.data.parallel import sides
from ag_jax.data.parallel.pairs import PairFiles
from ag_jax.data.probes import conll, minimal_pairs, preco, trees
from ag_jax.data.records import sources
from ag_jax.data.tasks import custom
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.finetuning import comparison as finetuning
from ag_jax.finetuning import splits
from ag_jax.finetuning.config import Recipe
from ag_jax.interop import catalogue, finetuned, importing, opening, tokenizer_files
from ag_jax.pretraining import build, comparison, run, run_directory
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files, schema
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import MetricWriter, read_metrics
from tests.fuzz import commands, material
from tests.goldens import reading

Result = dict[str, Any]
TRIAL = reading.TRIAL


class Accepted(Exception):
    """The loader returned something that it must not return."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Files of one directory, and a loader of them.

    files: patterns below `folder`.
    load: the loader, called in the working directory.
    exact: whether any change of the result is a finding; swaps: unless another file took the place of the damaged one.
    named: what an error may name in the place of the file.
    writes: whether the loader changes the directory, which is then restored after each case.
    share: how many cases it gets, relative to the others.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    load: Callable[[], Result]
    exact: bool = False
    swaps: bool = False
    named: tuple[str, ...] = ()
    writes: bool = False
    share: float = 1.0

    def paths(self, here: pathlib.Path) -> list[pathlib.Path]:
        """The files, always in the same order, also where their names hold a hash of times."""
        found = {path for pattern in self.files for path in (here / self.folder).glob(pattern) if path.is_file()}
        return sorted(found)


def _finite(params: Any) -> str:
    """The digest of parameters. Raises Accepted if some are not finite."""
    if not all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(params)):
        raise Accepted("parameters that are not finite")
    return reading.digest(params)


def _check_shapes(model: Any, params: Any, file: str) -> None:
    """Raise Accepted if parameters are not those of a model."""
    example = {key: np.zeros((1, 8), np.int32) for key in ("tokens", "segment_ids", "token_type_ids", "original")}
    example |= {"masked_positions": np.zeros((1, 2), np.int32)}
    try:
        made = jax.eval_shape(lambda: model.init(jax.random.key(0), example, deterministic=True)["params"])
    except Exception as error:
        raise Accepted(f"settings of {file} that no model can have ({type(error).__name__})") from error
    if jax.tree.map(np.shape, build.unboxed(made)) != jax.tree.map(np.shape, params):
        raise Accepted(f"parameters that do not fit the model of {file}")


def _open_run(name: str) -> Result:
    opened = open_run(epath.Path(os.path.abspath(name)))
    _check_shapes(opened.model, opened.params, "config.json")
    found = {"config": schema.to_dict(opened.config), "tokenizer": opened.tokenizer.fingerprint()}
    return found | {"params": _finite(opened.params | opened.adversary_params), "step": opened.step}


class _Begun(Exception):
    """A run was to be trained."""


@contextlib.contextmanager
def _untrained(*summaries: str) -> Iterator[None]:
    """Within, nothing is trained. Raises Accepted if something was to be, unless one of the summaries is missing."""

    def begin(*_, **__):
        raise _Begun

    before, pretraining_corpus.prepare = pretraining_corpus.prepare, begin
    try:
        yield
    except _Begun as begun:
        if all(pathlib.Path(path).exists() for path in summaries):
            raise Accepted("a finished run as one to be trained") from begun
    finally:
        pretraining_corpus.prepare = before


def _train_finished() -> Result:
    """`train` in the directory of a run that is done."""
    workdir, found = epath.Path(os.path.abspath("finished")), {}
    with _untrained("finished/result.json"):
        found["summary"] = run.train(run_directory.read_config(workdir), workdir)
    return found


@functools.cache
def _interrupted_state() -> Any:
    workdir = epath.Path(os.path.abspath("interrupted"))
    config = run_directory.read_config(workdir)
    return run.PretrainingRun(config, workdir, pipeline.prepare(config.data, quiet=True)).program.abstract


def _resume() -> Result:
    """What a resumed run starts from."""
    like = _interrupted_state()
    checkpoints = Checkpoints(epath.Path(os.path.abspath("interrupted")) / "checkpoints")
    try:
        found = checkpoints.restore_latest(like)
    finally:
        checkpoints.close()
    if found is None:
        raise Accepted("no checkpoint at all: training would begin anew")
    state = jax.device_get(found.state)
    leaves = [leaf.tobytes() for leaf in jax.tree.leaves(state)]
    return {"progress": found.progress, "params": _finite(state.params), "state": leaves}


def _metrics() -> Result:
    """The rows that a resumed run keeps."""
    workdir = epath.Path(os.path.abspath("interrupted"))
    before = _whole_lines(pathlib.Path("interrupted/metrics.jsonl"))
    writer = MetricWriter(workdir, 1000, tensorboard=False)
    writer.close()
    rows = read_metrics(workdir)
    if len(rows) < before:
        raise Accepted(f"{len(rows)} of {before} whole rows, the others lost")
    return {"rows": rows}


def _whole_lines(path: pathlib.Path) -> int:
    """How many lines of a file are rows of metrics."""
    count = 0
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            count += {"step", "split"} <= set(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            continue
    return count


def _tuned(tuned: finetuned.FineTuned) -> Result:
    found = {"head": dataclasses.asdict(tuned.head), "tokenizer": tuned.tokenizer.fingerprint()}
    return found | {"params": _finite(tuned.params)}


def _trial() -> Result:
    tuned = finetuned.load(epath.Path(os.path.abspath("trial_kept")) / TRIAL)
    opening.open_encoder(os.path.abspath(f"trial_kept/{TRIAL}"))
    _check_shapes(tuned.model, tuned.params, "task.json")
    return _tuned(tuned) | {"model": dataclasses.asdict(tuned.config)}


def _suite() -> Result:
    """`finetune` of a suite that is done."""
    path = finetuning.finetune(
        config_files.load("configs/finetuning.py:points=2"), epath.Path(os.path.abspath("suite"))
    )
    return {"report": path.read_text()}


def _comparison() -> Result:
    """`compare` of runs that are done, without drawing."""
    workdir, found = epath.Path(os.path.abspath("comparison")), {}
    before, comparison._figures = comparison._figures, lambda *_: {}
    try:
        with _untrained(*(f"comparison/{arm}-seed3/result.json" for arm in ("plain", "ag"))):
            found["report"] = comparison.compare(
                config_files.load("configs/pretraining.py", reading.COMPARED), workdir
            ).read_text()
    finally:
        comparison._figures = before
    return found


def _caches() -> Result:
    """The corpora of cached settings, and every batch of them."""
    found = {}
    for number, config in enumerate(material.cached_configs()):
        corpus = pipeline.prepare(config, quiet=True)
        batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, 4, 0)
        made = [batches.at(step) for step in range(len(corpus.train) // 4 + 1)]
        made += list(pipeline.validation_batches(corpus, config, 4))
        arrays = [sorted((key, value.tobytes()) for key, value in batch.items()) for batch in made]
        found |= {f"facts {number}": corpus.facts(), f"batches {number}": arrays}
    return found


def _source(path: str) -> Result:
    documents = list(sources.documents(path))
    is_text = ".txt" in path  # a warning says of such files that they begin like JSON
    if not is_text and any(document.lstrip().startswith(("{", "[{", "id,", "id\t")) for document in documents[:1]):
        raise Accepted("a table or JSON as text")
    return {"documents": documents}


def _annotated(name: str) -> Result:
    """Pairs of texts, or what a probe reads, of a file that may be compressed."""
    path, plain = f"annotated/{name}", name.removesuffix(".gz")
    if plain in ("x.en", "x.de"):
        return {"pairs": list(PairFiles(path.replace(".de", ".en"), path.replace(".en", ".de")))}
    if plain == "x.sgm":
        return {"texts": list(sides.lines(pathlib.Path(path)))}
    if plain in ("x.tsv", "x.jsonl"):
        return {"pairs": list(PairFiles(path))}
    if plain == "x.conllu":
        return {"sentences": list(trees.read(path))}
    return {"records": {"x.conll": conll.read, "preco.jsonl": preco.read}.get(plain, minimal_pairs.read)(path)}


def _task(name: str) -> Result:
    recipe = Recipe(folds=3) if name == "oromo_ner" else Recipe()
    found = splits.read(name, recipe, "all_tasks")
    parts = {"train": found.train, "validation": found.validation, **found.others}
    return {split: [dataclasses.asdict(example) for example in examples] for split, examples in parts.items()}


def _custom_task(name: str) -> Result:
    kind = "tagging" if "conll" in name else "classification"
    settings = custom.resolved("own", CustomTask(kind, train=name), "custom")
    examples = custom.load("own", settings, "custom", "train", folds=True)
    return {"labels": settings.labels, "examples": [dataclasses.asdict(example) for example in examples]}


def _huggingface(name: str) -> Result:
    opened = importing.open_model(f"huggingface/{name}")
    config = dataclasses.asdict(opened.source.config)
    return {"config": config, "tokenizer": opened.tokenizer.fingerprint(), "params": _finite(opened.params)}


def _classifier() -> Result:
    tuned, _ = importing.open_finetuned("huggingface/classifier")
    return _tuned(tuned)


def _sentencepiece(kind: str, family: str) -> Result:
    directory = pathlib.Path("sentencepiece") / kind
    tokenizer = tokenizer_files.read(directory, catalogue.named(family)) if family else tokenizers.load(directory)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    texts = [unicodedata.normalize(form, material.ACCENTS) for form in ("NFC", "NFD", "NFKD")]
    if tokenizer.encode_batch(texts) != processor.encode(texts):
        raise Accepted("a tokenizer with other ids than sentencepiece")
    return {"ids": tokenizer.encode_batch(material.SENTENCES[:3]), "tokenizer": tokenizer.fingerprint()}


def _config_file(path: str) -> Result:
    """What `--print_config` shows of a config file. Raises ValueError with the command's message."""
    verb = "finetune" if "finetuning" in path else "train"
    ended = commands.run_command([verb, f"--config={path}", "--print_config"], pathlib.Path.cwd())
    if wrong := commands.judge(ended):
        raise Accepted(wrong)
    if ended.returncode:
        raise ValueError(ended.stderr)
    if not ended.stdout:
        raise Accepted("a config file that prints nothing")
    return {"config": ended.stdout}


def targets() -> Sequence[Target]:
    """All of them."""
    trial = f"trial_kept/{TRIAL}/weights"
    checkpoint = {"files": ("checkpoints/**/*",), "exact": True, "named": ("checkpoint of step", "checkpoints/")}
    compared = ("*/config.json", "*/result.json", "*/metrics.jsonl")
    tuned = ("config.json", f"{TRIAL}/*", "sst2/lr0.005*/*")
    open_finished, tokenizer = functools.partial(_open_run, "finished"), ("tokenizer",)
    found = [
        Target("run: settings", "finished", ("config.json",), open_finished),
        Target("run: tokenizer", "finished", ("tokenizer/*",), open_finished, exact=True, named=tokenizer),
        Target("run: checkpoint", "finished", load=open_finished, share=2, **checkpoint),
        Target("adversary: checkpoint", "adversarial", load=lambda: _open_run("adversarial"), **checkpoint),
        Target("run: summary, settings", "finished", ("config.json", "result.json"), _train_finished, writes=True),
        Target("resumed: checkpoint", "interrupted", load=_resume, writes=True, share=2, **checkpoint),
        Target("resumed: metrics", "interrupted", ("metrics.jsonl",), _metrics, writes=True),
        Target("trial: settings", trial, ("task.json",), _trial, named=(trial,)),
        Target("trial: weights", trial, ("weights.safetensors", "tokenizer/*"), _trial, True, named=(trial,), share=2),
        Target("suite", "suite", tuned, _suite, writes=True, share=2),
        Target("comparison", "comparison", compared, _comparison, writes=True, share=2),
        Target("cache", "cache", ("**/*",), _caches, True, named=("cache/",), writes=True, share=3),
    ]
    for name in ("pretraining", "finetuning"):
        path = f"configs/{name}.py"
        found.append(Target(f"config file {name}", "configs", (f"{name}.py",), functools.partial(_config_file, path)))
    for ending in ("txt", "jsonl", "json", "csv", "tsv", "tar"):
        for packed in ("", ".gz", ".xz", ".bz2"):
            name = f"x.{ending}{packed}"
            load = functools.partial(_source, f"sources/{name}")
            found.append(Target(f"source {name}", "sources", (name,), load, bool(packed), swaps=True, share=0.2))
    found.append(Target("source x.JSONL", "sources", ("x.JSONL",), lambda: _source("sources/x.JSONL"), share=0.2))
    plain = ("x.en", "x.de", "x.tsv", "x.jsonl", "x.sgm", "x.conllu", "x.conll", "preco.jsonl", "minimal.jsonl")
    for name in (*plain, "minimal.csv"):
        for packed in ("", ".gz"):
            load = functools.partial(_annotated, name + packed)
            target = Target(f"annotated {name}{packed}", "annotated", (name + packed,), load, bool(packed), swaps=True)
            found.append(dataclasses.replace(target, named=("annotated/x.",), share=0.2))
    folders = {"sst2": "SST-2", "rte": "RTE", "stsb": "STS-B", "anli_r1": "anli_v1.0", "race": "RACE"}
    folders |= {"squad1": "squad", "squad2": "squad"}
    for name in material.TASKS:
        pattern = {"squad1": "*1.1*", "squad2": "*2.0*"}.get(name, "**/*")
        folder = f"all_tasks/{folders.get(name, name)}"
        found.append(Target(f"task {name}", folder, (pattern,), functools.partial(_task, name), share=0.4))
    for name in ("x.csv", "x.jsonl", "x.conll"):
        for packed in ("", ".gz"):
            load = functools.partial(_custom_task, name + packed)
            found.append(Target(f"custom task {name}{packed}", "custom", (name + packed,), load, share=0.4))
    for name in "bert bert_pairs camembert deberta deberta_v2 deberta_v3 electra roberta older_roberta".split():
        load = functools.partial(_huggingface, name)
        found.append(Target(f"Hugging Face {name}", f"huggingface/{name}", ("*",), load, share=0.6))
    found.append(Target("Hugging Face classifier", "huggingface/classifier", ("*",), _classifier))
    for kind, family in (("bpe", "deberta-v2"), ("bpe", ""), ("unigram", "deberta-v2"), ("unigram", "")):
        load, name = functools.partial(_sentencepiece, kind, family), f"sentencepiece {kind} {family or 'own'}"
        found.append(Target(name, f"sentencepiece/{kind}", ("*",), load, share=0.4))
    return found


def signature(result: Result) -> dict[str, str]:
    """A digest of each part of a result."""
    contents = {part: repr(value).encode(errors="surrogatepass") for part, value in result.items()}
    return {part: hashlib.sha256(content).hexdigest() for part, content in contents.items()}

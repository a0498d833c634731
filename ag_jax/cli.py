"""Run the verbs of the command, and print their errors as messages."""

import dataclasses
import errno
import json
import math
import os
import pathlib
import resource
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import IO, Any, Literal, TypeVar

import jax
from etils import epath

from ag_jax import config_reader, imported, interruption
from ag_jax.data import pipeline, tokenizers
from ag_jax.data.json_files import read_json
from ag_jax.distributed import hosts, parts, storage
from ag_jax.finetuning import trial
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.interop import exporting, finetuned, hub, importing, milestones
from ag_jax.interop.front_matter import Statements
from ag_jax.planning import plan, text, topology
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run, scores, translate, words, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.search import points
from ag_jax.probing.config import ProbingConfig
from ag_jax.training.checkpoint import CorruptCheckpointError
from ag_jax.training.loop import Interrupted, NonFiniteError

TRAINING = ("train", "finetune", "compare", "search", "evaluate")  # verbs whose results depend on settings
READ_BY = {"arms": "compare", "comparison.": "compare", "search.": "search"}  # settings that one verb reads
ON_MANY_HOSTS = TRAINING
STOPPED = "AG_JAX_STOPPED"  # environment variable with the file to write if a signal stops the command before its end
_LONGEST_LINE = 2000  # characters of an error message that are printed
AnyConfig = ExperimentConfig | FinetuningConfig | ProbingConfig
PURPOSES: dict[type, tuple[str, str]] = {  # of a config, with an example
    ExperimentConfig: ("pre-training, which train, compare and search read", "quickstart"),
    FinetuningConfig: ("fine-tuning, which finetune and compare read", "finetune/glue:checkpoint=RUN"),
    ProbingConfig: ("probes of attention heads, which evaluate and compare read", "probe:checkpoint=RUN"),
}
KINDS = tuple(PURPOSES)  # what --config may be
Kind = TypeVar("Kind", ExperimentConfig, FinetuningConfig, ProbingConfig)


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed command line without its verb: config file, changed settings and the other flags.

    config: the config file with its arguments.
    overrides: settings that replace those of the config file.
    price: dollars per chip-hour.
    coordinator, hosts, host: position of this host among several, see `hosts.find_position`.
    join_timeout: seconds to wait for the other hosts.
    store_timeout: seconds for which a request to an object store is repeated.
    source: the Hugging Face model to import.
    target: the directory to export to.
    expect, dtype, license, language, datasets: see `ag-jax help import` and `ag-jax help export`.
    push, private: the repository on the Hugging Face hub that `ag-jax export` pushes to.
    milestones: whether `ag-jax export` writes every milestone in words.
    part: `K/N` of `ag-jax compare`, `finetune`, `search` and `prepare`, or the encoder that `ag-jax export` writes.
    retry: whether `ag-jax search` trains runs again that failed.
    translation: the translation of `text`, of which `ag-jax inspect --target` draws the attention.
    without: heads whose outputs `ag-jax inspect --without` zeroes.
    html: the page that `ag-jax inspect` writes.
    against, steps: what the page shows, see `ag-jax help inspect`.
    layers, heads: what the figures or the page show, see `ag-jax help inspect`.
    input, output, decoding: see `ag-jax help translate`.
    trust_code: whether functions that stored files name may be imported.
    """

    config: str | None
    overrides: dict[str, Any]
    workdir: str | None
    step: int | Literal["best"] | None
    text: str | None
    print_config: bool = False
    topology: str | None = None
    slices: int = 1
    search_batch: bool = True
    price: float | None = None
    coordinator: str | None = None
    hosts: str | None = None
    host: int | None = None
    join_timeout: int = 1800
    store_timeout: int = round(storage.PATIENCE)
    source: str | None = None
    target: str | None = None
    expect: Sequence[str] = ()
    dtype: str = "float32"
    license: str = ""
    language: Sequence[str] = ()
    datasets: Sequence[str] = ()
    push: str | None = None
    private: bool = False
    milestones: bool = False
    part: str | None = None
    retry: bool = False
    translation: str | None = None
    without: Sequence[str] = ()
    html: str | None = None
    against: Sequence[str] = ()
    steps: Sequence[str] = ()
    layers: Sequence[str] = ()
    heads: Sequence[str] = ()
    input: str | None = None
    output: str | None = None
    decoding: Sequence[str] = ()
    trust_code: bool = False

    def checked(self) -> AnyConfig:
        """Return the checked config, for pre-training, for fine-tuning or for probes."""
        if self.config is None:
            raise ValueError(
                "this verb needs --config=CONFIG, such as --config=quickstart; `ag-jax configs` lists them"
            )
        values = config_reader.load(self.config, self.overrides)
        try:
            return config_reader.parse(config_reader.kind_of(values, KINDS), values)
        except ValueError as error:
            raise ValueError(f"--config={self.config}: {error}") from error

    def experiment(self) -> ExperimentConfig:
        """Return the checked config for pre-training. Raises ValueError for any other config."""
        return self._of_kind(ExperimentConfig)

    def suite(self) -> FinetuningConfig:
        """Return the checked config for fine-tuning. Raises ValueError for any other config."""
        return self._of_kind(FinetuningConfig)

    def probes(self) -> ProbingConfig:
        """Return the checked config for probes. Raises ValueError for any other config, or with --step."""
        config = self._of_kind(ProbingConfig)
        if self.step is not None:
            raise ValueError(
                f"--step={self.step} does not apply to probes: give the step of the checkpoint as the setting "
                f"--config.step={'N' if self.step == 'best' else self.step} instead"
            )
        return config

    def _of_kind(self, kind: type[Kind]) -> Kind:
        config = self.checked()
        if not isinstance(config, kind):
            raise ValueError(
                f"--config={self.config} is for {PURPOSES[type(config)][0]}: expected a config for "
                f"{PURPOSES[kind][0]}, such as --config={PURPOSES[kind][1]}"
            )
        return config

    def directory(self, kind: str | None = None) -> epath.Path:
        """Return the directory that --workdir names; with `kind`, it must be empty or hold output of that kind.

        kind: what the verb writes there, as `contents` says it; None for a verb that writes nothing of its own.

        Raises ValueError if there is no --workdir, or if it holds something of another kind.
        """
        if not self.workdir:
            raise ValueError("this verb needs --workdir=DIR, such as --workdir=runs/first")
        directory = storage.directory(self.workdir)
        if kind and (there := contents(directory)) not in (None, kind, *MAY_HOLD.get(kind, ())):
            raise ValueError(
                f"--workdir={directory} holds {there}, expected {kind} or nothing: choose another directory"
            )
        return directory

    def model(self) -> epath.Path:
        """Return the directory of --workdir, which must not hold several models.

        Raises ValueError, which names the best model, if it holds several.
        """
        directory = self.directory()
        if contents(directory) in (SUITE, SUITES, COMPARISON):
            from ag_jax.finetuning import best  # with scikit-learn

            if (best_model := best.find(directory)) is not None:
                raise ValueError(
                    f"--workdir={directory} holds several models: give the directory of one, such as "
                    f"--workdir={best_model.directory} ({best_model.reason})"
                )
        return directory

    def checkpoint(self) -> int | None:
        """Return the step of the checkpoint to use, None for the newest; with --step=best, find and print the step."""
        if self.step != "best":
            return self.step
        step = hosts.from_first("the best checkpoint", lambda: run.best_step(self.directory()))
        if hosts.is_first():
            print(f"the best checkpoint of {self.directory()} is that of step {step}", file=sys.stderr, flush=True)
        return step

    def join(self, verb: str) -> None:
        """Start JAX together with the other hosts, if there are any, and check that all hosts run the same command."""
        if self.join_timeout < 1:
            raise ValueError(f"--join_timeout must be at least 1 second, got {self.join_timeout}")
        if verb not in ON_MANY_HOSTS:
            if (self.coordinator, self.hosts, self.host) != (None, None, None):
                raise ValueError(f"`ag-jax {verb}` runs on one machine: leave out --coordinator, --hosts and --host")
            return
        position = hosts.find_position(self.coordinator, self.hosts, self.host, self.join_timeout)
        if position is None:
            return
        command = {"the verb": verb, "--workdir": str(self.directory()), "--step": self.step}
        command |= {"--part": self.part, "--retry": self.retry}
        if self.config:
            self.checked()  # a wrong config need not wait for the other hosts to be refused
        hosts.join(position, self.join_timeout)
        hosts.agree("their commands", command | run.versions())


RUN, SUITE, SEARCH, PROBES = "a run", "a suite of fine-tuning", "a search", "a report on probes"
COMPARISON, SUITES, TOKENIZER = "a comparison of runs", "a comparison of suites", "a tokenizer"
ARMS = "the runs of a comparison"  # that is not finished
MAY_HOLD = {COMPARISON: (ARMS,), PROBES: (ARMS,)}


def contents(directory: epath.Path) -> str | None:
    """Return in words what a directory holds, such as "a run"; None if no verb has written anything into it."""
    config, report = (
        read_json(path) if (path := directory / name).exists() else {} for name in ("config.json", "report.json")
    )
    # From the special to the general: a trial has a run's checkpoints, too, and a suite's arms have reports.
    if "model_type" in config:
        return "a Hugging Face model"
    if isinstance(tasks := config.get("tasks"), dict) and any((directory / name).is_dir() for name in tasks):
        return SUITE
    if finetuned.locate(directory) or (directory / trial.RESULT).exists():
        return "a trial of fine-tuning"
    if run.is_begun(directory):
        return RUN
    if (directory / "search.json").exists():
        return SEARCH
    if report:
        return PROBES if "probes" in report else SUITES if "tasks" in report else COMPARISON
    if (directory / tokenizers.CHECKSUM).exists():
        return TOKENIZER
    return ARMS if any(directory.glob("*-seed*/config.json")) else None


def run_verb(verb: str, request: Request) -> None:
    """Run a verb, or print its config for `--print_config`.

    Raises ValueError or OSError for errors that the user can correct.
    """
    for key in request.overrides if verb in TRAINING else ():
        reader = next((reader for name, reader in READ_BY.items() if config_reader.is_among(key, (name,))), verb)
        if reader != verb:
            raise ValueError(
                f"--config.{key} has no effect here, because only `ag-jax {reader}` reads it: leave it out, or use "
                "that verb"
            )
    if request.print_config:
        print(json.dumps(config_reader.to_dict(_checked(verb, request)), indent=2))
        return
    topology.silence_libtpu()
    storage.set_patience(request.store_timeout)
    if request.trust_code:
        imported.trust_all()
    request.join(verb)
    VERBS[verb](request)


def _checked(verb: str, request: Request) -> AnyConfig:
    """Return the config for `--print_config`, after the same checks that the verb makes when it runs."""
    share = None if request.part is None else parts.parse_part(request.part)
    if verb in ("train", "prepare", "tokenizer", "plan", "search"):
        experiment = _for_training(request) if verb == "train" else request.experiment()
        if verb == "search":
            study = points.study(request.config, request.overrides)
            parts.numbers_of(share or parts.ALL, len(study.points), "points")
        return experiment
    if verb == "evaluate":
        return request.probes()
    config = request.suite() if verb == "finetune" else request.checked()
    configs: Any = {"": config}
    if verb == "compare":
        configs = _comparison(config).arm_configs(request.config, request.overrides)
    if isinstance(config, FinetuningConfig):
        from ag_jax.finetuning import splits  # with scikit-learn

        for of_arm in configs.values():
            for name, recipe in of_arm.tasks.items():
                splits.find_task(name, recipe)
    if isinstance(config, FinetuningConfig) and share:
        parts.numbers_of(share, _comparison(config).count_trials(configs.values()), "trials")
    elif isinstance(config, ProbingConfig) and share:
        raise _probes_have_no_parts(request.part)
    elif share:
        parts.numbers_of(share, len(configs), "runs")
    return config


def _probes_have_no_parts(part: str | None) -> ValueError:
    return ValueError(f"--part={part}: probes are measured by one process, so leave --part out")


def _comparison(config: AnyConfig) -> Any:
    """Return the module `comparison` of fine-tuning, of probes or of pre-training, whichever the config is for."""
    if isinstance(config, ProbingConfig):
        from ag_jax.probing import comparison as of_probes  # with matplotlib and scipy

        return of_probes
    if isinstance(config, FinetuningConfig):
        from ag_jax.finetuning import (
            comparison as of_tasks,  # with scipy and scikit-learn, for which others need not wait
        )

        return of_tasks
    from ag_jax.pretraining import comparison as of_runs  # with matplotlib and scipy

    return of_runs


def _tell(message: str) -> None:
    if hosts.is_first():
        print(message)


def _for_training(request: Request) -> ExperimentConfig:
    config = request.experiment()
    words.check_flags(config, request.overrides)
    return config


def _train(request: Request) -> None:
    config, workdir = _for_training(request), request.directory(RUN)
    summary = run.train(config, workdir)
    _tell(
        f"{workdir.name}: {workloads.workload_of(config).primary_metric.label} {summary['train_loss']:.3f} train, "
        f"{summary['validation_loss']:.3f} validation, {summary['average_train_loss']:.3f} average over training; "
        f"everything is in {workdir}"
    )


def _compare(request: Request) -> None:
    config = request.checked()
    share = {"part": request.part} if request.part is not None else {}
    if share and isinstance(config, ProbingConfig):
        raise _probes_have_no_parts(request.part)
    kind = {ExperimentConfig: COMPARISON, FinetuningConfig: SUITES, ProbingConfig: PROBES}[type(config)]
    report = _comparison(config).compare(request.config, request.overrides, request.directory(kind), **share)
    if report is not None:
        _tell(f"the report is {report}")


def _search(request: Request) -> None:
    from ag_jax.pretraining.search import run as of_points  # with matplotlib and scipy

    request.experiment()  # only for its errors
    report = of_points.search(
        request.config, request.overrides, request.directory(SEARCH), part=request.part, retry=request.retry
    )
    _tell(f"the report is {report}")


def _finetune(request: Request) -> None:
    config = request.suite()
    workdir = request.directory(SUITE)
    report = _comparison(config).finetune(request.config, request.overrides, workdir, request.part)
    if report is None:
        return
    _tell(f"the report is {report}")
    if config.keep == "best" and hosts.is_first():
        from ag_jax.finetuning import best

        try:
            best_model = best.find(workdir)
        except FileNotFoundError as error:  # a sweep with fewer points than before, whose trials have none
            _tell(str(error))
            return
        if best_model is not None:
            _tell(f"the weights of {best_model.reason}, are in {best_model.directory}")


def _evaluate(request: Request) -> None:
    if request.config is not None:  # with one for fine-tuning the verb has become `finetune`
        config = request.probes()
        report = _comparison(config).evaluate(request.config, request.overrides, request.directory(PROBES))
        _tell(f"the report is {report}")
        return
    workdir, step = request.model(), request.checkpoint()
    metrics = run.evaluate(workdir, step)
    if hosts.is_first() and (tests := scores.score_run(workdir, step)):
        metrics["translations"] = {name: dict(test.scores) for name, test in tests.items()}
    metrics_text = json.dumps(metrics, indent=2)
    try:
        if hosts.is_first():
            storage.write_where_possible(
                lambda place: storage.write_whole(place / "evaluation.json", metrics_text + "\n"), workdir
            )
    finally:  # also if nothing can be written, and after it, because nobody may read what is printed
        _tell(metrics_text)


def _translate(request: Request) -> None:
    files = request.input, request.output
    if not all(files):
        raise ValueError(
            "this verb needs --input=FILE and --output=FILE; - stands for standard input, and for standard output"
        )
    translate.translate(
        lambda: translate.open_translator(request.model(), request.checkpoint(), request.decoding), *files
    )


def _inspect(request: Request) -> None:
    from ag_jax.finetuning import best
    from ag_jax.inspection import command  # with matplotlib
    from ag_jax.inspection.heads import Chosen
    from ag_jax.inspection.pages import Page, check_place

    further = (request.against, request.steps)
    if request.html is None and any(further):
        raise ValueError("--against and --steps say what a page shows: give --html=FILE, too")
    if request.layers and (request.html is not None or request.heads):
        other = "--html" if request.html is not None else "--heads"
        raise ValueError(
            f"--layers selects layers of the figure of heads: leave out --layers or {other}, because "
            f"{'a page shows all layers' if other == '--html' else '--heads=LAYER.HEAD has the layers of its heads'}"
        )
    page = None
    if request.html is not None:
        check_place(request.html)
        page = Page(request.html, best.open_for_inspection, *further, request.heads)
    opened = best.open_for_inspection(request.directory(), request.checkpoint())
    selection = Chosen(request.layers, () if page else request.heads)
    command.inspect(opened, request.text, request.translation, request.without, page, selection)


def _tokenizer(request: Request) -> None:
    config, workdir = request.experiment(), request.directory(TOKENIZER)
    tokenizer = pipeline.prepare_tokenizer(config.data)
    tokenizer.save(workdir)
    sentence = config.inspection.sentence if request.text is None else request.text
    print(f"{tokenizer.vocabulary_size} tokens, saved in {workdir}; use it with --config.data.tokenizer.path={workdir}")
    print(" ".join(tokenizer.tokens(tokenizer.encode(sentence))))


def _prepare(request: Request) -> None:
    config = request.experiment()
    corpus = pretraining_corpus.prepare_ahead(config.data, request.part)
    if corpus is not None:
        in_words = {"in words": words.of_corpus(config, corpus).to_json()} if words.is_needed(config) else {}
        facts = corpus.facts() | ({"sources": corpus.sources} if corpus.sources else {}) | in_words
        print(json.dumps(facts, indent=2))


def _plan(request: Request) -> None:
    config = request.experiment()
    if not request.topology:
        raise ValueError("this verb needs --topology=SLICE, such as --topology=v5e:4x4 or --topology=v4-8")
    if request.price is not None and not 0 <= request.price < math.inf:
        raise ValueError(f"--price must be dollars per chip-hour, such as --price=1.20; got {request.price}")
    directory = request.directory() if request.workdir else None
    estimate = plan.make_plan(config, topology.parse(request.topology, request.slices), request.search_batch)
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "plan.json").write_text(json.dumps(text.as_json(estimate, request.price), indent=2) + "\n")
    print(text.report(estimate, request.price))


def _import(request: Request) -> None:
    if not request.source:
        raise ValueError("this verb needs --from=MODEL, a Hugging Face directory or a name on its hub")
    workdir = request.directory()
    model = importing.convert(request.source, workdir, request.expect)
    print(f"{model.parameters:,} parameters of {model.family}, in {workdir}")
    for head in model.new:
        print(f"new: {head}, which the files lack; it is randomly initialised, so train before you use it")
    for name in model.left_out:
        print(f"left out: {name}")
    for note in model.notes:
        print(f"not taken over: {note}")


def _export(request: Request) -> None:
    if not request.target:
        raise ValueError("this verb needs --to=DIR, the directory for the Hugging Face model, which will be created")
    if request.private and request.push is None:
        raise ValueError("--private is about what --push creates on the Hugging Face hub: give --push=NAME, too")
    stated = Statements(request.license, tuple(request.language), tuple(request.datasets))
    repository = None if request.push is None else hub.find(request.push, request.private)
    if repository is not None:
        stated = dataclasses.replace(stated, repository=repository.name)
    options = (request.dtype, stated, request.part or "model")
    if request.milestones:
        _export_milestones(request, repository, options)
        return
    written = exporting.convert(request.model(), request.checkpoint(), request.target, *options)
    print(f"{written.parameters:,} parameters as {written.architecture}, in {request.target}")
    for item in written.not_carried:
        print(f"not carried: {item}")
    if repository is not None:
        print(f"pushed to {repository.push(pathlib.Path(request.target).expanduser())}")


def _export_milestones(
    request: Request, repository: hub.Repository | None, options: tuple[str, Statements, str]
) -> None:
    """Export the milestones of a run (checkpoints by words seen), and push them as revisions of one repository."""
    if request.step is not None:
        raise ValueError(f"--step={request.step} is one checkpoint, and --milestones exports several: leave out one")
    target = pathlib.Path(request.target or "").expanduser()
    exports = milestones.convert(request.model(), str(target), *options)
    last = exports[hub.MAIN]
    print(f"{last.parameters:,} parameters as {last.architecture}, in each of {', '.join(exports)} in {target}")
    for item in last.not_carried:
        print(f"not carried: {item}")
    if not last.predicts_words:
        print(
            f"note: {last.architecture} has no word head, so transformers opens it as AutoModelForMaskedLM with a "
            "randomly initialised one, and scores of sentences say nothing; fine-tuning is not affected"
        )
    if repository is None:
        return
    names = [hub.MAIN, *(name for name in exports if name != hub.MAIN)]
    for number, name in enumerate(names):
        try:
            address = repository.push(target / name, name)
        except ValueError as error:
            left = names[number + 1 :]
            raise ValueError(f"{error}" + (f"; then so for {', '.join(left)}" if left else "")) from error
        print(f"pushed {name} to {address}")


VERBS = {
    "train": _train,
    "finetune": _finetune,
    "compare": _compare,
    "search": _search,
    "evaluate": _evaluate,
    "translate": _translate,
    "inspect": _inspect,
    "import": _import,
    "export": _export,
    "prepare": _prepare,
    "tokenizer": _tokenizer,
    "plan": _plan,
}


def run_safely(verb: str, request: Request) -> int:
    """Run a verb, print any error as one message, and return the exit status of the program.

    0: done, or stopped by a signal with everything saved (the file named by $AG_JAX_STOPPED is then written); 1: an
    error; hosts.AGAIN: another host was lost, start again.
    """
    try:
        run_verb(verb, request)
    except Interrupted as stop:
        if hosts.is_first():
            print(f"{stop}. To go on, run the same command again", file=sys.stderr)
            if noted := os.environ.get(STOPPED):
                pathlib.Path(noted).write_text(f"{stop}\n")
        return 0
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):  # as in `ag-jax translate ... | head`
            return 128 + signal.SIGPIPE
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = f"; the limit is {limit}: raise it, as by `ulimit -n 4096`" if error.errno == errno.EMFILE else ""
        return _failed(1, f"ag-jax {verb}: {error}{remedy}")
    except (ValueError, NonFiniteError, CorruptCheckpointError) as error:
        return _failed(1, f"ag-jax {verb}: {error}")
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return _failed(
                1, f"ag-jax {verb}: not enough memory ({error}): lower the batch size, or raise microbatches"
            )
        if hosts.count() == 1:
            raise
        return _failed(
            hosts.AGAIN,
            f"ag-jax {verb}: the hosts lost each other, most likely because one of them died: see the others' "
            f"messages. Start the command on all hosts again, it goes on from the last checkpoint.\n{error}",
        )
    except KeyboardInterrupt:
        if hosts.count() > 1:  # the others would wait for this one
            return _failed(interruption.status(), f"ag-jax {verb}: stopped by {interruption.requested()}")
        raise
    except BaseException as error:
        if hosts.count() > 1:  # the usual end would wait for the other hosts
            traceback.print_exc()
            hosts.abandon(1, f"{type(error).__name__}: {error}")
        raise
    return 0


def _is_unread(stream: IO[str]) -> bool:
    """Return whether a stream is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(stream, 0)  # of errors alone, which are always reported
    return bool(poll.poll(0))


def shortened(message: str) -> str:
    """Return an error message without the middle of every line of more than `_LONGEST_LINE` characters.

    Messages quote the values that they reject, and a value of a damaged file may be megabytes of text.
    """
    half = _LONGEST_LINE // 2
    return "\n".join(
        f"{line[:half]} ... {len(line) - 2 * half:,} characters left out ... {line[-half:]}"
        if len(line) > _LONGEST_LINE
        else line
        for line in message.split("\n")
    )


def _failed(status: int, message: str) -> int:
    message = shortened(message)
    where = f"host {hosts.index()}: " if hosts.count() > 1 else ""
    print(f"{where}{message}", file=sys.stderr, flush=True)
    hosts.abandon(status, message)
    return status

"""Run the verbs of the command, and print their errors as messages."""

import dataclasses
import errno
import json
import pathlib
import resource
import select
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

import jax
from etils import epath

from ag_jax.command_line.parser import reader_of, shortened
from ag_jax.command_line.verbs import (
    Compare,
    Evaluate,
    Export,
    Finetune,
    Import,
    Inspect,
    OnHosts,
    Plan,
    Prepare,
    Search,
    Tokenizer,
    Train,
    Translate,
    Verb,
)
from ag_jax.data import pipeline
from ag_jax.data.json_files import read_json
from ag_jax.distributed import hosts, interruption, storage
from ag_jax.finetuning import contents
from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.interop import exporting, hub, importing, milestones, weights_export
from ag_jax.interop.front_matter import Statements
from ag_jax.planning import plan, text, topology
from ag_jax.pretraining import arms, finished, run, run_directory, scores, translate, words, workloads
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.search import points
from ag_jax.probing.config import ProbingConfig
from ag_jax.settings import imported, schema
from ag_jax.settings.config_files import Config
from ag_jax.training.checkpoint import CorruptCheckpointError
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.stopping import Interrupted


def _model(workdir: str) -> epath.Path:
    """Return the directory of --workdir, which must not hold several models.

    Raises ValueError, which names the best model, if it holds several.
    """
    directory = storage.directory(workdir)
    if contents.of(directory) in (contents.SUITE, contents.SUITES, contents.COMPARISON):
        from ag_jax.finetuning import best  # with scikit-learn

        if (best_model := best.find(directory)) is not None:
            raise ValueError(
                f"--workdir={directory} holds several models: give the directory of one, such as "
                f"--workdir={best_model.directory} ({best_model.reason})"
            )
    return directory


def _checkpoint(verb: Evaluate | Translate | Inspect | Export) -> int | None:
    """Return the step of the checkpoint to use, None for the newest; with --step=best, find and print the step."""
    if verb.step is None or isinstance(verb.step, int):
        return verb.step
    directory = storage.directory(verb.workdir)
    step = hosts.from_first("the best checkpoint", lambda: run_directory.best_step(directory))
    if hosts.is_first():
        print(f"the best checkpoint of {directory} is that of step {step}", file=sys.stderr, flush=True)
    return step


def _join(verb: Any) -> None:
    """Start JAX, together with the other hosts if there are any, which must all run the same command."""
    hosts.start(verb.coordinator, verb.hosts, verb.host, verb.join_timeout)
    hosts.check_devices()
    if hosts.count() == 1:
        return
    command = {"the verb": verb.name, "--workdir": str(storage.directory(verb.workdir))}
    command |= {f"--{flag}": getattr(verb, flag, None) for flag in ("step", "retry")}
    hosts.agree("their commands", command | run.versions())


def run_verb(verb: Any) -> None:
    """Run a verb, or print its config for `--print_config`.

    Raises ValueError or OSError for errors that the user can correct.
    """
    if getattr(verb, "print_config", False):
        _check(verb)
        print(json.dumps(schema.to_dict(verb.config.settings), indent=2))
        return
    topology.silence_libtpu()
    if getattr(verb, "trust_code", False):
        imported.trust_all()
    if isinstance(verb, OnHosts):
        _join(verb)
    following = RUN_BY[verb.name](verb)
    if following and hosts.is_first():
        print(f"next: {following}", file=sys.stderr)


def _command(verb: str, config: Config | None = None, *flags: str) -> str:
    """Return a command that a user may run next, to be copied from the terminal.

    config: its config, of whose changed settings it gets those that it reads.
    """
    if config is not None:
        read = {path: value for path, value in config.overrides.items() if reader_of(path) in (None, verb)}
        return " ".join([arms.command(verb, dataclasses.replace(config, overrides=read)), *map(shlex.quote, flags)])
    return shlex.join(["ag-jax", verb, *flags])


def _in(workdir: str, directory: epath.Path) -> str:
    """Return the flag --workdir for a directory below one that a user typed."""
    return f"--workdir={epath.Path(workdir) / directory.relative_to(storage.directory(workdir))}"


def _check(verb: Any) -> None:
    """Check the config of a verb for `--print_config`, as the verb does when it runs."""
    if verb.config is None:
        raise ValueError("--print_config prints a config: give one by --config=FILE")
    config = verb.config.settings
    if isinstance(verb, Train):
        words.check_flags(config, verb.config.overrides)
    if isinstance(verb, Search):
        points.study(verb.config)
    if not isinstance(verb, Compare | Finetune):
        return
    configs: Any = {"": config}
    if isinstance(verb, Compare):
        configs, _ = _comparison(config).arm_configs(verb.config)
    if isinstance(config, FinetuningConfig):
        from ag_jax.finetuning import splits  # with scikit-learn

        for of_arm in configs.values():
            for name, recipe in of_arm.tasks.items():
                splits.find_task(name, recipe)


def _comparison(config: Any) -> Any:
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


def _train(verb: Train) -> str:
    config, workdir = verb.config.settings, contents.output_directory(verb.workdir, contents.RUN)
    words.check_flags(config, verb.config.overrides)
    summary = run.train(config, workdir)
    _tell(
        f"{workdir.name}: {workloads.workload_of(config).primary_metric.label} {summary['train_loss']:.3f} train, "
        f"{summary['validation_loss']:.3f} validation, {summary['average_train_loss']:.3f} average over training; "
        f"everything is in {workdir}"
    )
    return _command("inspect", None, f"--workdir={verb.workdir}")


def _compare(verb: Compare) -> str | None:
    config = verb.config.settings
    kinds = {ExperimentConfig: contents.COMPARISON, FinetuningConfig: contents.SUITES, ProbingConfig: contents.PROBES}
    kind = kinds[type(config)]
    report = _comparison(config).compare(verb.config, contents.output_directory(verb.workdir, kind), verb.retry)
    if report is None:
        return None
    _tell(f"the report is {storage.link(report)}")
    if kind != contents.COMPARISON or not hosts.is_first():
        return None
    from ag_jax.finetuning import best  # with scikit-learn

    model = best.find(verb.workdir)
    return _command("inspect", None, _in(verb.workdir, model.directory)) if model else None


def _search(verb: Search) -> str | None:
    from ag_jax.pretraining.search import run as of_points  # with matplotlib and scipy

    workdir, config = contents.output_directory(verb.workdir, contents.SEARCH), verb.config
    report = of_points.search(config, workdir, retry=verb.retry)
    if report is None:
        return None
    _tell(f"the report is {storage.link(report)}")
    if not hosts.is_first():
        return None
    grids = config.settings.search.grids
    arm = next(arm for arm in (config.arguments.get("arm"), *grids) if arm in grids)
    of_arm = config.with_argument("arm", arm) if "arm" in config.arguments else config
    try:
        best = of_arm.with_overrides(finished.search(workdir, arm, {}))
    except ValueError:  # no run of this arm has the metric
        return None
    return _command("train", best, f"--workdir={verb.workdir.rstrip('/')}-best")


def _finetune(verb: Finetune) -> str | None:
    config, workdir = verb.config.settings, contents.output_directory(verb.workdir, contents.SUITE)
    report = _comparison(config).finetune(verb.config, workdir, verb.retry)
    if report is None:
        return None
    for sentence in read_json(report.parent / "report.json")["summary"]:
        _tell(sentence)
    _tell(f"the report is {storage.link(report)}")
    if config.keep != "best" or not hosts.is_first():
        return None
    from ag_jax.finetuning import best

    try:
        model = best.find(workdir)
    except FileNotFoundError as error:  # a sweep with fewer points than before, whose trials have none
        _tell(str(error))
        return None
    if model is None:
        return None
    _tell(f"the best model is in {model.directory} ({model.reason})")
    return _command("export", None, _in(verb.workdir, model.directory), f"--to=models/{workdir.name}")


def _evaluate(verb: Evaluate) -> str | None:
    if verb.config is not None:
        config = verb.config.settings
        workdir = contents.output_directory(verb.workdir, contents.PROBES)
        report = _comparison(config).evaluate(verb.config, workdir)
        if report is None:
            return None
        _tell(f"the report is {storage.link(report)}")
        checkpoint = config.checkpoint_of(config.seeds[0])
        return _command("inspect", None, f"--workdir={checkpoint}") if checkpoint else None
    workdir, step = _model(verb.workdir), _checkpoint(verb)
    metrics = run.evaluate(workdir, step)
    if tests := scores.score_run(workdir, step):
        metrics["translations"] = {name: dict(test.scores) for name, test in tests.items()}
    metrics_text = json.dumps(metrics, indent=2)
    try:
        if hosts.is_first():
            storage.write_where_possible(
                lambda place: storage.write_whole(place / "evaluation.json", metrics_text + "\n"), workdir
            )
    finally:  # also if the file cannot be written; last, because printing fails once the reader of a pipe has ended
        _tell(metrics_text)
    return _command("inspect", None, f"--workdir={verb.workdir}")


def _translate(verb: Translate) -> None:
    def model() -> translate.Translator:
        translator = translate.open_translator(_model(verb.workdir), _checkpoint(verb), verb.decoding)
        if verb.engine == "ag_jax":
            return translator
        from ag_jax.interop import ctranslate2_engine

        return ctranslate2_engine.with_ctranslate2(translator)

    translate.translate(model, verb.input, verb.output)


def _inspect(verb: Inspect) -> None:
    from ag_jax.finetuning import best
    from ag_jax.inspection import command  # with matplotlib
    from ag_jax.inspection.heads import Chosen
    from ag_jax.inspection.pages import Page, check_place

    further = (verb.against, verb.steps)
    if verb.html is None and any(further):
        raise ValueError("--against and --steps say what a page shows: give --html=FILE, too")
    if verb.layers and (verb.html is not None or verb.heads):
        other = "--html" if verb.html is not None else "--heads"
        raise ValueError(
            f"--layers selects layers of the figure of heads: leave out --layers or {other}, because "
            f"{'a page shows all layers' if other == '--html' else '--heads=LAYER.HEAD has the layers of its heads'}"
        )
    page = None
    if verb.html is not None:
        check_place(verb.html)
        page = Page(verb.html, best.open_for_inspection, *further, verb.heads)
    opened = best.open_for_inspection(storage.directory(verb.workdir), _checkpoint(verb))
    selection = Chosen(verb.layers, () if page else verb.heads)
    command.inspect(opened, verb.text, verb.target, verb.without, page, selection)


def _tokenizer(verb: Tokenizer) -> str:
    config, workdir = verb.config.settings, contents.output_directory(verb.workdir, contents.TOKENIZER)
    tokenizer = pipeline.prepare_tokenizer(config.data)
    tokenizer.save(workdir)
    sentence = config.inspection.sentence if verb.text is None else verb.text
    print(f"{tokenizer.vocabulary_size} tokens, saved in {workdir}")
    print(" ".join(tokenizer.tokens(tokenizer.encode(sentence))))
    return _training(verb.config.with_overrides({"data.tokenizer.path": verb.workdir}))


def _prepare(verb: Prepare) -> str:
    config = verb.config.settings
    corpus = pretraining_corpus.prepare_ahead(config.data)
    in_words = {"in words": words.of_corpus(config, corpus).to_json()} if words.is_needed(config) else {}
    facts = corpus.facts() | ({"sources": corpus.sources} if corpus.sources else {}) | in_words
    print(json.dumps(facts, indent=2))
    return _training(verb.config)


def _training(config: Config) -> str:
    """Return the command that trains a config, in a directory of its name: all of its arms if it has several."""
    verb = "compare" if config.settings.comparison.arms and "arm" not in config.texts else "train"
    return _command(verb, config, f"--workdir=runs/{pathlib.Path(config.source.partition(':')[0]).stem}")


def _plan(verb: Plan) -> None:
    config = verb.config.settings
    directory = storage.directory(verb.workdir) if verb.workdir else None
    estimate = plan.make_plan(config, topology.parse(verb.topology, verb.slices), verb.search_batch)
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "plan.json").write_text(json.dumps(text.as_json(estimate, verb.price), indent=2) + "\n")
    print(text.report(estimate, verb.price))


def _import(verb: Import) -> str:
    workdir = storage.directory(verb.workdir)
    model = importing.convert(verb.source, workdir, verb.expect)
    print(f"{model.parameters:,} parameters of {model.family}, in {workdir}")
    for head in model.new:
        print(f"new: {head}, which the files lack; it is randomly initialised, so train before you use it")
    for name in model.left_out:
        print(f"left out: {name}")
    for note in model.notes:
        print(f"not taken over: {note}")
    return _command("inspect", None, f"--workdir={verb.workdir}")


def _export(verb: Export) -> str | None:
    if verb.format == "run":
        steps, size = weights_export.convert(_model(verb.workdir), _checkpoint(verb), verb.destination, verb.dtype)
        named = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
        print(f"the weights of {named} as {verb.dtype}, {size / 1e6:.1f} MB, in {verb.destination}")
        return _command("inspect", None, f"--workdir={verb.destination}", "--steps=all", "--html")
    if verb.private and verb.push is None:
        raise ValueError("--private is about what --push creates on the Hugging Face hub: give --push=NAME, too")
    stated = Statements(verb.license, tuple(verb.language), tuple(verb.datasets))
    repository = None if verb.push is None else hub.find(verb.push, verb.private)
    if repository is not None:
        stated = dataclasses.replace(stated, repository=repository.name)
    options = (verb.dtype, stated, verb.encoder)
    if verb.milestones:
        _export_milestones(verb, repository, options)
        return None
    written = exporting.convert(_model(verb.workdir), _checkpoint(verb), verb.destination, *options)
    print(f"{written.parameters:,} parameters as {written.architecture}, in {verb.destination}")
    for item in written.not_carried:
        print(f"not carried: {item}")
    if repository is not None:
        print(f"pushed to {repository.push(pathlib.Path(verb.destination).expanduser())}")
    return shlex.join(["cat", f"{verb.destination}/README.md"])  # how to open it


def _export_milestones(verb: Export, repository: hub.Repository | None, options: tuple[str, Statements, str]) -> None:
    """Export the milestones of a run (checkpoints by words seen), and push them as revisions of one repository."""
    if verb.step is not None:
        raise ValueError(f"--step={verb.step} is one checkpoint, and --milestones exports several: leave out one")
    target = pathlib.Path(verb.destination).expanduser()
    exports = milestones.convert(_model(verb.workdir), str(target), *options)
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


# Each returns the command that its users most likely run next; None if there is none.
RUN_BY: dict[str, Callable[[Any], str | None]] = {
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


def run_safely(verb: Verb) -> int:
    """Run a verb, print any error as one message, and return the exit status of the program.

    0: done; 1: an error; `interruption.AGAIN`: another host was lost, a bucket does not answer, or SIGTERM stopped the
    command: start it again; 130: stopped by Ctrl-C.
    """
    try:
        run_verb(verb)
    except Interrupted as stop:
        if hosts.is_first():
            print(f"{stop}. To go on, run the same command again", file=sys.stderr)
        hosts.leave()  # a status other than 0 ends the process at once (`interruption.guard`)
        return interruption.status(str(stop))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):  # as in `ag-jax translate ... | head`
            return 128 + signal.SIGPIPE
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = f"; the limit is {limit}: raise it, as by `ulimit -n 4096`" if error.errno == errno.EMFILE else ""
        status = interruption.AGAIN if isinstance(error, storage.StoreUnavailableError) else 1
        return _failed(status, f"ag-jax {verb.name}: {error}{remedy}")
    except (ValueError, NonFiniteError, CorruptCheckpointError) as error:
        return _failed(1, f"ag-jax {verb.name}: {error}")
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return _failed(
                1, f"ag-jax {verb.name}: not enough memory ({error}): lower the batch size, or raise microbatches"
            )
        if hosts.count() == 1:
            raise
        hosts.wait_for_cause()
        return _failed(
            interruption.AGAIN,
            f"ag-jax {verb.name}: the hosts lost each other, most likely because one of them died: see the others' "
            f"messages. Start the command on all hosts again, it goes on from the last checkpoint.\n{error}",
        )
    except KeyboardInterrupt:
        if hosts.count() > 1:  # the others would wait for this one
            return _failed(interruption.status(), f"ag-jax {verb.name}: stopped by {interruption.requested()}")
        raise
    except BaseException as error:
        if hosts.count() > 1:  # the usual end would wait for the other hosts
            traceback.print_exc()
            hosts.abandon(1, f"{type(error).__name__}: {error}")
        raise
    return 0


def _is_unread(stream: IO[str]) -> bool:
    """Return whether a stream is a pipe whose reader has closed it."""
    poll = select.poll()
    poll.register(stream, 0)  # of errors alone, which are always reported
    return bool(poll.poll(0))


def _failed(status: int, message: str) -> int:
    message = shortened(message)
    where = f"host {hosts.index()}: " if hosts.count() > 1 else ""
    print(f"{where}{message}", file=sys.stderr, flush=True)
    hosts.abandon(status, message)
    return status

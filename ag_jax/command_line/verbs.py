"""The verbs and flags of `ag-jax`, and the parser of its command line. Imports no JAX, so that help appears at once."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags.tuple_parser import TupleParser

from ag_jax import config_reader


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of `ag-jax`.

    kind: its type.
    meaning: its help text.
    default: its value if it is not given.
    field: name in `cli.Request`; None for the flag's own name.
    """

    kind: str
    meaning: str
    default: Any = None
    field: str | None = None


FLAGS = {
    "workdir": Flag("directory", "directory of the run, on a disk or in a bucket (gs://BUCKET/RUN)"),
    "print_config": Flag("switch", "print all settings as JSON and stop", False),
    "step": Flag(
        "step",
        "step of the checkpoint to use, or best for the one with the best evaluation; by default the newest, or for "
        "translations the mean of the newest ones (`translation.average`)",
    ),
    "text": Flag("text", "sentence to look at; that of the config by default"),
    "target": Flag("text", "translation of that sentence to look at; the model's own by default", field="translation"),
    "without": Flag(
        "names",
        "heads of the encoder whose outputs are zeroed, as LAYER.HEAD, counted from 1: 3.2,4.1; what changes is the "
        "attention of later layers",
        (),
    ),
    "html": Flag(
        "file",
        "write an interactive page with all heads, which opens in a browser without a network, in place of the "
        "figures; without a value, to maps.html",
    ),
    "against": Flag("names", "directories of further models for that page, to compare with", ()),
    "steps": Flag("names", "steps of the run for that page, such as 0,1000, or all; the page gets a slider", ()),
    "layers": Flag(
        "names",
        "layers of the figure of heads, counted from 1: 1,6,12, or all; by default the first, the middle and the last",
        (),
    ),
    "heads": Flag(
        "names",
        "heads that the figure of heads shows, as LAYER.HEAD, counted from 1: 3.2,4.1; with --html, heads that the "
        "page stores whole at every step, not only at the first and last",
        (),
    ),
    "topology": Flag("slice", "TPU slice to plan for, such as v5e:4x4 or v4-8"),
    "slices": Flag("number", "number of such slices, connected by the network of the data center", 1),
    "search_batch": Flag("switch", "search for the largest batch that fits; --nosearch_batch is faster", True),
    "price": Flag("dollars", "price of a chip for an hour, to estimate the cost"),
    "from": Flag(
        "model", "Hugging Face model: a directory, or its name on the hub, NAME or NAME@REVISION", field="source"
    ),
    "to": Flag("directory", "directory for the Hugging Face model, which will be created", field="target"),
    "expect": Flag("names", "beginnings of the names of tensors that may be left out, such as classifier", ()),
    "dtype": Flag("text", "type of the tensors: float32, bfloat16 or float16", "float32"),
    "license": Flag("text", "licence that the model card states; that of the imported model by default", ""),
    "language": Flag("names", "languages that the model card states, as codes of ISO 639: en,de", ()),
    "datasets": Flag(
        "names",
        "training data that the model card states, as names on the Hugging Face hub; by default those of a known task",
        (),
    ),
    "push": Flag("name", "push the export to the Hugging Face hub, too, as NAME or OWNER/NAME; needs huggingface_hub"),
    "private": Flag("switch", "only you can see what --push creates on the hub", False),
    "milestones": Flag(
        "switch",
        "export the checkpoints of all training.milestone_words, to chck_1M and so on below --to, and the last to "
        "main; --push makes them revisions of one repository",
        False,
    ),
    "part": Flag("text", "which part of the work to do"),
    "retry": Flag("switch", "train the runs again that failed before", False),
    "input": Flag("file", "text to translate, a sentence in each line; - reads standard input"),
    "output": Flag("file", "file for the translations, a line each; - writes to standard output"),
    "decoding": Flag(
        "names",
        "settings of the search that replace the run's, such as beam_size=1; `ag-jax help decoding` explains them",
        (),
    ),
    "trust_code": Flag(
        "switch",
        "import functions that files of the opened run or trial name, such as custom patterns: this executes their "
        "modules",
        False,
    ),
    "coordinator": Flag("host:port", "address of host 0, which all hosts can reach"),
    "hosts": Flag("number", "number of hosts; auto on SLURM, Open MPI and Kubernetes"),
    "host": Flag("number", "number of this host, from 0 on"),
    "join_timeout": Flag("seconds", "how long to wait for the other hosts", 1800),
    "store_timeout": Flag("seconds", "how long to repeat a request to a bucket that fails or does not answer", 300),
}
PAGE = "maps.html"  # that `--html` writes without a value
CONFIG = "config file with its arguments, such as {}; `ag-jax configs` lists them"
SETTING = "change a setting; `ag-jax help SECTION.KEY` explains it"
HOSTS = ("coordinator", "hosts", "host", "join_timeout")  # the same command on each of several machines
STORE = "store_timeout"  # read by all verbs that may use a bucket
BEST = "best"  # value of --step
_DEFINED_BY = {"switch": flags.DEFINE_bool, "names": flags.DEFINE_list}


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of `ag-jax`, with the text of its help.

    summary: what it does, in a line.
    usage: its flags that are usually given.
    examples: commands to copy.
    flags: names of the flags that it reads.
    has_config: whether it reads a config file.
    parts: help text of its flag --part; empty without it.
    """

    summary: str
    usage: str
    examples: tuple[str, ...]
    flags: tuple[str, ...] = ()
    has_config: bool = False
    parts: str = ""


def _shares(what: str) -> str:
    return (
        f"K/N trains every N-th {what} from the K-th on, for N processes with one --workdir, the last of which writes "
        "the report"
    )


_CONFIG_AND_WORKDIR = "--config=CONFIG[:ARGUMENTS] --workdir=DIR [--config.SECTION.KEY=VALUE]"
VERBS = {
    "train": Verb(
        "pre-train an encoder, or train a model to translate; the same command resumes an interrupted run",
        _CONFIG_AND_WORKDIR,
        (
            "ag-jax train --config=quickstart:arm=ag --config.training.steps=500 --workdir=runs/first",
            "ag-jax train --config=translate:source=train.en,target=train.de --workdir=runs/mine",
        ),
        ("workdir", "print_config", *HOSTS, STORE),
        True,
    ),
    "finetune": Verb(
        "fine-tune a checkpoint on tasks, over seeds and sweeps, and write a report",
        _CONFIG_AND_WORKDIR + " [--part=K/N]",
        (
            "ag-jax finetune --config=finetune/glue:checkpoint=runs/quickstart/ag-seed0,tasks=sst2,rte,scale=small "
            "--workdir=runs/glue",
            "ag-jax finetune --config=finetune/own:checkpoint=runs/quickstart/ag-seed0,train=a.csv,text=review,"
            "label=stars,scale=small --workdir=runs/reviews",
        ),
        ("workdir", "part", "print_config", *HOSTS, STORE),
        True,
        _shares("trial, that is a task at one point of its sweep with one seed,"),
    ),
    "compare": Verb(
        "train or probe every arm of a config for pre-training, translation, fine-tuning or probes; write a report",
        _CONFIG_AND_WORKDIR + " [--part=K/N]",
        (
            "ag-jax compare --config=quickstart --workdir=runs/quickstart",
            "ag-jax compare --config=quickstart --config.comparison.seeds=0,1,2 --workdir=runs/three_seeds",
            "ag-jax compare --config=quickstart --config.comparison.seeds=0,1,2 --workdir=runs/three_seeds --part=2/6",
        ),
        ("workdir", "part", "trust_code", "print_config", *HOSTS, STORE),
        True,
        _shares("run, that is an arm with one seed, or trial of fine-tuning,"),
    ),
    "search": Verb(
        "train every point of a config's grids, and choose the best; the same command resumes it",
        _CONFIG_AND_WORKDIR + " [--part=K/N] [--retry]",
        (
            "ag-jax search --config=quickstart_search --workdir=runs/search",
            "ag-jax search --config=ag/section4_5_search:language=oromo,layers=12 --workdir=runs/oromo --part=2/4",
            "ag-jax train --config=ag/table3_language_modeling:language=oromo,arm=ag,best=runs/oromo --workdir=runs/ag",
            "ag-jax help search.     # the settings of the section `search`",
        ),
        ("workdir", "part", "retry", "print_config", *HOSTS, STORE),
        True,
        _shares("point, with all of its seeds,"),
    ),
    "evaluate": Verb(
        "measure a run's loss on held-out text and score its translations; with a config, probe a model's heads",
        "--workdir=RUN [--step=N] | --config=probe:ARGUMENTS --workdir=DIR",
        (
            "ag-jax evaluate --workdir=runs/quickstart/ag-seed0",
            "ag-jax evaluate --config=probe:checkpoint=runs/quickstart/ag-seed0 --workdir=runs/probes",
            "ag-jax evaluate --config=probe:checkpoint=runs/quickstart/ag-seed0,ablation=held_out --workdir=runs/heads",
        ),
        ("workdir", "step", "trust_code", "print_config", *HOSTS, STORE),
        True,
    ),
    "translate": Verb(
        "translate a text line by line with a trained model; the same command resumes an interrupted one",
        "--workdir=RUN --input=FILE --output=FILE [--decoding=NAME=VALUE,...] [--step=N]",
        (
            "ag-jax translate --workdir=runs/mine --input=new.en --output=new.de",
            'echo "A dog runs." | ag-jax translate --workdir=runs/mine --input=- --output=-',
            "ag-jax translate --workdir=runs/mine --input=new.en --output=new10.de --decoding=beam_size=10",
        ),
        ("workdir", "input", "output", "decoding", "step", STORE),
    ),
    "inspect": Verb(
        "draw the attention maps of a model for a sentence, or for a sentence and its translation",
        "--workdir=RUN [--text=SENTENCE] [--target=TRANSLATION] [--layers=LAYER,...] [--heads=LAYER.HEAD,...] "
        "[--without=LAYER.HEAD,...] [--html[=FILE]] [--against=DIR,...] [--steps=all] [--step=N]",
        (
            'ag-jax inspect --workdir=runs/quickstart/ag-seed0 --text="We will rebuild our roads."',
            'ag-jax inspect --workdir=runs/translation/ag-seed0 --text="A dog runs." --target="Ein Hund läuft."',
            'ag-jax inspect --workdir=runs/quickstart/ag-seed0 --text="We will rebuild our roads." --without=3.2,4.1',
            "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --layers=1,4,8",
            "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --heads=3.2,4.1",
            "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --against=runs/quickstart/mlm-seed0 --html=maps.html",
            "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --steps=all --html",
        ),
        (
            "workdir",
            "text",
            "target",
            "layers",
            "heads",
            "without",
            "html",
            "against",
            "steps",
            "step",
            "trust_code",
            STORE,
        ),
    ),
    "import": Verb(
        "turn a Hugging Face model into a run directory",
        "--from=MODEL --workdir=RUN",
        ("ag-jax import --from=FacebookAI/roberta-base --workdir=runs/roberta-base",),
        ("from", "workdir", "expect", STORE),
    ),
    "export": Verb(
        "write a run's checkpoint as a model that transformers opens; push it to the Hugging Face hub",
        "--workdir=RUN --to=DIR [--step=N | --milestones] [--language=en] [--license=apache-2.0] [--push=NAME]",
        (
            "ag-jax export --workdir=runs/quickstart/ag-seed0 --to=models/quickstart",
            "ag-jax export --workdir=runs/quickstart/ag-seed0 --to=models/quickstart --language=en "
            "--license=apache-2.0 --push=quickstart-ag --private",
            "ag-jax export --workdir=runs/babylm/guided-seed0 --to=models/babylm-guided --milestones --language=en",
        ),
        (
            *("workdir", "to", "step", "milestones", "dtype", "license", "language", "datasets", "push", "private"),
            *("part", STORE),
        ),
        parts="of a run that detects replaced tokens: model, or generator for the encoder that replaces tokens",
    ),
    "prepare": Verb(
        "tokenise the text of a config once, before training; several processes and machines share the work",
        "--config=CONFIG[:ARGUMENTS] [--part=K/N] [--config.SECTION.KEY=VALUE]",
        (
            "ag-jax prepare --config=quickstart --config.data.source=books/",
            "ag-jax prepare --config=ag/table9_tpu_gpu --config.data.cache_dir=gs://BUCKET/cache",
            "ag-jax prepare --config=ag/table9_tpu_gpu --config.data.cache_dir=/shared/cache --part=2/16",
        ),
        ("part", "print_config", STORE),
        True,
        "K/N tokenises every N-th part of the text from the K-th on, for N processes with one cache",
    ),
    "tokenizer": Verb(
        "train the tokenizer of a config, and try it on a text",
        "--config=CONFIG[:ARGUMENTS] --workdir=DIR [--text=TEXT]",
        ("ag-jax tokenizer --config=quickstart --workdir=runs/tokenizer",),
        ("workdir", "text", "print_config", STORE),
        True,
    ),
    "plan": Verb(
        "estimate memory, time and cost on a TPU slice; no TPU needed",
        "--config=CONFIG[:ARGUMENTS] --topology=SLICE [--price=DOLLARS]",
        ("ag-jax plan --config=ag/table9_tpu_gpu:hardware=tpu --topology=v5e:2x4 --price=1.20",),
        ("topology", "slices", "search_batch", "price", "workdir", "print_config", STORE),
        True,
    ),
    "configs": Verb("list the config files that come with ag-jax", "", ("ag-jax configs",)),
    "help": Verb(
        "explain a verb, a config file, a setting or a section of settings",
        "[VERB | CONFIG | SETTING]",
        (
            "ag-jax help compare",
            "ag-jax help quickstart",
            "ag-jax help optimizer.learning_rate",
            "ag-jax help guidance",
        ),
    ),
}
_EXPLAINING = ("configs", "help")  # verbs that run nothing
RUNNING = tuple(name for name in VERBS if name not in _EXPLAINING)


class _Integer(flags.IntegerParser):
    """Parser of a whole number, which may be written as 1e3."""

    def convert(self, argument):
        try:
            return super().convert(argument)
        except ValueError:
            with contextlib.suppress(ValueError):
                if float(argument).is_integer():
                    return int(float(argument))
            raise ValueError("expected a whole number") from None


class _Float(flags.FloatParser):
    """Parser of a number."""

    def convert(self, argument):
        try:
            return super().convert(argument)
        except ValueError:
            raise ValueError("expected a number") from None


class _Boolean(flags.BooleanParser):
    """Parser of True or False."""

    def parse(self, argument):
        try:
            return super().parse(argument)
        except ValueError:
            raise ValueError("expected True or False") from None


class _NumberOrNone(flags.ArgumentParser):
    """Parser of a flag `--config.SECTION.KEY=VALUE` whose setting is a number; VALUE may be `none`, read as None."""

    def __init__(self, numbers: flags.ArgumentParser):
        self._numbers, self.syntactic_help = numbers, numbers.syntactic_help

    def parse(self, argument):
        return None if argument in (None, config_reader.NONE) else self._numbers.parse(argument)

    def flag_type(self) -> str:
        return self._numbers.flag_type()


class _List(TupleParser):
    """Parser of a flag `--config.SECTION.KEY=VALUE` whose setting is a list; an empty VALUE is the empty list."""

    def parse(self, argument):
        if argument == "":
            return ()
        parsed = super().parse(argument)
        if parsed == (argument,):  # no literals of Python, as in 1e-3,nan
            with contextlib.suppress(ValueError):
                return tuple(map(float, argument.split(",")))
        return parsed


class _Step(_Integer):
    """Parser of the flag `--step=N`, or `--step=best`."""

    syntactic_help = "a number or best"

    def convert(self, argument):
        try:
            return BEST if argument == BEST else super().convert(argument)
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected the number of a step, or {BEST}") from error

    def is_outside_bounds(self, val):
        return False


_PARSERS: dict[str, Any] = {"step": _Step, "number": _Integer, "seconds": _Integer, "dollars": _Float}
config_flags.register_flag_parser_for_type(int, _NumberOrNone(_Integer()))
config_flags.register_flag_parser_for_type(float, _NumberOrNone(_Float()))
config_flags.register_flag_parser_for_type(bool, _Boolean())
config_flags.register_flag_parser_for_type(tuple, _List())


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Parse a command line into its verb, such as `train`, and {field of `cli.Request`: value} of its flags.

    arguments: the words after `ag-jax`.

    Raises ValueError, OSError or flags.Error for a verb, flag, config file or setting that does not exist, and for
    flags that the verb does not read.
    """
    source, config, rest = config_reader.read_flags(_with_page(arguments))
    values = flags.FlagValues()
    for name, flag in FLAGS.items():
        _define(name, flag, values)
    if config is None:
        flags.DEFINE_string("config", None, CONFIG.format("quickstart"), flag_values=values)
    else:  # reads the settings among the arguments, so that the config file need not be executed again
        config_flags.DEFINE_config_dict(
            "config", config, CONFIG.format("quickstart"), flag_values=values, sys_argv=["ag-jax", *rest]
        )
    try:
        positional = values(["ag-jax", *rest])[1:]
    except flags.UnrecognizedFlagError as error:
        if "." not in error.flagname and not (config is not None and error.flagname in config):
            raise
        raise ValueError(
            f"unknown flag --{error.flagname}: a setting of the config file is changed by --config.{error.flagname}"
        ) from error
    if twice := [name for name in FLAGS if values[name].present > 1]:  # of a setting, the last value counts
        raise ValueError(f"--{twice[0]} is given more than once: give it once")
    verb = " ".join(positional)
    if verb not in RUNNING:
        raise ValueError(f"expected one verb of {', '.join(VERBS)}, got {verb or 'none'}; see `ag-jax --help`")
    present = [name for name in FLAGS if values[name].present]
    _check_read(verb, present if source is None else ["config", *present])
    fields = {flag.field or name: values[name].value for name, flag in FLAGS.items()}
    overrides = config_flags.get_override_values(values["config"]) if config is not None else {}
    return verb, {"config": source, "overrides": overrides, **fields}


def _with_page(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which a bare `--html` gets a default value, because absl has no optional values."""
    following = [*arguments[1:], "--"]
    return [
        f"--html={PAGE}" if one == "--html" and after.startswith("-") else one
        for one, after in zip(arguments, following, strict=True)
    ]


def _check_read(verb: str, names: Sequence[str]) -> None:
    """Raise ValueError if a verb does not read one of the given flags."""
    read = (*(("config",) if VERBS[verb].has_config else ()), *VERBS[verb].flags)
    if unread := [f"--{name}" for name in names if name not in read]:
        of_suite = verb == "finetune" and "--step" in unread
        hint = "; give the step of the checkpoint as --config.step=N" if of_suite else ""
        raise ValueError(
            f"`ag-jax {verb}` does not read {', '.join(unread)}{hint}; "
            f"`ag-jax help {verb}` lists the flags that it reads"
        )


def _define(name: str, flag: Flag, values: flags.FlagValues) -> None:
    if flag.kind in _PARSERS and name != "hosts":
        flags.DEFINE(_PARSERS[flag.kind](), name, flag.default, flag.meaning, flag_values=values)
        return
    define: Any = _DEFINED_BY.get(flag.kind, flags.DEFINE_string)
    define(name, list(flag.default) if flag.kind == "names" else flag.default, flag.meaning, flag_values=values)
    if flag.kind == "switch":
        values[name].parser = _Boolean()

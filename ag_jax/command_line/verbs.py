"""The verbs of `ag-jax`: a dataclass for each, whose fields are the flags that it reads.

A docstring is the verb's summary, with an entry `name: meaning` for each flag. A field without a default must be given.
"""

import dataclasses
import inspect
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from annotated_types import Ge

from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.probing.config import ProbingConfig
from ag_jax.settings.config_files import Config
from ag_jax.settings.documentation import entries

PAGE = "maps.html"  # that `--html` writes without a value
FLAG_OF_FIELD = {"source": "from", "destination": "to"}  # names of flags that differ from the field's
# The dataclasses that a config may be made for: {dataclass: (what it is for, an example)}.
KINDS: dict[type, tuple[str, str]] = {
    ExperimentConfig: ("pre-training or translation", "quickstart"),
    FinetuningConfig: ("fine-tuning", "finetune/glue:checkpoint=RUN"),
    ProbingConfig: ("probes", "probe:checkpoint=RUN"),
}
PLACEHOLDERS = {  # what stands for the value of a flag in help; of other flags the name in capitals
    **dict.fromkeys(("workdir", "to"), "DIR"),
    **dict.fromkeys(("input", "output", "html"), "FILE"),
    "join_timeout": "SECONDS",
    **{"from": "MODEL", "coordinator": "HOST:PORT", "price": "DOLLARS", "push": "NAME"},
}
Step = int | Literal["best"] | None
Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """Base class of the verbs; a verb is one of its subclasses, whose fields are the values of its flags.

    Flags of several verbs are described here:


    workdir: directory of the run, on a disk or in a bucket (gs://BUCKET/RUN)
    step: step of the checkpoint to use, or best for the one with the best evaluation; by default the newest, or for
        translations the mean of the newest ones (`translation.average`)
    text: sentence to look at; that of the config by default
    trust_code: import functions that files of the opened run or trial name, such as custom patterns: this executes
        their modules
    print_config: print all settings as JSON and stop

    Class attributes: `name`, the word after `ag-jax`; `examples`, commands to copy; `kinds`, the dataclasses that its
    --config may be made for, empty if it reads no config.
    """

    name: ClassVar[str]
    examples: ClassVar[Names]
    kinds: ClassVar[tuple[type, ...]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnHosts(Verb):
    """A verb that runs on several machines, by the same command on each.

    coordinator: address HOST:PORT of host 0, which all hosts can reach
    hosts: number of hosts; auto on Cloud TPU slices, SLURM, Open MPI and Kubernetes
    host: number of this host, from 0 on
    join_timeout: seconds to wait for the other hosts
    """

    coordinator: str | None = None
    hosts: str | None = None
    host: int | None = None
    join_timeout: Annotated[int, Ge(1)] = 1800


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(OnHosts):
    """Pre-train an encoder, or train a model to translate; the same command resumes an interrupted run."""

    name = "train"
    examples = (
        "ag-jax train --config=quickstart:arm=ag --config.training.steps=500 --workdir=runs/first",
        "ag-jax train --config=translate:source=train.en,target=train.de --workdir=runs/mine",
    )
    kinds = (ExperimentConfig,)
    config: Config
    workdir: str
    print_config: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetune(OnHosts):
    """Fine-tune a checkpoint on tasks, over seeds and sweeps, and write a report.

    Processes with one --workdir share the trials; the last one writes the report.

    retry: train trials again that failed before
    """

    name = "finetune"
    examples = (
        "ag-jax finetune --config=finetune/glue:checkpoint=runs/quickstart/ag-seed0,tasks=sst2,rte,scale=small "
        "--workdir=runs/glue",
        "ag-jax finetune --config=finetune/own:checkpoint=runs/quickstart/ag-seed0,train=a.csv,text=review,"
        "label=stars,scale=small --workdir=runs/reviews",
    )
    kinds = (FinetuningConfig,)
    config: Config
    workdir: str
    retry: bool = False
    print_config: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(OnHosts):
    """Train or probe every arm of a config for pre-training, translation, fine-tuning or probes; write a report.

    Processes with one --workdir share the work; the last one writes the report.

    retry: train runs or trials again that failed before
    """

    name = "compare"
    examples = (
        "ag-jax compare --config=quickstart --workdir=runs/quickstart",
        "ag-jax compare --config=quickstart --config.comparison.seeds=0,1,2 --workdir=runs/three_seeds",
    )
    kinds = (ExperimentConfig, FinetuningConfig, ProbingConfig)
    config: Config
    workdir: str
    retry: bool = False
    trust_code: bool = False
    print_config: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(OnHosts):
    """Train every point of a config's grids, and choose the best; the same command resumes it.

    Processes with one --workdir share the runs; the last one writes the report.

    retry: train the runs again that failed before
    """

    name = "search"
    examples = (
        "ag-jax search --config=quickstart_search --workdir=runs/search",
        "ag-jax search --config=ag/section4_5_search:language=oromo,layers=12 --workdir=runs/oromo",
        "ag-jax train --config=ag/table3_language_modeling:language=oromo,arm=ag,best=runs/oromo --workdir=runs/ag",
        "ag-jax help search.     # the settings of the section `search`",
    )
    kinds = (ExperimentConfig,)
    config: Config
    workdir: str
    retry: bool = False
    print_config: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(OnHosts):
    """Measure a run's loss on held-out text and score its translations; with a config, probe a model's heads."""

    name = "evaluate"
    examples = (
        "ag-jax evaluate --workdir=runs/quickstart/ag-seed0",
        "ag-jax evaluate --config=probe:checkpoint=runs/quickstart/ag-seed0 --workdir=runs/probes",
        "ag-jax evaluate --config=probe:checkpoint=runs/quickstart/ag-seed0,ablation=held_out --workdir=runs/heads",
    )
    kinds = (ProbingConfig,)
    config: Config | None = None
    workdir: str
    step: Step = None
    trust_code: bool = False
    print_config: bool = False

    def __post_init__(self):
        if self.config is not None and self.step is not None:
            raise ValueError(
                f"--step={self.step} does not apply to probes: give the step of the checkpoint as the setting "
                f"--config.step={'N' if self.step == 'best' else self.step} instead"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate(Verb):
    """Translate a text line by line with a trained model; the same command resumes an interrupted one.

    input: text to translate, a sentence in each line; - reads standard input
    output: file for the translations, a line each; - writes to standard output
    decoding: settings of the search that replace the run's, such as beam_size=1; `ag-jax help decoding` explains them
    engine: program that searches: ag_jax, or ctranslate2 (`pip install 'ag_jax[ctranslate2]'`), which is faster on CPUs
        and has fewer settings of the search
    """

    name = "translate"
    examples = (
        "ag-jax translate --workdir=runs/mine --input=new.en --output=new.de",
        'echo "A dog runs." | ag-jax translate --workdir=runs/mine --input=- --output=-',
        "ag-jax translate --workdir=runs/mine --input=new.en --output=new10.de --decoding=beam_size=10",
        "ag-jax translate --workdir=runs/mine --input=new.en --output=new.de --engine=ctranslate2 "
        "--decoding=normalization=power,stop=full,ends=first",
    )
    workdir: str
    input: str
    output: str
    decoding: Names = ()
    engine: Literal["ag_jax", "ctranslate2"] = "ag_jax"
    step: Step = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspect(Verb):
    """Draw the attention maps of a model for a sentence, or for a sentence and its translation.

    target: translation of that sentence to look at; the model's own by default
    layers: layers of the figure of heads, counted from 0: 0,5,11, or all; by default the first, the middle and the last
    heads: heads that the figure of heads shows, as LAYER.HEAD, counted from 0: 3.2,4.1; with --html, heads that the
        page stores whole at every step, not only at the first and last
    without: heads of the encoder whose outputs are zeroed, as LAYER.HEAD, counted from 0: 3.2,4.1; what changes is the
        attention of later layers
    html: file for an interactive page with all heads, which opens in a browser without a network, in place of the
        figures; without a value, maps.html
    against: directories of further models for that page, to compare with
    steps: steps of the run for that page, such as 0,1000, or all; the page gets a slider
    """

    name = "inspect"
    examples = (
        'ag-jax inspect --workdir=runs/quickstart/ag-seed0 --text="We will rebuild our roads."',
        'ag-jax inspect --workdir=runs/translation/ag-seed0 --text="A dog runs." --target="Ein Hund läuft."',
        'ag-jax inspect --workdir=runs/quickstart/ag-seed0 --text="We will rebuild our roads." --without=3.2,4.1',
        "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --layers=0,3,7",
        "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --heads=3.2,4.1",
        "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --against=runs/quickstart/plain-seed0 --html=maps.html",
        "ag-jax inspect --workdir=runs/quickstart/ag-seed0 --steps=all --html",
    )
    workdir: str
    text: str | None = None
    target: str | None = None
    layers: Names = ()
    heads: Names = ()
    without: Names = ()
    html: str | None = None
    against: Names = ()
    steps: Names = ()
    step: Step = None
    trust_code: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import(Verb):
    """Turn a Hugging Face model, or a RoBERTa of fairseq, into a run directory.

    source: a directory of the model, or the name of a Hugging Face model on the hub, NAME or NAME@REVISION
    expect: beginnings of the names of tensors that may be left out, such as classifier
    """

    name = "import"
    examples = ("ag-jax import --from=FacebookAI/roberta-base --workdir=runs/roberta-base",)
    source: str
    workdir: str
    expect: Names = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Verb):
    """Write a run's checkpoint as a model that transformers opens, or its milestones as a small run to share.

    destination: directory for the model, which will be created
    format: transformers for a Hugging Face model; run for a run directory with the weights of the milestones, without
        the optimizer's state, which ag_jax opens, but cannot train on
    milestones: export the checkpoints of all training.milestone_words, to chck_1M and so on below --to, and the last to
        main; --push makes them revisions of one repository
    dtype: type of the tensors: float32, bfloat16 or float16
    license: licence that the model card states; that of the imported model by default
    language: languages that the model card states, as codes of ISO 639: en,de
    datasets: training data that the model card states, as names on the Hugging Face hub; by default those of a known
        task
    push: push the export to the Hugging Face hub, too, as NAME or OWNER/NAME; needs huggingface_hub
    private: only you can see what --push creates on the hub
    encoder: of a run that detects replaced tokens: model, or generator for the encoder that replaces tokens
    """

    name = "export"
    examples = (
        "ag-jax export --workdir=runs/quickstart/ag-seed0 --to=models/quickstart",
        "ag-jax export --workdir=runs/quickstart/ag-seed0 --to=models/quickstart --language=en "
        "--license=apache-2.0 --push=quickstart-ag --private",
        "ag-jax export --workdir=runs/babylm/guided-seed0 --to=models/babylm-guided --milestones --language=en",
        "ag-jax export --workdir=runs/quickstart/ag-seed0 --to=shared/ag --format=run --dtype=float16",
    )
    workdir: str
    destination: str
    format: Literal["transformers", "run"] = "transformers"
    step: Step = None
    milestones: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    license: str = ""
    language: Names = ()
    datasets: Names = ()
    push: str | None = None
    private: bool = False
    encoder: Literal["model", "generator"] = "model"

    def __post_init__(self):
        of_transformers = ("milestones", "license", "language", "datasets", "push", "private", "encoder")
        given = [name for name in of_transformers if getattr(self, name) != getattr(type(self), name)]
        if self.format == "run" and given:
            flags = " and ".join(f"--{name}" for name in given)
            raise ValueError(f"{flags} applies to Hugging Face models, not to --format=run: leave one of them out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepare(Verb):
    """Tokenise the text of a config once, before training; several processes and machines share the work."""

    name = "prepare"
    examples = (
        "ag-jax prepare --config=quickstart --config.data.source=books/",
        "ag-jax prepare --config=ag/table9_tpu_gpu --config.data.cache_dir=gs://BUCKET/cache",
    )
    kinds = (ExperimentConfig,)
    config: Config
    print_config: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer(Verb):
    """Train the tokenizer of a config, and try it on a text."""

    name = "tokenizer"
    examples = ("ag-jax tokenizer --config=quickstart --workdir=runs/tokenizer",)
    kinds = (ExperimentConfig,)
    config: Config
    workdir: str
    text: str | None = None
    print_config: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Verb):
    """Estimate memory, time and cost on a TPU slice; no TPU needed.

    topology: TPU slice to plan for, such as v5e:4x4 or v4-8
    slices: number of such slices, connected by the network of the data center
    search_batch: search for the largest batch that fits; --nosearch_batch is faster
    price: dollars for a chip for an hour, to estimate the cost
    workdir: directory for plan.json
    """

    name = "plan"
    examples = ("ag-jax plan --config=ag/table9_tpu_gpu:hardware=tpu --topology=v5e:2x4 --price=1.20",)
    kinds = (ExperimentConfig,)
    config: Config
    topology: str
    slices: int = 1
    search_batch: bool = True
    price: Annotated[float, Ge(0)] | None = None
    workdir: str | None = None
    print_config: bool = False


VERBS: dict[str, type[Verb]] = {
    verb.name: verb
    for verb in (
        *(Train, Finetune, Compare, Search, Evaluate, Translate),
        *(Inspect, Import, Export, Prepare, Tokenizer, Plan),
    )
}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a verb.

    field: name of the field that holds its value.
    annotation: annotation of this field.
    default: default of this field; `dataclasses.MISSING` if the flag must be given.
    meaning: what help says of it.
    """

    field: str
    annotation: Any
    default: Any
    meaning: str


def flags_of(verb: type[Verb]) -> dict[str, Flag]:
    """Return the flags of a verb except --config, {name as one types it: flag}, with those of base classes last."""
    hints, common = get_type_hints(verb, include_extras=True), Verb.__annotations__ | OnHosts.__annotations__
    fields = [field for field in dataclasses.fields(verb) if field.name != "config"]
    meanings: dict[str, str] = {}
    for kind in reversed(verb.__mro__):
        meanings |= entries(inspect.getdoc(kind) or "", hints)
    return {
        FLAG_OF_FIELD.get(field.name, field.name): Flag(
            field.name, hints[field.name], field.default, meanings[field.name]
        )
        for field in sorted(fields, key=lambda field: field.name in common)
    }


def required(verb: type[Verb]) -> list[str]:
    """Return the names of the fields of a verb whose flags must be given."""
    return [field.name for field in dataclasses.fields(verb) if field.default is dataclasses.MISSING]

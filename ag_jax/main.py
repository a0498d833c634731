"""The command `ag-jax VERB [--config=...] [--workdir=...]`: flags, then one call."""

import sys

from absl import flags
from ml_collections import config_flags

from ag_jax import interruption

USAGE = """ag-jax: pre-train Transformer encoders with guided attention, fine-tune them, and look inside.

  ag-jax train     --config=FILE[:ARGUMENTS] --workdir=DIR    train one run; the same command goes on with it
  ag-jax compare   --config=FILE[:ARGUMENTS] --workdir=DIR    train every arm and seed, write report.md
  ag-jax evaluate  --workdir=DIR [--step=N]                   loss of a run's checkpoint on held-out text
  ag-jax evaluate  --config=configs/finetune/glue.py:checkpoint=DIR,data=FOLDER --workdir=DIR
                                                              fine-tune on tasks, over seeds and sweeps, write report.md
  ag-jax inspect   --workdir=DIR [--text=...] [--step=N]      draw the attention maps of a sentence
  ag-jax tokenizer --config=FILE[:ARGUMENTS] --workdir=DIR    train the config's tokenizer, try it on --text
  ag-jax plan      --config=FILE[:ARGUMENTS] --topology=SLICE memory and speed on a TPU slice, without having it
                   [--price=DOLLARS]                        and the cost, from the price of a chip-hour
  ag-jax convert   --from=hf --path=MODEL --workdir=DIR       a Hugging Face model (directory or hub name) as a run
  ag-jax convert   --to=hf --workdir=DIR --path=MODEL         a run's checkpoint as a model that transformers opens

Several machines, the same command on each (train, compare and evaluate, but not fine-tuning):
  --coordinator=HOST:PORT --hosts=N --host=I    HOST is machine 0's, I this one's number; N machines in all
  --hosts=auto                                  SLURM, Open MPI, Kubernetes; on a TPU pod slice even that is not needed
  --join_timeout=SECONDS                        how long to wait until all are there

Settings are changed with --config.SECTION.KEY=VALUE; --print_config shows them all and stops.
Start with:  ag-jax compare --config=configs/quickstart.py --workdir=runs/quickstart
"""
VERBS = ("train", "compare", "evaluate", "inspect", "tokenizer", "plan", "convert")


class _NumberOrNone(flags.ArgumentParser):
    """A number, or the word none for a setting that may be none."""

    def __init__(self, numbers: flags.ArgumentParser):
        self._numbers, self.syntactic_help = numbers, numbers.syntactic_help

    def parse(self, argument):
        return None if argument in (None, "none") else self._numbers.parse(argument)

    def flag_type(self) -> str:
        return self._numbers.flag_type()


config_flags.register_flag_parser_for_type(int, _NumberOrNone(flags.IntegerParser()))
config_flags.register_flag_parser_for_type(float, _NumberOrNone(flags.FloatParser()))
_CONFIG = config_flags.DEFINE_config_file("config", None, "Config file, and after a colon its arguments.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run.")
_STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint to use; the newest by default.")
_TEXT = flags.DEFINE_string("text", None, "A sentence to look at.")
_TOPOLOGY = flags.DEFINE_string("topology", None, "TPU slice to plan for, such as v5e:4x4 or v4-8.")
_SEARCH_BATCH = flags.DEFINE_bool("search_batch", True, "Whether to search for the largest batch that fits.")
_PRICE = flags.DEFINE_float("price", None, "Dollars per chip-hour, for the cost of a planned run.")
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "Print the resolved config as JSON and stop.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of host 0, which all hosts can reach.")
_HOSTS = flags.DEFINE_string("hosts", None, "How many hosts there are, or auto.")
_HOST = flags.DEFINE_integer("host", None, "The number of this host, from 0 on.")
_JOIN_TIMEOUT = flags.DEFINE_integer("join_timeout", 1800, "Seconds to wait for the other hosts.")
_FROM = flags.DEFINE_enum("from", None, ["hf"], "Where to convert from.")
_TO = flags.DEFINE_enum("to", None, ["hf"], "Where to convert to.")
_PATH = flags.DEFINE_string(
    "path", None, "Directory of the other library's model; with --from=hf also a name of its hub."
)
_EXPECT = flags.DEFINE_list("expect", [], "Beginnings of names of tensors that may be left out, such as classifier.")
_DTYPE = flags.DEFINE_string("dtype", "float32", "Type of the tensors to write: float32, bfloat16 or float16.")
_LICENSE = flags.DEFINE_string("license", "", "Licence that the model card is to state.")
_PART = flags.DEFINE_enum("part", "model", ["model", "generator"], "What of a run to write with --to=hf.")
# In the order of a Request.
_FLAGS = (_WORKDIR, _STEP, _TEXT, _PRINT_CONFIG, _TOPOLOGY, _SEARCH_BATCH, _PRICE)
_FLAGS += (_COORDINATOR, _HOSTS, _HOST, _JOIN_TIMEOUT, _FROM, _TO, _PATH, _EXPECT, _DTYPE, _LICENSE, _PART)


def main(argv: list[str]) -> int:
    """Parse the command line, run the verb, return the exit status: 0, 1 for a failure, 2 for a wrong command."""
    if any(argument in ("--help", "-h", "help") for argument in argv[1:]) or len(argv) == 1:
        print(USAGE)
        return 0 if len(argv) > 1 else 2
    from ag_jax import (
        cli,  # not at the top: --help need not wait for JAX
        config_reader,
    )

    try:
        config_reader.check_flags(argv[1:], cli.KINDS)
        positional = flags.FLAGS(argv)[1:]
        if len(positional) != 1 or positional[0] not in VERBS:
            raise ValueError(
                f"expected one verb of {', '.join(VERBS)}, got {' '.join(positional) or 'none'}; see --help"
            )
    except (flags.Error, ValueError, OSError) as error:
        print(cli.shortened(f"ag-jax: {error}"), file=sys.stderr)
        return 2

    source = config_flags.get_config_filename(flags.FLAGS["config"]) if _CONFIG.value else None
    overrides = config_flags.get_override_values(flags.FLAGS["config"]) if _CONFIG.value else {}
    values = (flag.value for flag in _FLAGS)
    return cli.run_safely(positional[0], cli.Request(source, overrides, *values))


def console() -> None:
    """Entry point of the `ag-jax` command."""
    sys.exit(interruption.guard(lambda: main(sys.argv)))


if __name__ == "__main__":
    console()

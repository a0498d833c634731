"""Pre-train RoBERTa-12 with and without attention guidance on TPUs and GPUs (table 9).

Deshpande & Narasimhan 2020, table 9 (appendix A.4).

Both arms, `plain` and `ag`, one after the other:

    bash launch/tpu.sh create table9 --accelerator=v5litepod-8 --spot
    bash launch/tpu.sh run table9 -- compare --config=ag/table9_tpu_gpu:hardware=tpu --workdir=gs://BUCKET/table9_tpu
    JAX_PLATFORMS=cuda bash launch/local.sh compare --config=ag/table9_tpu_gpu:hardware=gpu --workdir=runs/table9_gpu
    bash launch/local.sh compare --config=ag/table9_tpu_gpu:scale=small --workdir=runs/table9_small

To fine-tune both models on the tasks of the table:

    ag-jax compare --config=finetune/downstream:runs=RUNS,tasks=mnli,qnli,qqp,protocol=ag --workdir=DIR

where RUNS is the --workdir of a finished comparison. docs/tpu.md explains each step, including the data. To train only
one arm, use `ag-jax train` with `...,arm=plain` or `...,arm=ag`.

Hardware and time: the paper trained for 8 epochs on TPUs of an unnamed kind, and for 7 on GPUs (8 NVIDIA Tesla P40 for
its English models, section 4.5). That is 129,657 steps of 256 sequences on the TPU, 345,752 of 84 on the GPUs. This
command estimates hours, memory and cost on a TPU slice: `ag-jax plan --config=ag/table9_tpu_gpu:hardware=tpu,arm=ag
--topology=v5e:2x4`. scale=small: about four minutes for each arm on 2 CPU cores. It shows that everything runs: its 600
steps are too few for the arm `plain` to leave the plateau, so compare arms with the quickstart instead.

`hardware` changes only the batch size, the epochs and with them the number of steps, the title of the report, and
whether the layers are a loop (not on TPUs, where a step then takes less time, and compilation more). In both cases the
mesh has all devices on its data axis, so the same command works with any number of devices that divides the batch size:
256 sequences can be divided over 4, 8, 32 or 256 chips, and 84 over 1, 2, 3, 4, 6 or 7 GPUs, or over 8 GPUs with
--config.mesh.tensor=2 (4 x 2).

Expected (plain/ag, scores of GLUE's server):

    GPU   MNLI-m 78.9/79.0   MNLI-mm 77.6/78.9   QNLI 86.1/86.8   QQP 68.4/68.9
    TPU   MNLI-m 80.3/81.2   MNLI-mm 80.8/81.4   QNLI 88.7/89.0   QQP 69.3/69.7

The losses should be those of table 3's RoBERTa-12 or a little lower. scale=paper has not been run with this program
yet.

Deviations: the paper does not give batch and mesh on the TPU. Here a step has 256 sequences on a TPU slice and the 84
of table 11 on GPUs. The other hyperparameters are those of table 11. Both compute in bfloat16. Where the paper is
silent, optimizer, guidance loss and the schedule of alpha are those of the released code, see
ag/table3_language_modeling.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

EPOCHS = {"tpu": 8, "gpu": 7}


def get_config(*, hardware: OneOf("tpu", "gpu") = "tpu", arm: OneOf("ag", "plain") = "ag", scale: Scale = "paper"):
    """Return the config.

    hardware: accelerator whose batch and mesh are used.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = f"RoBERTa-12 on {hardware.upper()}"
    pretraining.attention_guidance_code(config)
    pretraining.table_11(config, "english", 12, arm)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    if hardware == "tpu":
        config.training.batch_size = 256
        config.model.scan_layers = False
    pretraining.epochs(config, pretraining.ENGLISH_TOKENS, EPOCHS[hardware])
    if scale == "small":
        pretraining.small(config)
    config.comparison.arms = "plain,ag"
    return config

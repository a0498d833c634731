"""RoBERTa-12 with and without attention guidance on a TPU and on GPUs: one config but for batch and mesh.

Deshpande & Narasimhan 2020, table 9 (appendix A.4).

    ag-jax compare --config=configs/ag/table9_tpu_gpu.py:hardware=tpu --workdir=DIR
    ag-jax compare --config=configs/ag/table9_tpu_gpu.py:hardware=gpu --workdir=DIR
    ag-jax compare --config=configs/ag/table9_tpu_gpu.py:scale=small --workdir=DIR

Hardware and time: 8 epochs on a TPU (kind not given) and on 8 P40 GPUs in the paper. scale=small: about four minutes an
arm on 2 CPU cores.

Expected: the paper gives downstream scores alone (MNLI-m 78.9/79.0 on GPU, 80.3/81.2 on TPU for MLM/AG); the losses are
those of table 3's RoBERTa-12 or a little lower. Nobody has run scale=paper with this program yet.

Deviations: batch and mesh on the TPU are not given in the paper. Here a TPU slice takes 256 rows a step over all its
chips, with the hyperparameters of table 11 otherwise; GPUs take table 11's 84.
"""

from ag_jax import experiment, presets

EPOCHS = {"tpu": 8, "gpu": 7}
ENGLISH_TOKENS = 2116e6


def get_config(argument: str = ""):
    """`hardware`: tpu or gpu; `arm`: ag or mlm; `scale`: paper or small."""
    chosen = experiment.arguments(argument, hardware=("tpu", "gpu"), arm=("ag", "mlm"), scale=("paper", "small"))
    config = experiment.default_config()
    config.title = f"RoBERTa-12 on {chosen.hardware.upper()}"
    presets.attention_guidance_code(config)
    presets.table_11(config, "english", 12, chosen.arm)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    if chosen.hardware == "tpu":
        config.training.batch_size = 256
    presets.epochs(config, ENGLISH_TOKENS, EPOCHS[chosen.hardware])
    if chosen.scale == "small":
        presets.small(config)
    config.comparison.arms = "mlm,ag"
    return config

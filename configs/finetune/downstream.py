"""Fine-tune every model of a comparison of pre-training on downstream tasks.

Many tables compare pre-training by downstream scores: Liu et al. 2019 (RoBERTa), tables 1 to 4; He et al. 2021
(DeBERTa), table 4; Deshpande & Narasimhan 2020, table 9. The models are trained by the first command, and their
downstream scores by the second:

    ag-jax compare --config=roberta/table3_batch_size --workdir=runs/table3
    ag-jax compare --config=finetune/downstream:runs=runs/table3,tasks=mnli,sst2 --workdir=runs/table3_tasks

`runs` is the --workdir of a finished `ag-jax compare`. Each of its arms is an arm here, with the model of one seed
(`seed`) as checkpoint.

Hardware and time: that of `finetune/glue` and the like, multiplied by the number of arms. scale=small takes minutes for
each trial on 2 CPU cores.

Expected: see `ag-jax help CONFIG` for the config that trained the models, such as roberta/table3_batch_size.

Deviations: RoBERTa and DeBERTa tune learning rate and batch size for each model; so does protocol=roberta here, by the
development scores, and protocol=deberta outside GLUE. DeBERTa's paper also tunes warm-up and dropout of the task's
head, as sweep=paper does for all tasks, with up to 192 points each. With several seeds of pre-training, compare one
seed at a time.
"""

from ag_jax.pretraining import finished
from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import OneOf, Scale


def get_config(
    *,
    runs: str,
    tasks: tuple[str, ...],
    protocol: OneOf(*finetuning.PROTOCOLS) = "roberta",
    sweep: OneOf("short", "paper") = "short",
    seed: int = 0,
    seeds: int = 5,
    data: str = "",
    arm: str = "",
    scale: Scale = "paper",
):
    """Return the config.

    runs: directory of a finished comparison of pre-training.
    tasks: comma-separated names of tasks.
    protocol: paper whose settings are used: RoBERTa, Adversarial Self-Attention (asa), attention guidance (ag) or
        DeBERTa, for base or large models.
    sweep: of DeBERTa's settings, `short` with one point of tasks of GLUE and 16 of others (learning rate and batch
        size), or `paper` also over warm-up and dropout of the head (up to 192). A warm-up that is longer than a trial
        is an error; leave it out of `tasks.TASK.sweep.warmup_steps`.
    seed: seed of pre-training whose model is fine-tuned.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    arm: variant to fine-tune; `ag-jax compare` fine-tunes them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    arms, pretrained = finished.comparison(runs)
    if seed not in pretrained:
        raise ValueError(f"seed={seed}: {runs} has the seeds {', '.join(map(str, pretrained))}")
    arm = arm or arms[0]
    if arm not in arms:
        raise ValueError(f"arm={arm}: {runs} has the arms {', '.join(arms)}")
    config = finetuning.suite("Downstream tasks of the models of a comparison", seeds=seeds, data=data)
    config.checkpoint = f"{runs.rstrip('/')}/{arm}-seed{seed}"
    finetuning.PROTOCOLS[protocol](config, tasks)
    finetuning.deberta_sweep(config, sweep, protocol)
    if scale == "small":
        finetuning.small(config)
    config.arms = ",".join(arms)
    return config

"""One's own task from any checkpoint: fine-tune on CSV, JSONL, CoNLL or SQuAD files.

Devlin et al. 2019 (fine-tuning of a pre-trained encoder); Mosbach et al. 2021 (settings for small data sets).

    ag-jax finetune --config=finetune/own:checkpoint=CHECKPOINT,train=a.csv,text=review,label=stars --workdir=DIR
    ag-jax finetune --config=finetune/own:checkpoint=CHECKPOINT,kind=multilabel,train=a.csv,text=comment,\
label=toxic,obscene,threat --workdir=DIR
    ag-jax finetune --config=finetune/own:checkpoint=CHECKPOINT,kind=tagging,train=a.jsonl,validation=b.jsonl \
--workdir=DIR
    ag-jax compare --config=finetune/own:checkpoint=CHECKPOINT,train=a.csv,text=review,label=stars,seeds=3 \
--config.arms=plain,r_drop,asa --workdir=DIR
    ag-jax finetune --config=finetune/own:checkpoint=CHECKPOINT,task=conll2003,labels=PER,ORG,LOC,DATE,data=FOLDER \
--workdir=DIR

The labels are read from the training file, and without a validation file one training example in ten is held out. With
`task` and `labels` but without `train`, the tags of a task of the catalogue are replaced, and its files are read from
its folder below `data`: the last command reads MasakhaNER's files, which have CoNLL-2003's form and also mark dates, as
FOLDER/conll2003/train.txt, valid.txt and test.txt.
`ag-jax compare` trains without an attack (plain) and with adversarial self-attention (asa), or the arms that
`--config.arms` names.
docs/custom_tasks.md explains the files. The weights with the best validation score are saved (keep=best).

Hardware and time: scale=small takes minutes on 2 CPU cores for several thousand short texts.

Expected: depends on the data. The report shows how many examples there are, and which of them are repeated.

Deviations: protocol=moderate is no paper's: learning rate 2e-5, batches of 16, at most 10 epochs, a tenth of the steps
as warm-up, and an end after 3 epochs without a better score. The other protocols are those of finetune/glue;
protocol=deberta has a sweep of 16 points, and with sweep=paper of 192.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import OneOf, Scale

PROTOCOLS = {"moderate": finetuning.moderate, **finetuning.PROTOCOLS}


def get_config(
    *,
    checkpoint: str,
    kind: OneOf("classification", "multilabel", "regression", "choice", "tagging", "span") = "classification",
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    choices: tuple[str, ...] = (),
    id: str | None = None,
    labels: tuple[str, ...] = (),
    scheme: OneOf("auto", "bio", "iob1", "ioe1", "ioe2", "bioes", "bilou", "plain") = "auto",
    held_out: int = 10,
    separator: OneOf("auto", "comma", "semicolon", "tab") = "auto",
    reader: str | None = None,
    metric: str | None = None,
    task: str = "own",
    protocol: OneOf(*PROTOCOLS) = "moderate",
    sweep: OneOf("short", "paper") = "short",
    arm: OneOf("plain", "longer", "r_drop", "asa", "freelb", "smart", "sift") = "plain",
    seeds: int = 1,
    data: str | None = None,
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    kind: what is predicted for each example: a class, any number of labels (multilabel), a number, the right one of
        several candidates, a tag for each word, or the part of a context that answers a question (span).
    train: file with the training examples; without it, `task` names a task of the catalogue.
    validation: file with the validation examples; without it, some training examples are held out.
    test: file with examples that are only predicted, and scored if all have labels.
    text: column with the text, of spans with the context, of tagging with the list of words; without it `text`,
        `context` or `words`.
    second: column with the second text of a pair, or with the question; spans have `question` without it.
    label: column with what is to be predicted; without it `label`, of spans `answers`, of tagging `tags`. Of multilabel
        also several columns with 0 and 1, comma-separated, each named like a label.
    choices: columns with the candidates of a choice, comma-separated, or one column with lists of texts.
    id: column with a different id for each example.
    labels: comma-separated names of the classes or labels, or entity types; without them they are read from the
        training file.
    scheme: how tags mark entities, or `plain` for tags that mark none, such as parts of speech; `auto` recognises it.
    held_out: about one in so many training examples is held out, if there is no validation file.
    separator: what separates the columns of a table; `auto` is a comma in .csv, and in .tsv a tab without quotes.
    reader: import path `module.function` of a function that reads files of another form.
    metric: metric by which epochs are chosen, such as macro_f1, or `module.function` of a custom one.
    task: name of the task, for directories and reports.
    protocol: `moderate`, or the paper whose settings are used.
    sweep: of DeBERTa's settings, `short` over learning rates and batch sizes (16 points), or `paper` also over warm-up
        and dropout of the head (192; 64 for spans). A warm-up that is longer than a trial is an error; leave it out of
        `tasks.TASK.sweep.warmup_steps`.
    arm: variant to train: without an attack (plain), without one for twice as long (longer), with R-Drop or an attack;
        `ag-jax compare` trains several.
    seeds: number of seeds with which every trial is repeated.
    data: folder that the files are in; without it paths are relative to the working directory.
    scale: `paper` as the protocol says, or `small` for small models on 2 CPU cores.
    """
    config = finetuning.suite(f"Custom task: {task}", checkpoint=checkpoint, seeds=seeds, data=data)
    PROTOCOLS[protocol](config, [task])
    finetuning.deberta_sweep(config, sweep, protocol)
    if scale == "small":
        finetuning.small(config)
    config.keep = "best"
    config.tasks[task].metric = metric
    finetuning.custom(
        config,
        task,
        kind=kind,
        train=train,
        validation=validation,
        test=test,
        text=text,
        second=second,
        label=label,
        choices=choices,
        id=id,
        labels=labels,
        scheme=scheme.replace("auto", ""),
        held_out=held_out,
        separator=separator.replace("auto", ""),
        reader=reader,
    )
    if kind == "span" and train and protocol == "moderate" and scale != "small":
        config.tasks[task].max_length = 384  # a context is long, as in Devlin et al. 2019
    if kind == "multilabel":
        config.tasks[task].patience = None  # with rare labels, micro F1 may be 0 in the first epochs
    if arm == "longer":
        finetuning.longer(config)
    elif arm != "plain":
        finetuning.attack(config, arm)
    config.arms = "plain,asa"
    return config

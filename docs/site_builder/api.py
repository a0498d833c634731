"""The pages of the Python API, one for each package: what the documentation imports, with signatures and docstrings."""

import importlib
from collections.abc import Iterator

# Heading, sentence, module, and names; without names, only the module's docstring is shown.
PUBLIC = (
    (
        "Functions",
        "[Python](../python.md) has five scripts.",
        "ag_jax",
        ("load", "pretrain", "compare", "finetune", "probe", "translate", "SettingsError"),
    ),
    ("Models", "", "ag_jax.api.model", ("Model", "Outputs")),
    ("Attention", "", "ag_jax.api.attention", ("Attention",)),
    (
        "Heads as functions",
        "[Predictions](../predictions.md) has examples. Each is a property of `Model`.",
        "ag_jax.api.pipelines.words",
        ("FillMask",),
    ),
    ("", "", "ag_jax.api.pipelines.vectors", ("Embed",)),
    ("", "", "ag_jax.api.pipelines.classes", ("Classify",)),
    ("", "", "ag_jax.api.pipelines.tags", ("Tag",)),
    ("", "", "ag_jax.api.pipelines.choices", ("Choose",)),
    ("", "", "ag_jax.api.pipelines.answers", ("Answer",)),
    ("", "", "ag_jax.api.pipelines.translations", ("Translate",)),
    ("", "", "ag_jax.api.pipelines.guesses", ("Guess",)),
    ("Results", "", "ag_jax.api.pretraining", ("Run", "Comparison")),
    ("", "", "ag_jax.api.finetuning", ("Suite",)),
    ("", "", "ag_jax.api.probing", ("Probes",)),
    (
        "Runs of pre-training",
        "What `ag_jax.pretrain` and `Run.evaluate` call. [Run directories](../runs.md) explains what they hold.",
        "ag_jax.pretraining.run",
        ("train", "evaluate"),
    ),
    ("Trained runs", "The model of a run at a checkpoint.", "ag_jax.pretraining.open_run", ("open_run", "OpenRun")),
    (
        "Models to look into",
        "What `Model.attention` looks into.",
        "ag_jax.finetuning.best",
        ("open_for_inspection",),
    ),
    ("What is opened", "The result of `open_for_inspection`.", "ag_jax.interop.opening", ("Inspected",)),
    (
        "Attention maps",
        "[Look inside](../inspect.md) has examples.",
        "ag_jax.analysis.maps",
        ("attention_maps", "AttentionMaps", "targets", "attention_mass", "measured", "mass_table"),
    ),
    (
        "Figures",
        "Pictures of attention maps, as `ag-jax inspect` draws them.",
        "ag_jax.analysis.figures.plots",
        ("draw_means", "draw_maps", "draw_patterns", "draw_training", "save", "save_inspection"),
    ),
    (
        "Attention patterns",
        "[Guide attention](../guidance.md) has a custom pattern.",
        "ag_jax.attention.patterns",
        ("columns", "neighbour", "Pointer", "Columns", "PatternInputs", "PatternTokens", "dense"),
    ),
    ("Texts of a sequence", "Custom patterns use them.", "ag_jax.attention.segments", ("order",)),
    ("Guidance", "The loss of guided heads, from two numbers of each query.", "ag_jax.attention.guidance", ()),
    (
        "Attacks on attention",
        "[Custom attacks](../custom_attacks.md) has an example.",
        "ag_jax.attention.attack",
        ("AttentionMask", "Attack", "MaskPolicy"),
    ),
    (
        "Adversaries",
        "The networks that adversarial self-attention trains.",
        "ag_jax.attention.adversary",
        ("Adversary", "reverse_gradient", "straight_through"),
    ),
    (
        "Objectives",
        "What training makes smaller.",
        "ag_jax.objectives.base",
        ("Objective", "Wrapper", "Outputs", "PrimaryMetric"),
    ),
    (
        "Objectives with an attack on attention",
        "",
        "ag_jax.objectives.adversarial.self_attention",
        ("AttackedAttention", "LearntMasks"),
    ),
    ("Divergence of two predictions", "", "ag_jax.objectives.consistency", ("DivergenceConfig", "divergence")),
    (
        "Head ablation",
        "[Head ablation](../ablation.md) explains the numbers.",
        "ag_jax.probing.ablation.heads",
        ("ablate", "HeadAblation"),
    ),
    (
        "Custom probes",
        "[Custom probes](../probes.md#custom-probes) has an example.",
        "ag_jax.data.probes.queries",
        ("Probe", "Query", "Window"),
    ),
    (
        "Scores of translations",
        "[Scores](../translation_compare.md#scores) has an example.",
        "ag_jax.evaluation.translation",
        (),
    ),
    (
        "Config files",
        "A config file has a function `get_config` that returns a config. [Settings](../settings.md) explains them.",
        "ag_jax.settings.config_files",
        ("load", "read", "Config", "OneOf", "ListOf"),
    ),
    ("", "", "ag_jax.settings.schema", ("default", "parse")),
    ("Configs of pre-training", "", "ag_jax.pretraining.config", ("default_config", "parse")),
    ("Configs of fine-tuning", "Its classes are `FinetuningConfig` and `Recipe`.", "ag_jax.finetuning.config", ()),
    (
        "Settings of papers, for config files",
        "",
        "ag_jax.recipes.pretraining",
        ("encoder", "attention_guidance_code", "continue_from"),
    ),
)


def pages() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the page of each package; the first, that of `ag_jax` itself, lists the others."""
    packages = dict.fromkeys(_package(module) for _, _, module, _ in PUBLIC)
    names = {package: package.replace("ag_jax", "python").replace(".", "_") for package in packages}
    for package, name in names.items():
        sections = [block for row in PUBLIC if _package(row[2]) == package for block in _section(*row)]
        if package == "ag_jax":
            others = [other for other in packages if other != package]
            parts = [
                "# Python API",
                "This page has the names of `import ag_jax`. Config files, custom patterns, attacks and probes use "
                "other packages, which are listed below. Names of arrays end with their axes ([terms](../terms.md)): "
                "`weights_NHQK` has the axes layer, head, query and key.",
                *sections,
                "## Other packages",
                "\n".join(f"* [{other}]({names[other]}.md): {_summary(other)}" for other in others),
                "```{toctree}\n:hidden:\n\n" + "\n".join(names[other] for other in others) + "\n```",
            ]
        else:
            parts = [f"# {package}", _summary(package), *sections]
        yield name, "\n\n".join(parts) + "\n"


def _package(module: str) -> str:
    """Return the package on whose page a module is; what `import ag_jax` gives is defined in `ag_jax.api`."""
    parts = module.split(".")
    return ".".join(parts[:3] if "pipelines" in parts else parts[:2]).removesuffix(".api")


def _summary(package: str) -> str:
    return (importlib.import_module(package).__doc__ or "").partition("\n")[0]


def _section(heading: str, text: str, module: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the blocks of a module: a heading, a sentence and autodoc's directives."""
    yield from (f"## {heading}",) if heading else ()
    yield from (text,) if text else ()
    directives = [f".. automodule:: {module}\n   :no-members:"]
    directives += [f".. autofunction:: {module}.{name}" for name in names if name[0].islower()]
    directives += [f".. autoclass:: {module}.{name}\n   :members:" for name in names if name[0].isupper()]
    yield "```{eval-rst}\n" + "\n\n".join(directives) + "\n```"

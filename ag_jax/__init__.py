"""Pre-train, fine-tune and look inside Transformer encoders whose attention is guided or attacked.

    import ag_jax

    model = ag_jax.load("runs/bert")  # also a suite, or a Hugging Face model
    model.attention("The lawyers praised themselves.").save("bert.html")
    run = ag_jax.pretrain("quickstart:arm=ag", workdir="runs/mine", texts=my_list_of_texts)

Names are imported when they are first used, because JAX takes seconds.
"""

import difflib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ag_jax.api.attention import Attention
    from ag_jax.api.configs import Config, Settings, SettingsError
    from ag_jax.api.finetuning import Suite, finetune
    from ag_jax.api.model import Model, Outputs, load, translate
    from ag_jax.api.pretraining import Comparison, Run, compare, pretrain
    from ag_jax.api.probing import Probes, probe
    from ag_jax.api.texts import Texts

_MODULES = {
    "attention": ("Attention",),
    "configs": ("Config", "Settings", "SettingsError"),
    "finetuning": ("Suite", "finetune"),
    "model": ("Model", "Outputs", "load", "translate"),
    "pretraining": ("Comparison", "Run", "compare", "pretrain"),
    "probing": ("Probes", "probe"),
    "texts": ("Texts",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Attention",
    "Comparison",
    "Config",
    "Model",
    "Outputs",
    "Probes",
    "Run",
    "Settings",
    "SettingsError",
    "Suite",
    "Texts",
    "compare",
    "finetune",
    "load",
    "pretrain",
    "probe",
    "translate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        near = difflib.get_close_matches(name, _MODULE_OF, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module 'ag_jax' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"ag_jax.api.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

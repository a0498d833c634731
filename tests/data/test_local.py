"""Settings whose files must be on a disk: an address in an object store is named, with the setting."""

import re

import pytest

from ag_jax.data.parallel import layouts, pairs
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.probing.config import AblationConfig, MinimalPairsConfig, ProbeConfig

SETTINGS = {
    "data of tasks": ("data", lambda path: FinetuningConfig(checkpoint="run", tasks={"sst2": Recipe()}, data=path)),
    "custom task": ("custom.test", lambda path: CustomTask(kind="classification", train="train.tsv", test=path)),
    "probe": ("data", lambda path: ProbeConfig(kind="coreference", data=path)),
    "ablation": ("ablation.data", lambda path: AblationConfig(data=path)),
    "minimal pairs": ("minimal_pairs.data", lambda path: MinimalPairsConfig(data=path)),
    "parallel corpus": ("data", lambda path: layouts.find("multi30k", path, "en", "de")),
    "pairs": ("data.target", lambda path: next(iter(pairs.PairFiles(__file__, path)))),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_files_in_an_object_store_are_rejected(setting):
    name, use = SETTINGS[setting]
    with pytest.raises(
        ValueError, match=f"^{re.escape(name)}=gs://bucket/files must be on a disk: copy the files there"
    ):
        use("gs://bucket/files")

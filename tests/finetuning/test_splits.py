"""What is counted of malformed rows, and tasks whose released code cannot be followed."""

import pytest

from ag_jax.finetuning import splits
from ag_jax.finetuning.config import Recipe


@pytest.mark.parametrize("few", [0, 9])
def test_folds_count_malformed_rows_once(tmp_path, few):
    (tmp_path / "oromo_ner").mkdir()
    (tmp_path / "oromo_ner" / "all.conll").write_text("Caaltuu\tB-PER\ndeemte\tO\n\n" * 12 + "deemte\tB-VERB\n\n" * 2)
    recipe = Recipe(folds=4, skip_malformed=True, train_examples=few)
    found = splits.read("oromo_ner", recipe, str(tmp_path))
    for number in range(4):
        of_fold = splits.of_fold(found, number, 4)
        parts = [of_fold.train, of_fold.validation, *of_fold.others.values()]
        assert sum(map(len, parts)) == (few or 12) and sum(part.skipped for part in parts) == 2


def test_why_qqp_is_not_chosen_as_released_code_did():
    with pytest.raises(ValueError, match="leave it out; of qqp: .*dev_and_test.tsv that is not GLUE's, which has no labels"):
        splits.find_task("qqp", Recipe(legacy_eval=True))
    with pytest.raises(ValueError, match=r"\(anli, anli_r1, .*dream\): leave it out$"):
        splits.find_task("sst2", Recipe(legacy_eval=True))

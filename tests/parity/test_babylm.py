"""The calls of BabyLM's evaluation pipeline on what `ag-jax export --milestones` writes.

The pipeline itself could not be had. `Reader` makes the calls that its `mlm` backend makes: AutoModelForMaskedLM,
AutoProcessor with offsets, and one masked token at a time.
"""

import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

import jax
from etils import epath

from ag_jax import main
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.interop import exporting
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import generator_parameters
from ag_jax.pretraining import build, initial_weights, run_directory, words
from ag_jax.pretraining.open_run import OpenRun, open_run
from ag_jax.recipes import babylm
from ag_jax.settings import config_files
from ag_jax.training import sharding
from tests.cases import some
from tests.interop.test_milestones import train
from tests.test_configs import CONFIGS, TEXT, TINY

SENTENCES = ["The union is strong, and nobody builds a road.", "Number 7 is  it:\tÄpfel und Öl?"]


class Reader:
    """A model as the pipeline reads it."""

    def __init__(self, place: pathlib.Path):
        self.model = transformers.AutoModelForMaskedLM.from_pretrained(place, trust_remote_code=True).eval()
        processor = transformers.AutoProcessor.from_pretrained(place, padding_side="right", trust_remote_code=True)
        self.tokenizer = getattr(processor, "tokenizer", processor)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def encode(self, sentence: str) -> tuple[list[int], list[tuple[int, int]], list[int]]:
        """Return the token ids of a sentence, their offsets, and the positions that are scored."""
        found = self.tokenizer(
            sentence, return_offsets_mapping=True, return_special_tokens_mask=True, return_attention_mask=True
        )
        scored = [place for place, special in enumerate(found["special_tokens_mask"]) if not special]
        return found["input_ids"], found["offset_mapping"], scored

    def masked(self, ids: list[int], scored: list[int]) -> torch.Tensor:
        """Return a row for each scored position, in which it alone is masked."""
        rows = torch.tensor(ids).repeat(len(scored), 1)
        rows[range(len(scored)), scored] = self.tokenizer.mask_token_id
        return rows

    def logits(self, rows: torch.Tensor, scored: list[int]) -> np.ndarray:
        """Return the logits of all words at the masked position of each row."""
        with torch.no_grad():
            found = self.model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits
        return found[range(len(scored)), scored].numpy()

    def score(self, sentence: str, prefix: str = "") -> float:
        """Return the pseudo-log-likelihood of a sentence, without the tokens of `prefix`, found by their offsets."""
        ids, offsets, scored = self.encode(sentence)
        scored = [place for place in scored if offsets[place][1] > len(prefix)]
        log_probs = torch.log_softmax(torch.tensor(self.logits(self.masked(ids, scored), scored)), -1)
        return float(log_probs[range(len(scored)), torch.tensor(ids)[scored]].sum())


def our_logits(opened: OpenRun, rows: np.ndarray, scored: list[int]) -> np.ndarray:
    batch = {
        "tokens": rows.astype(np.int32),
        "segment_ids": np.ones_like(rows, np.int32),
        "token_type_ids": np.zeros_like(rows, np.int32),
        "masked_positions": np.array(scored, np.int32)[:, None],
    }
    return np.asarray(opened.model.apply({"params": opened.params}, batch, deterministic=True).words_BMV)[:, 0]


def compare(place: pathlib.Path, opened: OpenRun) -> list[float]:
    """Check a reader's tokens, offsets and logits against a run's; return the scores of the sentences."""
    reader, scores = Reader(place), []
    special = opened.tokenizer.specials
    for sentence in SENTENCES:
        ids, offsets, scored = reader.encode(sentence)
        assert ids == [special.begin, *opened.tokenizer.encode(sentence), special.end]
        assert scored == list(range(1, len(ids) - 1))
        ends = [offsets[position][1] for position in scored]
        assert ends == sorted(ends) and ends[-1] == len(sentence) and offsets[scored[0]][0] == 0
        rows = reader.masked(ids, scored)
        ours = our_logits(opened, rows.numpy(), scored)
        theirs = reader.logits(rows, scored)
        np.testing.assert_allclose(theirs[:, : ours.shape[1]], ours, atol=1e-5, rtol=0)
        log_probs = np.asarray(jax.nn.log_softmax(ours, -1))[range(len(scored)), np.array(ids)[scored]]
        np.testing.assert_allclose(reader.score(sentence), log_probs.sum(), rtol=1e-5)
        prefix = sentence[: sentence.index(" ")]
        inside = [end > len(prefix) for end in ends]
        assert 0 < sum(inside) < len(inside)
        np.testing.assert_allclose(reader.score(sentence, prefix), log_probs[inside].sum(), rtol=1e-5)
        scores.append(reader.score(sentence))
    return scores


def test_the_milestones_of_a_run(tmp_path):
    workdir = train(tmp_path, **{"data.sequence_length": 64, "model.max_length": 64, "optimizer.learning_rate": 1e-2})
    assert main.main(["ag-jax", "export", f"--workdir={workdir}", f"--to={tmp_path / 'out'}", "--milestones"]) == 0
    steps = words.read(workdir).milestones
    at = {"chck_1K": steps[1_000], "chck_2500": steps[2_500], "main": run_directory.read_summary(workdir)["steps"]}
    scores = [compare(tmp_path / "out" / name, open_run(workdir, step)) for name, step in at.items()]
    assert scores[0] != scores[1] != scores[2]


# The model of `guided` is that of `plain`, which the test above has, and `test_parity.py` has all their parts.
@pytest.mark.parametrize("arm", some(babylm.ARMS, "electra", "deberta"))
def test_every_arm_is_taken(arm, tmp_path, one_device):
    """With random parameters: of `electra`, whose model has no word head, the generator."""
    tokenizer = tokenizers.train(TokenizerConfig(vocabulary_size=300), [TEXT] * 3)
    given = TINY | {"model.width": 24, "model.heads": 4, "model.layers": 4, "model.initializer_range": 0.2}
    given |= {"data.source": "sotu", "data.tokenizer.path": str(tmp_path / "tokenizer")}
    tokenizer.save(tmp_path / "tokenizer")
    source = f"{CONFIGS / 'babylm/strict_small.py'}:source=x,scale=small,arm={arm}"
    config = config_files.load(source, given).settings
    program = build.shared_program(config, tokenizer, sharding.make_mesh(config.mesh))
    workdir = epath.Path(tmp_path / "run")
    initial_weights.write(config, workdir, tokenizer, program.create(jax.random.key(3)).params)
    encoder = "generator" if arm == "electra" else "model"
    written = exporting.convert(workdir, None, str(tmp_path / "out"), encoder=encoder)
    assert written.predicts_words and written.architecture == {
        "deberta": "DebertaV2ForMaskedLM",
        "modernbert": "ModernBertForMaskedLM",
        "electra": "ElectraForMaskedLM",
    }.get(arm, "RobertaForMaskedLM")
    opened = open_run(workdir)
    if arm == "electra":
        opened = Generator(opened)
    compare(tmp_path / "out", opened)


class Generator:
    """The generator of a run, with the attributes of `OpenRun` that `compare` reads."""

    def __init__(self, opened: OpenRun):
        self.tokenizer = opened.tokenizer
        self.model = PretrainingModel(opened.model.generator_config)
        self.params = generator_parameters(opened.params)

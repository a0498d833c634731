"""Every family against `transformers`: what a model computes, and its weights in both directions.

Run by `.ci/run`, which installs the extra `parity`; skipped where torch is not installed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.interop import exporting, importing, names
from ag_jax.interop import source as sources
from ag_jax.models.encoder import Encoder
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.replaced_tokens import detection_loss
from ag_jax.pretraining.open_run import open_run
from tests import tiny
from tests.cases import some
from tests.parity import examples

LENGTHS = (23, 17, 5, 1)
TEXTS = [
    "The state of our union is strong. We will rebuild our roads, and we will do it together.",
    "Äpfel und Öl?",
] * 3
CASES = [(name, seed) for name in examples.FAMILIES for seed in (0, 1)]
# `bert_pairs` has the encoder and the word head of `bert`, and `camembert` is `roberta` by another name.
USUAL = [("bert_pairs", 1), ("roberta", 0), ("electra", 1), ("electra_generator", 0), ("deberta", 0), ("deberta", 1)]
USUAL += [("deberta_v2", 0), ("deberta_v3", 1), ("modernbert", 1)]


class Case:
    """A random model of theirs, the run that it was imported as, and the directory that the run was exported to."""

    def __init__(self, name: str, seed: int, directory):
        kind = "byte_bpe" if name in ("roberta", "camembert", "deberta") else "wordpiece"
        tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=300), TEXTS)
        self.pad = tokenizer.specials.pad
        self.vocabulary = tokenizer.vocabulary_size + seed  # also with rows that no token has
        self.theirs = examples.FAMILIES[name].make(self.vocabulary, self.pad, seed)
        self.theirs.save_pretrained(directory / "theirs")
        tokenizer.save(directory / "theirs")
        importing.convert(str(directory / "theirs"), epath.Path(directory / "run"))
        exporting.convert(epath.Path(directory / "run"), None, str(directory / "ours"))
        self.directory, self.tokenizer = directory, tokenizer
        self.opened = open_run(directory / "run")
        self.pairs, self.detects = "next_head" in self.opened.params, "discriminator_head" in self.opened.params
        self.batch = self._batch(seed)

    def _batch(self, seed: int):
        rng = np.random.default_rng(seed)
        shape = (len(LENGTHS), max(LENGTHS))
        segment_ids = (np.arange(shape[1])[None, :] < np.array(LENGTHS)[:, None]).astype(np.int32)
        tokens = np.where(segment_ids > 0, rng.integers(5, self.vocabulary, shape), self.pad).astype(np.int32)
        kinds = max(self.opened.model.config.token_types, 1)
        labels = rng.integers(5, self.vocabulary, shape).astype(np.int32)
        return {
            "tokens": tokens,
            "original": tokens,
            "segment_ids": segment_ids,
            "token_type_ids": rng.integers(0, kinds, shape).astype(np.int32) * segment_ids,
            "masked_positions": np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1)),
            "masked_labels": labels,
            "masked_weights": ((rng.random(shape) < 0.4) & (segment_ids > 0)).astype(np.float32),
            "next_labels": np.arange(shape[0], dtype=np.int32) % 2,
        }

    def ask(self, theirs, **options):
        """What one of their models says of the batch."""
        batch = {name: torch.tensor(value, dtype=torch.long) for name, value in self.batch.items()}
        inputs = {"input_ids": batch["tokens"], "attention_mask": batch["segment_ids"]}
        if self.opened.model.config.token_types > 1:
            inputs["token_type_ids"] = batch["token_type_ids"]
        return theirs(**inputs, **options)

    @property
    def valid(self):
        return self.batch["segment_ids"] > 0


@pytest.fixture(
    scope="module",
    params=some([(case,) for case in CASES], *((case,) for case in USUAL)),
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def case(request, tmp_path_factory):
    return Case(*request.param, tmp_path_factory.mktemp("parity"))


def close(ours, theirs, tolerance):
    ours = ours.detach().numpy() if hasattr(ours, "detach") else ours
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else theirs
    np.testing.assert_allclose(
        np.asarray(ours), theirs, atol=tolerance * max(1.0, np.abs(theirs).max()), rtol=tolerance
    )


def test_forward(case):
    """Logits, hidden states and attention weights, where a token is."""
    said, sown = case.opened.model.apply(
        {"params": case.opened.params}, case.batch, deterministic=True, mutable=["intermediates"]
    )
    encoder = Encoder(case.opened.model.config)
    hidden = encoder.apply({"params": case.opened.params["encoder"]}, case.batch, deterministic=True)
    with torch.no_grad():
        out = case.ask(case.theirs, output_hidden_states=True, output_attentions=True)
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    ours = said.replaced_BL if case.detects else said.words_BMV
    close(hidden[case.valid], out.hidden_states[-1].numpy()[case.valid], 1e-4)
    close(ours[case.valid], logits.numpy()[case.valid], 1e-4)
    if "seq_relationship_logits" in out:
        close(said.next_B2, out.seq_relationship_logits, 1e-4)
    weights_NBHQK = sown["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]
    assert len(out.attentions) == len(weights_NBHQK)
    seen_BHQK = np.broadcast_to(case.valid[:, None, :, None], weights_NBHQK.shape[1:])
    for ours_BHQK, theirs_BHQK in zip(weights_NBHQK, out.attentions, strict=True):
        assert theirs_BHQK.numpy()[seen_BHQK].std() > 0.01, "the attention is too even to tell anything"
        np.testing.assert_allclose(np.asarray(ours_BHQK)[seen_BHQK], theirs_BHQK.numpy()[seen_BHQK], atol=1e-5)


def test_losses_and_gradients(case):
    """The loss of the masked words (and of pairs), and its gradient for every weight, by their names."""
    batch = jax.tree.map(jnp.asarray, case.batch)

    def loss(params):
        if case.detects:
            logits_BL = case.opened.model.apply({"params": params}, batch, deterministic=True).replaced_BL
            total, _ = detection_loss(logits_BL, batch["masked_weights"] > 0, batch["segment_ids"] > 0)
            return total / (batch["segment_ids"] > 0).sum()
        objective = Pretraining(case.opened.model)
        totals, weights = (
            tiny.evaluate(objective, params, batch, None, jnp.int32(0)).totals,
            objective.normalizers(batch),
        )
        return sum(totals[term] / weights[term] for term in totals)

    ours, gradient = jax.jit(jax.value_and_grad(loss))(case.opened.params)
    chosen = case.batch["masked_weights"] > 0
    labels = {"labels": chosen if case.detects else np.where(chosen, case.batch["masked_labels"], -100)}
    if case.pairs:
        labels["next_sentence_label"] = case.batch["next_labels"]
    case.theirs.zero_grad()
    labels = {
        name: torch.tensor(value, dtype=torch.float if case.detects else torch.long) for name, value in labels.items()
    }
    theirs = case.ask(case.theirs, **labels).loss
    theirs.backward()
    close(ours, theirs, 1e-4)

    family = sources.read(case.directory / "theirs").family
    flat = {path: np.asarray(leaf) for path, leaf in names.flat(gradient).items()}
    wanted = names.stored_tensors(family.names, {path: leaf.shape for path, leaf in flat.items()})
    stored = names.store(wanted, flat, np.dtype(np.float32))
    parameters = dict(case.theirs.named_parameters(remove_duplicate=False))
    assert set(parameters) - set(stored) <= set(family.tied) | {
        f"{family.root}.pooler.dense.{x}" for x in ("weight", "bias")
    }
    for name, value in stored.items():
        theirs = parameters[name].grad.numpy().copy()
        if name.endswith(
            ("word_embeddings.weight", "tok_embeddings.weight")
        ):  # PyTorch gives the padding's row no gradient from the input
            value[case.pad], theirs[case.pad] = 0, 0
        scale = np.abs(theirs).max()
        assert scale > 1e-6 or "position" in name or "key" in name or "rel" in name, f"{name} has no gradient"
        np.testing.assert_allclose(value, theirs, atol=1e-4 * max(scale, 0.1), err_msg=name)


def test_the_export_opens_in_stock_transformers(case):
    """The same logits from the very same values, nothing missing and nothing left over."""
    kind = transformers.AutoModelForPreTraining if case.pairs or case.detects else transformers.AutoModelForMaskedLM
    loaded, report = kind.from_pretrained(
        case.directory / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(loaded) is type(case.theirs)
    assert not any(report.values()), report
    for name, value in case.theirs.state_dict().items():
        if "pooler" not in name or case.pairs:
            assert torch.equal(loaded.state_dict()[name], value), name
    with torch.no_grad():
        first, second = case.ask(case.theirs), case.ask(loaded.eval())
    for name in first:
        seen = torch.tensor(case.valid) if first[name].shape[:2] == case.valid.shape else slice(None)
        close(first[name][seen], second[name][seen], 1e-5)
    for other in (transformers.AutoModel, transformers.AutoModelForSequenceClassification):
        _, report = other.from_pretrained(case.directory / "ours", output_loading_info=True)
        missing = [name for name in report["missing_keys"] if "pooler" not in name]
        assert not [name for name in missing if not name.startswith("classifier")], (
            "no weight of the encoder is missing"
        )


def test_import_export_import_is_bit_equal(case):
    importing.convert(str(case.directory / "ours"), epath.Path(case.directory / "again"))
    again = open_run(case.directory / "again")
    assert again.model.config == case.opened.model.config
    first, second = names.flat(case.opened.params), names.flat(again.params)
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        assert np.array_equal(np.asarray(leaf).view(np.uint32), np.asarray(second[path]).view(np.uint32)), path

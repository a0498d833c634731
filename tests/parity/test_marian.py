"""MarianMT of `transformers` against ours: logits, loss, tokens of searches, tokenizers; and CTranslate2."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.parallel import toys
from ag_jax.interop import ctranslate2_engine, exporting, importing, marian
from ag_jax.models import beam_search
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.decoder import reorder
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.objectives.config import TranslationConfig
from ag_jax.objectives.translation import Translation
from ag_jax.pretraining import run, translate
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.training.config import OptimizerConfig, TrainingConfig
from tests import marian_files, tiny
from tests.cases import some

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

LENGTHS = (13, 9, 4, 1)  # of sources, end token included
TARGETS = (7, 11, 1, 5)  # of their translations, end token included
NEW_TOKENS = 9
STARTS = ("zero", "begin")  # of decoders
SEPARATE = {"share_encoder_decoder_embeddings": False}
# Settings, and what is added to the end token's bias, so that some of the texts end and some do not.
VARIANTS = {
    "swish": ({"activation_function": "swish", "scale_embedding": True}, 3.0),
    "relu": ({"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3}, 2.6),
    "two_tables": ({"activation_function": "gelu"} | SEPARATE, 2.8),
    # As the models of OPUS-MT: the final bias of padding is not small, and its probability is left out.
    "opus": ({"generation": {"renormalize_logits": True}, "padding": 4.0, "scale_embedding": True}, 3.0),
    "three_tables": ({"activation_function": "silu", "tie_word_embeddings": False} | SEPARATE, 4.0),
}


def make(directory, seed, ending, padding=0.0, generation=None, **settings):
    """A random MarianMT with the files of two sentencepiece models; its texts end early if `ending` is large."""
    vocabulary = marian_files.write_tokenizer(directory)
    pad = vocabulary["<pad>"]
    heads = 3
    config = transformers.MarianConfig(
        **{
            "vocab_size": len(vocabulary),
            "d_model": 4 * heads,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "encoder_ffn_dim": 17,
            "decoder_ffn_dim": 17,
            "max_position_embeddings": 37,
            "dropout": 0.0,
            "pad_token_id": pad,
            "eos_token_id": vocabulary["</s>"],
            "decoder_start_token_id": pad,
            "forced_eos_token_id": None,
            "attn_implementation": "eager",
        }
        | settings
    )
    torch.manual_seed(seed)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                base = 1.0 if name.endswith("norm.weight") else 0.0
                parameter.copy_(base + 0.4 * torch.randn(parameter.shape))
        model.final_logits_bias.copy_(0.5 * torch.randn(model.final_logits_bias.shape))
        model.final_logits_bias[0, config.eos_token_id] += ending
        model.final_logits_bias[0, pad] = padding
        model.model.decoder.embed_tokens.weight[pad] = 0
    model.generation_config.update(bad_words_ids=[[pad]], max_length=37, **generation or {})
    model.save_pretrained(directory)
    return model


class Case:
    """A random model of theirs, the run that it was imported as, and the directory that the run was exported to."""

    def __init__(self, settings, ending, seed, directory):
        (directory / "theirs").mkdir()
        self.theirs = make(directory / "theirs", seed, ending, **settings)
        importing.convert(str(directory / "theirs"), epath.Path(directory / "run"))
        exporting.convert(epath.Path(directory / "run"), None, str(directory / "ours"))
        self.directory, self.opened = directory, open_run(directory / "run")
        rng = np.random.default_rng(seed)
        self.vocabulary, self.pad = self.theirs.config.vocab_size, self.theirs.config.pad_token_id
        self.has_padding = not self.theirs.generation_config.renormalize_logits
        self.batch = self._batch(rng)

    def _batch(self, rng):
        end = self.opened.tokenizer.specials.end
        sides = []
        for lengths in (LENGTHS, TARGETS):
            segments = (np.arange(max(lengths))[None, :] < np.array(lengths)[:, None]).astype(np.int32)
            tokens = np.where(segments > 0, rng.integers(2, self.vocabulary - 1, segments.shape), self.pad)
            tokens[np.arange(len(lengths)), np.array(lengths) - 1] = end
            sides += [tokens.astype(np.int32), segments]
        tokens, segments, labels, target_segments = sides
        inputs = np.pad(labels, ((0, 0), (1, 0)), constant_values=self.pad)[:, :-1]
        return {
            "tokens": tokens,
            "segment_ids": segments,
            "token_type_ids": np.zeros_like(tokens),
            "target_tokens": np.where(target_segments > 0, inputs, self.pad).astype(np.int32),
            "target_labels": labels,
            "target_segment_ids": target_segments,
            "target_weights": target_segments.astype(np.float32),
        }

    def ask(self, model, **options):
        """What one of their models says of the batch."""
        batch = {name: torch.tensor(value, dtype=torch.long) for name, value in self.batch.items()}
        inputs = {"input_ids": batch["tokens"], "attention_mask": batch["segment_ids"]}
        labels = batch["target_labels"].masked_fill(batch["target_segment_ids"] == 0, -100)
        return model(**inputs, decoder_input_ids=batch["target_tokens"], labels=labels, **options)


@pytest.fixture(scope="module", params=some(VARIANTS, "swish", "relu", "opus", "three_tables"))
def case(request, tmp_path_factory):
    return Case(*VARIANTS[request.param], len(request.param), tmp_path_factory.mktemp("marian"))


def close(ours, theirs, tolerance=1e-5):
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else theirs
    np.testing.assert_allclose(np.asarray(ours), theirs, atol=tolerance * max(1.0, np.abs(theirs).max()), rtol=0)


def test_logits_attention_and_loss(case):
    """On padded sources and targets, where a token is; the decoder begins with the zero vector."""
    assert case.opened.config.decoder.start == "zero"
    said, sown = case.opened.model.apply(
        {"params": case.opened.params}, case.batch, deterministic=True, mutable=["intermediates"]
    )
    with torch.no_grad():
        out = case.ask(case.theirs, output_attentions=True)
    is_target = case.batch["target_segment_ids"] > 0
    words = slice(None) if case.has_padding else slice(case.pad)  # padding is the last word
    close(said.words_BTV[is_target][:, words], out.logits.numpy()[is_target][:, words])
    sown = sown["intermediates"]
    for ours, theirs in (
        (sown["encoder"]["layers"]["attention"], out.encoder_attentions),
        (sown["decoder"]["layers"]["attention"], out.decoder_attentions),
        (sown["decoder"]["layers"]["cross_attention"], out.cross_attentions),
    ):
        weights_NBHQK = np.asarray(ours["attention_weights"][0])
        assert len(theirs) == len(weights_NBHQK)
        is_query = case.batch["segment_ids"] > 0 if theirs is out.encoder_attentions else is_target
        seen = np.broadcast_to(is_query[:, None, :, None], weights_NBHQK.shape[1:])
        for of_layer, theirs_BHQK in zip(weights_NBHQK, theirs, strict=True):
            assert theirs_BHQK.numpy()[seen].std() > 0.01, "the attention is too even to tell anything"
            close(of_layer[seen], theirs_BHQK.numpy()[seen])
    if not case.has_padding:  # the loss of transformers includes padding
        out.loss = torch.nn.functional.cross_entropy(
            out.logits[torch.tensor(is_target)][:, words],
            torch.tensor(case.batch["target_labels"][is_target], dtype=torch.long),
        )
    objective = Translation(case.opened.model, TranslationConfig(label_smoothing=0.0))
    totals, metrics, _ = tiny.evaluate(objective, case.opened.params, case.batch, None, jnp.int32(0))
    for total, weight in ((totals["translation"], is_target.sum()), metrics["nll"]):
        close(total / weight, out.loss)


def searched(case, config, sources):
    """The tokens of the best translations that our search finds, up to the end token, their scores, and the batch."""
    model, variables = case.opened.model, {"params": case.opened.params}
    longest = max(map(len, sources)) + 1
    specials = case.opened.tokenizer.specials
    tokens = np.full((len(sources), longest), specials.pad, np.int32)
    for row, source in enumerate(sources):
        tokens[row, : len(source) + 1] = [*source, specials.end]
    segments = (tokens != specials.pad).astype(np.int32)

    @jax.jit
    def search(tokens, segments):
        batch = {"tokens": tokens, "segment_ids": segments, "token_type_ids": jnp.zeros_like(tokens)}
        source = model.apply(variables, batch, method="encode")
        cache = model.apply(variables, len(sources), config.beam_size, NEW_TOKENS, method="empty_cache")

        def step(cache, tokens_BJ, index):
            return model.apply(variables, source, cache, tokens_BJ, index, method="step")

        return beam_search.search(
            step,
            cache,
            config=config,
            start_B=jnp.full(len(sources), specials.pad),
            end=specials.end,
            forbidden=(specials.pad,),
            min_lengths_B=jnp.zeros(len(sources), jnp.int32),
            max_lengths_B=jnp.full(len(sources), NEW_TOKENS),
            steps=NEW_TOKENS,
            reorder=reorder,
        )

    found = search(tokens, segments)
    best = [found.tokens_BKT[row, 0, : found.lengths_BK[row, 0]].tolist() for row in range(len(sources))]
    return best, found.scores_BK[:, 0], tokens, segments


SEARCHES = {
    "greedy": ({"beam_size": 1, "stop": "full", "ends": "first"}, {"num_beams": 1}),
    "beam": (
        {"beam_size": 4, "normalization": "power", "length_penalty": 1.0, "stop": "bound", "ends": "first"},
        {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"},
    ),
    "first_ended": (
        {"beam_size": 3, "normalization": "power", "length_penalty": 0.6, "stop": "full", "ends": "first"},
        {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True},
    ),
}


@pytest.mark.parametrize(
    ("case", "kind"),
    some(
        [(variant, kind) for kind in SEARCHES for variant in VARIANTS],
        *[("swish", kind) for kind in SEARCHES],
        *[("opus", "beam"), ("relu", "first_ended"), ("three_tables", "beam")],
    ),
    indirect=["case"],
)
def test_tokens_of_searches(case, kind):
    """32 random sources of unequal lengths, of which some translations end and some reach the maximum length."""
    ours, theirs = SEARCHES[kind]
    rng = np.random.default_rng(3)
    sources = [rng.integers(2, case.vocabulary - 1, rng.integers(1, 12)).tolist() for _ in range(32)]
    found, scores, tokens, segments = searched(case, DecodingConfig(**ours), sources)
    end = case.opened.tokenizer.specials.end
    with torch.no_grad():
        generated = case.theirs.generate(
            input_ids=torch.tensor(tokens, dtype=torch.long),
            attention_mask=torch.tensor(segments, dtype=torch.long),
            max_length=None,
            max_new_tokens=NEW_TOKENS,
            return_dict_in_generate=True,
            output_scores=True,
            **theirs,
        )
    expected = []
    for row in generated.sequences[:, 1:].tolist():
        expected.append(list(itertools.takewhile(lambda token: token not in (end, case.pad), row)))
        expected[-1] += [end] * (len(expected[-1]) < NEW_TOKENS)
    assert found == expected
    if kind == "beam" and case.has_padding:
        np.testing.assert_allclose(scores, generated.sequences_scores.numpy(), rtol=1e-4)
    ended = sum(row[-1] == end for row in found)
    few = f"{ended} of 32 translations ended, which tells little"
    assert ended > 3 and (ended < 32 or kind == "first_ended"), few


def test_the_export_opens_in_stock_transformers(case):
    """The same values and logits, nothing missing and nothing left over; the tables of sinusoids are in the file."""
    loaded, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        case.directory / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(loaded) is transformers.MarianMTModel
    assert not any(report.values()), report
    for name, value in case.theirs.state_dict().items():
        if name == "final_logits_bias" and not case.has_padding:
            assert loaded.state_dict()[name][0, case.pad] == -100
        elif "embed_positions" in name:
            close(loaded.state_dict()[name], value, 2e-5)
        else:
            assert torch.equal(loaded.state_dict()[name], value), name
    with torch.no_grad():
        ours, theirs = case.ask(loaded.eval()).logits, case.ask(case.theirs).logits
    words = slice(None) if case.has_padding else slice(case.pad)
    close(ours[:, :, words], theirs[:, :, words])
    generation = loaded.generation_config
    assert generation.bad_words_ids == [[case.pad]] and generation.forced_eos_token_id is None
    assert generation.decoder_start_token_id == case.pad and generation.max_length == 37


@pytest.mark.parametrize(
    ("case", "kind", "start"),
    some(
        [(variant, kind, start) for kind in ("greedy", "first_ended") for variant in VARIANTS for start in STARTS],
        *[(variant, "first_ended", "zero") for variant in VARIANTS],
        ("two_tables", "first_ended", "begin"),
    ),
    indirect=["case"],
)
def test_hypotheses_of_the_engine_ctranslate2(case, kind, start):
    """All hypotheses of 32 random sources, without padding, whose probability CTranslate2 gives to the other tokens."""
    pytest.importorskip("ctranslate2", reason="needs the extra: pip install 'ag_jax[parity]'")
    ours = translate.translator_of(case.opened)
    model = ours.model.clone(decoder_config=dataclasses.replace(ours.model.decoder_config, start=start))
    params = marian.without_padding(ours.params, case.pad)
    ours = dataclasses.replace(ours, model=model, params=params, start=5).with_decoding(**SEARCHES[kind][0])
    rng = np.random.default_rng(3)
    sources = [rng.integers(2, case.vocabulary - 1, rng.integers(1, 12)).tolist() for _ in range(32)]
    expected, found = (one._search(sources, 32, 16) for one in (ours, ctranslate2_engine.with_ctranslate2(ours)))
    assert np.array_equal(found.lengths_BK, expected.lengths_BK) and found.lengths_BK.min() < found.lengths_BK.max()
    longest = min(found.tokens_BKT.shape[-1], expected.tokens_BKT.shape[-1])
    assert np.array_equal(found.tokens_BKT[:, :, :longest], expected.tokens_BKT[:, :, :longest])
    np.testing.assert_allclose(found.scores_BK, expected.scores_BK, rtol=1e-4)


PROBES = [
    *marian_files.SOURCES,
    *marian_files.TARGETS,
    "",
    "the 漢字 dog 漢, ß",
    ">>deu<< a cat",
    ">>xx<<the",
    ">>no code",
    "  two  spaces ",
    "dog\tÄ Öl ?",
]


@pytest.mark.parametrize("case", ["swish"], indirect=True)
@pytest.mark.parametrize("folder", ["theirs", "ours", "run/tokenizer"])
def test_tokenizers_of_two_models(case, folder):
    """Their tokenizer on their files, on ours, and on those of the run, which all give our ids on both sides."""
    theirs = transformers.MarianTokenizer.from_pretrained(case.directory / folder)
    ours = case.opened.tokenizer
    assert theirs.source_lang == "eng" and theirs.target_lang == "deu"
    for text in PROBES:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
        target = ours.encode_targets([text])[0]
        assert target == theirs(text_target=text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(target) == theirs.decode(target, skip_special_tokens=True), text
        located, places = ours.locate_batch([text])[0]
        covered = "".join(text[begin:end] for begin, end in places)
        assert located == ours.encode(text) and "".join(covered.split()) == "".join(text.split())
    assert ours.encode("the dog") != ours.encode_targets(["the dog"])[0]
    assert theirs("a cat")["input_ids"] == [*ours.encode("a cat"), ours.specials.end]


def toy_config(folder, kind: str, size: int) -> ExperimentConfig:
    """A small model for a toy language that it learns in 200 steps, so that its translations end."""
    model = {"layers": 2, "heads": 2, "width": 32, "feedforward": 48, "max_length": 60, "dropout": 0.0}
    return ExperimentConfig(
        data=DataConfig(
            format="parallel",
            source=str(folder / "train.source"),
            target=str(folder / "train.target"),
            sequence_length=40,
            pack=True,
            tokenizer=TokenizerConfig(kind=kind, vocabulary_size=size),
        ),
        model=EncoderConfig(
            **model,
            position_offset=0,
            positions="sinusoidal",
            sinusoid="tensor2tensor",
            token_types=0,
            embedding_norm=False,
            embedding_scale=True,
            activation="relu",
            attention_biases=False,
            attention_dropout=0.0,
            initializer_range=32**-0.5,
        ),
        decoder=DecoderConfig(layers=2),
        translation=TranslationConfig(label_smoothing=0.0, average=2),
        decoding=DecodingConfig(normalization="power", length_penalty=1.0, ends="first", max_length="39"),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=20, decay="inverse_sqrt", beta2=0.98),
        training=TrainingConfig(
            steps=200, batch_size=16, evaluate_every=None, checkpoint_every=20, keep_last=2, tensorboard=False
        ),
    )


UNIGRAM = (("sentencepiece_unigram", 78),)


@pytest.fixture(scope="module", params=some([UNIGRAM, (("byte_bpe", 400),)], UNIGRAM), ids=lambda kind: kind[0])
def trained(request, tmp_path_factory):
    """A trained run, its export, and 50 sentences that it has not seen."""
    folder = tmp_path_factory.mktemp("toy")
    toys.write(folder, "dictionary", {"train": 2000, "test": 50})
    device = jax.devices()[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: [device])
        run.train(toy_config(folder, *request.param), folder / "run")
    exporting.convert(epath.Path(folder / "run"), None, str(folder / "out"))
    return folder, (folder / "test.source").read_text().splitlines()


def flags(settings):
    """Settings of decoding as the flag --decoding has them."""
    return [f"{name}={value}" for name, value in settings.items()]


def test_transformers_translates_as_we_do(trained):
    """With the settings of generation that were exported: beam search; and greedily."""
    folder, lines = trained
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    right = (folder / "test.target").read_text().splitlines()
    for decoding, options in (
        ({}, {}),
        ({"beam_size": 1, "stop": "full"}, {"num_beams": 1, "early_stopping": False, "length_penalty": 1.0}),
    ):
        ours = [found[0].text for found in translate.open_translator(folder / "run", decoding=flags(decoding))(lines)]
        with torch.no_grad():
            generated = model.generate(**batch, **options)
        theirs = [text.strip() for text in tokenizer.batch_decode(generated, skip_special_tokens=True)]
        assert ours == theirs
        assert sum(a == b for a, b in zip(ours, right, strict=True)) >= 40, "the model has not learnt the language"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"length_penalty": 0.6, "max_length": "0.7x+1"},  # many reach the maximum length of their own sentence
        {"normalization": "none", "length_penalty": 0.6, "beam_size": 5},
        {"normalization": "gnmt", "beam_size": 1},
    ],
    ids=["beam", "cut", "none", "greedy"],
)
def test_the_engine_ctranslate2_searches_as_we_do(trained, changed):
    """All hypotheses of 50 sentences, with their scores."""
    pytest.importorskip("ctranslate2", reason="needs the extra: pip install 'ag_jax[parity]'")
    folder, lines = trained
    ours = translate.open_translator(folder / "run", decoding=flags({"stop": "full", "ends": "first"} | changed))
    theirs = ctranslate2_engine.with_ctranslate2(ours)
    ended = []
    for expected, found in zip(ours(lines), theirs(lines), strict=True):
        assert [one.text for one in expected] == [one.text for one in found]
        assert [one.ended for one in expected] == [one.ended for one in found]
        np.testing.assert_allclose([one.score for one in expected], [one.score for one in found], rtol=1e-3, atol=5e-4)
        ended.append(expected[0].ended)
    assert all(ended) == ("max_length" not in changed) and any(ended)


def test_ctranslate2_translates_as_we_do(trained):
    """CTranslate2 drops the last word of the vocabulary, padding, and starts from the zero vector."""
    converters = pytest.importorskip("ctranslate2.converters", reason="needs the extra: pip install 'ag_jax[parity]'")
    import ctranslate2

    folder, lines = trained
    if not (folder / "ct2").exists():
        converters.TransformersConverter(str(folder / "out")).convert(str(folder / "ct2"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines]
    results = ctranslate2.Translator(str(folder / "ct2"), device="cpu").translate_batch(sources, beam_size=1)
    theirs = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    greedy = {"beam_size": 1, "stop": "full"}
    ours = [found[0].text for found in translate.open_translator(folder / "run", decoding=flags(greedy))(lines)]
    assert ours == [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in theirs]

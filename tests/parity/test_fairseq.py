"""RoBERTas of fairseq, from the pickle to a model of stock `transformers`, against PyTorch's own layers."""

import argparse
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath

from ag_jax.interop import exporting, fairseq, importing, opening

WIDTH, HEADS, LAYERS, FEEDFORWARD, POSITIONS = 12, 3, 2, 22, 19
WORDS = [f"word{number}" for number in range(7)]
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"]
TEXTS = ["word0 <mask> word3 word3 word6", "word5 <mask>"]
ARGS = argparse.Namespace(
    arch="roberta_tiny",
    encoder_layers=LAYERS,
    encoder_embed_dim=WIDTH,
    encoder_ffn_embed_dim=FEEDFORWARD,
    encoder_attention_heads=HEADS,
    activation_fn="gelu",
    max_positions=POSITIONS,
    lr=[0.001],
)


class Encoder(torch.nn.Module):
    """What fairseq computes, with the layers of PyTorch."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(len(SYMBOLS), WIDTH)
        self.positions = torch.nn.Embedding(POSITIONS + 2, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        layers = [torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FEEDFORWARD, 0.0, "gelu") for _ in range(LAYERS)]
        self.layers = torch.nn.ModuleList(layers)
        self.dense, self.head_norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.bias = torch.nn.Parameter(torch.zeros(len(SYMBOLS)))
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))

    def forward(self, tokens):
        valid = tokens != 1
        positions = valid.cumsum(-1) * valid + 1  # from the id of padding + 1 on
        hidden = self.norm(self.words(tokens) + self.positions(positions)).transpose(0, 1)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=~valid)
        head = self.head_norm(torch.nn.functional.gelu(self.dense(hidden.transpose(0, 1))))
        return head @ self.words.weight.T + self.bias

    def checkpoint(self, early):
        """The tensors by fairseq's names, in early versions with joined projections."""
        root, norm = ("decoder", "emb_layer_norm") if early else ("encoder", "layernorm_embedding")
        names = {"words": "embed_tokens", "positions": "embed_positions", "norm": norm}
        layer = {"linear1": "fc1", "linear2": "fc2", "norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"}
        head = {"dense": "dense", "head_norm": "layer_norm", "bias": "bias"}
        tensors = {f"{root}.lm_head.weight": self.words.weight}
        for name, value in self.state_dict().items():
            first, _, rest = name.partition(".")
            if first in head:
                tensors[f"{root}.lm_head.{'.'.join(filter(None, (head[first], rest)))}"] = value
            elif first != "layers":
                tensors[f"{root}.sentence_encoder.{names[first]}.{rest}"] = value
            else:
                _, number, part, rest = name.split(".", 3)
                place = f"{root}.sentence_encoder.layers.{number}.{layer.get(part, part)}."
                if rest.startswith("in_proj_") and not early:
                    for kind, third in zip("qkv", value.chunk(3), strict=True):
                        tensors[f"{place}{kind}_proj.{rest.removeprefix('in_proj_')}"] = third
                else:
                    tensors[place + rest] = value
        return tensors


def save(directory, model, form):
    """The files of fairseq: settings in `args`, or in `cfg` with a Namespace or a dictionary in it."""
    directory.mkdir()
    (directory / "dict.txt").write_text("".join(f"{word} 3\n" for word in WORDS))
    tensors = model.checkpoint(early=form == "args")
    of_model = ARGS if form == "cfg" else vars(ARGS)
    settings = {"args": ARGS} if form == "args" else {"args": None, "cfg": {"model": of_model, "common": {"seed": 1}}}
    torch.save(settings | {"model": tensors, "extra_state": {"epoch": 7}}, directory / "model.pt")


@pytest.mark.parametrize("form", ["args", "cfg", "dictionary"])
def test_from_a_pickle_to_transformers(form, tmp_path):
    model = Encoder().eval()
    directory = tmp_path / "fairseq"
    save(directory, model, form)
    with pytest.raises(ValueError, match="is a pickle") as caught:
        importing.convert(str(directory), epath.Path(tmp_path / "run"))
    line = fairseq.CONVERSION.format(file=directory / "model.pt", directory=directory)
    assert line in str(caught.value)
    subprocess.run(line.replace("python", sys.executable, 1), shell=True, check=True)
    importing.convert(str(directory), epath.Path(tmp_path / "run"))
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "out"))

    ids = [[0, *map(SYMBOLS.index, text.split()), 2] for text in TEXTS]
    longest = max(map(len, ids))
    tokens = torch.tensor([row + [1] * (longest - len(row)) for row in ids])
    with torch.no_grad():
        wanted = model(tokens).numpy()
        loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
        theirs = loaded(**inputs).logits.numpy()
    assert type(loaded) is transformers.RobertaForMaskedLM and torch.equal(inputs["input_ids"], tokens)
    valid = tokens.numpy() != 1
    np.testing.assert_allclose(theirs[valid], wanted[valid], atol=1e-5 * np.abs(wanted).max())

    opened = opening.open_masked_lm(str(tmp_path / "run"))
    batch = {"tokens": tokens.numpy().astype(np.int32), "segment_ids": valid.astype(np.int32)}
    batch["token_type_ids"] = np.zeros_like(batch["tokens"])
    batch["masked_positions"] = np.tile(np.arange(longest, dtype=np.int32), (2, 1))
    ours = np.asarray(opened.model.apply({"params": opened.params}, batch, deterministic=True).words_BMV)
    np.testing.assert_allclose(ours[valid], wanted[valid], atol=1e-5 * np.abs(wanted).max())

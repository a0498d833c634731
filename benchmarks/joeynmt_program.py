"""Train and decode with joeynmt, as `translation_throughput.py` asks; run by a Python that has joeynmt installed.

It reads a request in each line of its standard input and writes the answer as a line of its standard output, both JSON:

    {"do": "build", "directory": DIR, "threads": N}  builds the model of DIR/joeynmt.json -> versions
    {"do": "prepare", "tokens": N}         prepares training on DIR/train.source, DIR/train.target, with batches of
                                           about N target tokens -> size of a batch in joeynmt's tokens
    {"do": "train", "steps": N}            takes training steps -> seconds and target tokens of each
    {"do": "load"}                         loads the weights in DIR/weights.npz -> {}
    {"do": "logits", "source": [ids], "target": [ids]}  writes DIR/logits.npy of one pair -> {}
    {"do": "decode", "batches": [[ids of each source], ...], "longest": [N, ...], "beams": N, "alpha": A}
                                           -> ids of the best translation of each source

Ids are those of ag_jax's tokenizer on both sides of the pipe. Training is what the loop of `TrainManager` does with a
batch: make it, forward and backward pass, clipping, Adam; without its logging and validation.
"""

import json
import pathlib
import random
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_gradient_clipper, build_optimizer
from joeynmt.datasets import PlaintextDataset
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.tokenizers import BasicTokenizer
from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
from joeynmt.vocabulary import Vocabulary

NEVER = -100.0  # bias of a token that is not generated
# Parts of the names of MarianMTModel's parameters, and what joeynmt has instead.
NAMES = {
    "encoder": {"self_attn": "src_src_att", "self_attn_layer_norm": "layer_norm"},
    "decoder": {
        "self_attn": "trg_trg_att",
        "self_attn_layer_norm": "x_layer_norm",
        "encoder_attn": "src_trg_att",
        "encoder_attn_layer_norm": "dec_layer_norm",
    },
}
OF_BOTH = {
    "q_proj": "q_layer",
    "k_proj": "k_layer",
    "v_proj": "v_layer",
    "out_proj": "output_layer",
    "fc1": "feed_forward.pwff_layer.0",
    "fc2": "feed_forward.pwff_layer.3",
    "final_layer_norm": "feed_forward.layer_norm",
}


class Program:
    """A model of joeynmt with what `translation_throughput.py` asks of it; each method answers a request."""

    def build(self, directory: str, threads: int) -> dict[str, str]:
        """Build the model, with dropout in the places where ag_jax has it and with a bias of the output layer."""
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.directory = pathlib.Path(directory)
        self.settings = json.loads((self.directory / "joeynmt.json").read_text())
        pieces, roles = self.settings["pieces"], self.settings["specials"]
        unknown, pad, begin, end = (pieces[roles[role]] for role in ("unknown", "pad", "begin", "end"))
        # The mask token is a language tag, because joeynmt never generates those.
        tokens = {"unk_token": unknown, "pad_token": pad, "bos_token": begin, "eos_token": end, "sep_token": None}
        ids = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}
        tags = {"lang_tags": [pieces[roles["mask"]]]}
        self.vocabulary = Vocabulary(list(pieces), SimpleNamespace(**tokens, **ids, **tags))
        self.theirs = [self.vocabulary.lookup(piece) for piece in pieces]
        self.ours = {theirs: ours for ours, theirs in enumerate(self.theirs)}
        self.model = build_model(self._model_settings(), self.vocabulary, self.vocabulary)
        self.model.loss_function = ("crossentropy", self.settings["label_smoothing"])
        for module in self.model.modules():
            if isinstance(module, MultiHeadedAttention):
                module.dropout.p = 0.0
            if isinstance(module, PositionwiseFeedForward):
                module.pwff_layer[2].p = 0.0
        self.model.decoder.output_layer.bias = torch.nn.Parameter(torch.zeros(len(self.vocabulary)))
        return {"torch": torch.__version__, "threads": str(torch.get_num_threads())}

    def _model_settings(self) -> dict:
        settings = self.settings
        side = {
            "type": "transformer",
            "num_heads": settings["heads"],
            "embeddings": {"embedding_dim": settings["width"], "scale": True, "dropout": settings["dropout"]},
            "hidden_size": settings["width"],
            "ff_size": settings["feedforward"],
            "dropout": settings["dropout"],
            "layer_norm": "post",
            "activation": "relu",
        }
        return {
            "encoder": side | {"num_layers": settings["layers"]},
            "decoder": side | {"num_layers": settings["decoder_layers"]},
            "tied_embeddings": True,
            "tied_softmax": True,
        }

    def prepare(self, tokens: int) -> int:
        """Read the training pairs, and choose joeynmt's batch size so that a batch has about `tokens` target tokens."""
        encode = self.vocabulary.sentences_to_ids
        data = PlaintextDataset(
            path=str(self.directory / "train"),
            src_lang="source",
            trg_lang="target",
            has_trg=True,
            has_prompt={"source": False, "target": False},
            tokenizer={"source": self._tokenizer(), "target": self._tokenizer()},
            sequence_encoder={"source": encode, "target": encode},
        )
        lengths = [(len(source) + 1, len(target) + 1) for _, source, target in (data[row] for row in range(len(data)))]
        random.Random(0).shuffle(lengths)
        size = tokens
        for _ in range(8):
            size = round(size * tokens / _tokens_of_a_batch(lengths, size))
        loader = data.make_iter(size, "token", shuffle=True, pad_index=self.model.pad_index, eos_index=3)
        self.batches = _endless(loader)
        self.optimizer = build_optimizer(
            {"optimizer": "adam", "learning_rate": 1e-4, "adam_betas": self.settings["adam_betas"]},
            self.model.parameters(),
        )
        self.clip = build_gradient_clipper({"clip_grad_norm": 1.0, "clip_grad_val": None})
        return size

    def _tokenizer(self) -> BasicTokenizer:
        tokenizer = BasicTokenizer(level="word")
        tokenizer.set_vocab(self.vocabulary)
        return tokenizer

    def train(self, steps: int) -> dict[str, list]:
        """Take training steps."""
        seconds, tokens = [], []
        self.model.train()
        for _ in range(steps):
            began = time.perf_counter()
            batch = next(self.batches)
            batch.sort_by_src_length()
            loss, _, _, correct = self.model(return_type="loss", **vars(batch))
            loss = batch.normalize(loss, "tokens")
            loss.backward()
            loss.item(), correct.item()
            self.clip(parameters=self.model.parameters())
            self.optimizer.step()
            self.model.zero_grad()
            seconds.append(time.perf_counter() - began)
            tokens.append(batch.ntokens)
        return {"seconds": seconds, "tokens": tokens}

    def load(self) -> dict:
        """Load the exported weights, and replace what joeynmt's models fix: positions, LayerNorm's epsilon, a bias."""
        arrays = np.load(self.directory / "weights.npz")
        state = {_joeynmt_name(name): torch.tensor(arrays[name]) for name in arrays if ".layers." in name}
        words = torch.zeros_like(self.model.src_embed.lut.weight)
        words[self.theirs] = torch.tensor(arrays["words"])
        bias = torch.zeros(len(words))
        bias[self.theirs] = torch.tensor(arrays["bias"])
        # The decoder starts from the zero vector. joeynmt has no vector for that but <s>, which it never generates.
        words[self.model.bos_index], bias[self.model.bos_index] = 0.0, NEVER
        tied = ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight")
        state |= dict.fromkeys(tied, words) | {"decoder.output_layer.bias": bias}
        positions = torch.tensor(arrays["positions"])[None]
        for side in (self.model.encoder, self.model.decoder):
            side.pe.pe = positions
        state |= {f"{side}.pe.pe": positions for side in ("encoder", "decoder")}
        self.model.load_state_dict(state)
        for module in self.model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = self.settings["layer_norm_epsilon"]
        self.model.eval()
        return {}

    def logits(self, source: list[int], target: list[int]) -> dict:
        """Write the logits of a pair, in the order of ag_jax's ids; `target` without start token and last label."""
        batch = self._batch([source])
        inputs = torch.tensor([[self.model.bos_index, *(self.theirs[id] for id in target)]])
        with torch.no_grad():
            encoded, _, _, _ = self.model(return_type="encode", **vars(batch))
            found, _, _, _ = self.model(
                return_type="decode",
                trg_input=inputs,
                encoder_output=encoded,
                encoder_hidden=None,
                src_mask=batch.src_mask,
                unroll_steps=None,
                trg_mask=torch.ones(1, 1, 1, dtype=torch.bool),
            )
        np.save(self.directory / "logits.npy", found[0][:, self.theirs].numpy())
        return {}

    def decode(self, batches: list[list[list[int]]], longest: list[int], beams: int, alpha: float) -> list[list[int]]:
        """Translate the sources of each batch, with at most `longest` tokens."""
        outputs = []
        for batch, most in zip(batches, longest, strict=True):
            found, _, _ = search(
                self.model,
                self._batch(batch),
                max_output_length=most,
                beam_size=beams,
                beam_alpha=alpha,
                min_output_length=0,
                generate_unk=True,
            )
            ends = self.model.eos_index, self.model.pad_index
            outputs += [[self.ours[int(id)] for id in row if int(id) not in ends] for row in found]
        return outputs

    def _batch(self, sources: list[list[int]]) -> Batch:
        lengths = [len(source) + 1 for source in sources]
        tokens = torch.full((len(sources), max(lengths)), self.model.pad_index)
        for row, source in enumerate(sources):
            tokens[row, : lengths[row]] = torch.tensor([*(self.theirs[id] for id in source), self.model.eos_index])
        return Batch(
            src=tokens,
            src_length=torch.tensor(lengths),
            src_prompt_mask=None,
            trg=None,
            trg_prompt_mask=None,
            indices=torch.arange(len(sources)),
            device=torch.device("cpu"),
            pad_index=self.model.pad_index,
            eos_index=self.model.eos_index,
            is_train=False,
        )


def _tokens_of_a_batch(lengths: list[tuple[int, int]], size: int) -> float:
    """Return the mean number of target tokens in batches of `size`, by the rule of joeynmt's `TokenBatchSampler`."""
    counts, rows, longest, tokens = [], 0, 0, 0
    for source, target in lengths:
        rows, longest, tokens = rows + 1, max(longest, source, target), tokens + target
        if longest * rows >= size:
            counts.append(tokens)
            rows = longest = tokens = 0
    return sum(counts) / len(counts)


def _endless(loader):
    while True:
        yield from loader


def _joeynmt_name(name: str) -> str:
    """Return joeynmt's name of a parameter in a layer, such as `encoder.layers.0.self_attn.k_proj.weight`."""
    side, layers, number, *parts, kind = name.split(".")
    table = NAMES[side] | OF_BOTH
    return ".".join([side, layers, number, *(table[part] for part in parts), kind])


def main() -> None:
    """Answer requests until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what joeynmt prints is no answer
    program = Program()
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(program, request.pop("do"))(**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""Plant one bug at a time in a copy of the repository, and see whether the tests notice.

    python -m tests.planted_bugs                    all bugs, in copies of this checkout
    python -m tests.planted_bugs --own              run only the tests that are named with a bug
    python -m tests.planted_bugs --changed=COMMIT   bugs in files that differ from a commit
    python -m tests.planted_bugs --only=4,12        bugs number 4 and 12
    python -m tests.planted_bugs --root=OTHER       in copies of another checkout
    python -m tests.planted_bugs --list             print the bugs and stop

A bug counts as found when one test fails. The tests named with the bug run first, with `-x`; only if they all pass
do the default run and the further tests of CI follow. Run this before and after a change that makes tests faster or
moves code: all bugs must still be found. A bug whose text is no longer in its file is an error: the code was rewritten,
so rewrite the bug, too.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CI = ("tests/buckets", "tests/launch", "tests/multihost")  # beside the default run
LEFT_OUT = (".git", ".venv*", "runs", "__pycache__", ".pytest_cache", ".cache", "*.egg-info")


@dataclasses.dataclass(frozen=True)
class Bug:
    """A bug to plant.

    what: a description.
    file: the file to change.
    right: the correct text.
    wrong: the text that replaces it.
    tests: the tests that should fail, separated by spaces.
    """

    what: str
    file: str
    right: str
    wrong: str
    tests: str


BUGS = (
    Bug(
        "a claim of RoBERTa holds if the loss is significantly higher",
        "benchmarks/roberta_tables.py",
        "agrees = sum(by_seed.values()) < 0",
        "agrees = sum(by_seed.values()) > 0",
        "tests/test_tables.py",
    ),
    Bug(
        "a claim of RoBERTa holds if its p is above the level",
        "benchmarks/roberta_tables.py",
        "test.p_corrected < SIGNIFICANT",
        "test.p_corrected > SIGNIFICANT",
        "tests/test_tables.py",
    ),
    Bug(
        "the head that a report scores is chosen by the sentences on which it is scored",
        "ag_jax/pretraining/following.py",
        "measured.scores_QNH[is_chosen_Q & development_Q]",
        "measured.scores_QNH[is_chosen_Q & ~development_Q]",
        "tests/pretraining/test_following.py",
    ),
    Bug(
        "a probe of pointers takes n't for a word of its own, although it begins in the token of do",
        "ag_jax/data/probes/pointers.py",
        "(np.diff(token_W) > 0)",
        "(np.diff(token_W) >= 0)",
        "tests/data/probes/test_pointers.py",
    ),
    Bug(
        "heads are scored on documents that data.validation_tokens left to training",
        "ag_jax/data/text/holdout.py",
        "if share == 1 or is_held_out(number, share)",
        "if number >= 0",
        "tests/data/text/test_pointers.py",
    ),
    Bug(
        "the cross-entropy of a pattern is divided by the tokens of a text, not by its queries with a target",
        "ag_jax/attention/guidance.py",
        "segments.totals(rows_BQ.astype(jnp.float32), segments_BQ)",
        "segments.sizes(segments_BQ).astype(jnp.float32)",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "queries without a target have a gradient of the cross-entropy",
        "ag_jax/attention/guidance.py",
        "jnp.where(has_target_BQK[:, None], H_BHQK - P_BQK[:, None], 0.0)",
        "H_BHQK - P_BQK[:, None]",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "a pointer may leave the text of its query",
        "ag_jax/attention/patterns.py",
        " & (key_segment_BQ == segments_BQ)",
        "",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "masked tokens repeat others",
        "ag_jax/attention/patterns.py",
        "counts_BL = (segments_BL > 0) & ~masked_BL",
        "counts_BL = segments_BL > 0",
        "tests/attention/test_patterns.py",
    ),
    Bug(
        "a token without a pointer points to the one 32,768 positions before it",
        "ag_jax/objectives/guided.py",
        "jnp.where(offset_CBL == jnp.iinfo(offset_CBL.dtype).min, -1, position_11L + offset_CBL)",
        "jnp.maximum(position_11L + offset_CBL, -1)",
        "tests/objectives/test_masked_lm_and_guided.py",
    ),
    Bug(
        "the bias reads the tokens before masking",
        "ag_jax/objectives/guided.py",
        '"tokens" if self.config.mode == "bias" else "original"',
        '"original"',
        "tests/objectives/test_masked_lm_and_guided.py",
    ),
    Bug(
        "the guidance loss counts the overlap once, not twice",
        "ag_jax/attention/guidance.py",
        "distance_NBHQ - 2.0 * overlap_NBHQ",
        "distance_NBHQ - 1.0 * overlap_NBHQ",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "[Prev] is two tokens back",
        "ag_jax/attention/patterns.py",
        "return neighbour(inputs.segments_BL, -1)",
        "return neighbour(inputs.segments_BL, -2)",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "scores are divided by the root of the length",
        "ag_jax/attention/scores.py",
        "math.sqrt(query_BQHW.shape[-1])",
        "math.sqrt(query_BQHW.shape[1])",
        "tests/attention tests/models",
    ),
    Bug(
        "c2p and p2c look up distances of the other sign",
        "ag_jax/attention/disentangled.py",
        'if term == "c2p" or config.index',
        'if term == "p2c" or config.index',
        "tests/attention/test_disentangled.py",
    ),
    Bug(
        "dropout does not scale what it keeps",
        "ag_jax/attention/dropout.py",
        "x / (1.0 - rate), jnp.zeros",
        "x, jnp.zeros",
        "tests/attention/test_dropout.py tests/models",
    ),
    Bug(
        "TPU kernel: the gradient of the sum of squares lacks its factor 2",
        "ag_jax/attention/kernels/tpu/tile.py",
        "2.0 * self.operands.g_squares",
        "1.0 * self.operands.g_squares",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "GPU kernel: the running sum of squares is rescaled once, not twice",
        "ag_jax/attention/kernels/gpu/attention.py",
        "shrink * shrink * sums[0]",
        "shrink * sums[0]",
        "tests/attention/test_kernels.py tests/attention/test_gpu.py",
    ),
    Bug(
        "causal attention sees one key of the future",
        "ag_jax/attention/visibility.py",
        "return Band(side, 0 if causal else side)",
        "return Band(side, 1 if causal else side)",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "TPU kernel: dK and dV skip the last block of queries that sees a window's keys",
        "ag_jax/attention/kernels/tpu/grid.py",
        "return self.config.band.reversed.most_blocks(self.keys.block, self.queries.block, self.queries.blocks)",
        "return self.config.band.reversed.most_blocks(self.keys.block, self.queries.block, self.queries.blocks) - 1",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "GPU kernel: dK and dV are computed with the segments of the two sides swapped",
        "ag_jax/attention/kernels/gpu/attention.py",
        "lengths[::-1], segments[::-1], band.reversed",
        "lengths[::-1], segments, band.reversed",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "the gradient of an adversary is not reversed",
        "ag_jax/attention/adversary.py",
        "(-scale * gradient)",
        "(scale * gradient)",
        "tests/attention/test_adversary.py",
    ),
    Bug(
        "a symmetric divergence is one-way",
        "ag_jax/objectives/consistency.py",
        "(forth + one_way(target(other), clean)) / 2",
        "forth",
        "tests/objectives/test_consistency.py",
    ),
    Bug(
        "the hand-written gradient of the word loss ignores the weights",
        "ag_jax/objectives/word_loss.py",
        "weights[..., None] * (jax.nn.softmax(scores) - target)",
        "(jax.nn.softmax(scores) - target)",
        "tests/objectives/test_word_loss.py",
    ),
    Bug(
        "the collapse counts the cosine of each position with itself",
        "ag_jax/objectives/plateau.py",
        "(squares_BN - count_BN) /",
        "squares_BN /",
        "tests/objectives/test_plateau.py",
    ),
    Bug(
        "the collapse compares texts that share a row",
        "ag_jax/objectives/plateau.py",
        "jnp.where(is_first_B[:, None], 0, sum_BD) + unit_BD",
        "sum_BD + unit_BD",
        "tests/objectives/test_plateau.py",
    ),
    Bug(
        "the repetition is the share of the last word of the vocabulary",
        "ag_jax/training/metrics.py",
        "total = max(total)",
        "total = total[-1]",
        "tests/objectives/test_plateau.py",
    ),
    Bug(
        "every pass of FreeLB drops the same elements",
        "ag_jax/objectives/adversarial/freelb.py",
        '"dropout": jnp.where(number == 0, rngs["dropout"], later)',
        '"dropout": rngs["dropout"]',
        "tests/objectives/test_freelb.py",
    ),
    Bug(
        "FreeLB adds up its passes and divides by one too few",
        "ag_jax/objectives/adversarial/freelb.py",
        "leaf / self.config.passes",
        "leaf / max(self.config.passes - 1, 1)",
        "tests/objectives/test_freelb.py",
    ),
    Bug(
        "both passes of R-Drop have the same dropout",
        "ag_jax/objectives/adversarial/r_drop.py",
        "consistency.independent_rngs(rngs)",
        "rngs",
        "tests/objectives/test_r_drop.py",
    ),
    Bug(
        "an attack drops the coefficients of the objective it wraps",
        "ag_jax/objectives/consistency.py",
        "return self.inner.coefficients(step) | {self.term_of",
        "return dict.fromkeys(self.inner.coefficients(step), coefficient) | {self.term_of",
        "tests/objectives/test_base.py",
    ),
    Bug(
        "a microbatch is divided by its own weight",
        "ag_jax/training/step.py",
        '{"dropout": key}, step, factors)',
        '{"dropout": key}, step, loss_factors(objective, part, step))',
        "tests/training/test_step.py",
    ),
    Bug(
        "an attacked pass judges new samples of the generator",
        "ag_jax/objectives/adversarial/self_attention.py",
        "self.predict(params, outputs.encoder_batch, rngs",
        "self.inner.forward(params, batch, rngs",
        "tests/objectives/test_self_attention.py",
    ),
    Bug(
        "microbatches draw the same dropout",
        "ag_jax/training/step.py",
        "jax.random.split(key, microbatches)",
        "jnp.stack([key] * microbatches)",
        "tests/training/test_step.py",
    ),
    Bug(
        "LayerNorm's scale decays",
        "ag_jax/training/optimizer.py",
        '("kernel", "embedding")',
        '("kernel", "embedding", "scale")',
        "tests/training/test_optimizer.py",
    ),
    Bug(
        "a stopped run does not save",
        "ag_jax/training/train.py",
        "if is_due or end or reason or step == pause",
        "if is_due or end or step == pause",
        "tests/training/test_train.py tests/test_command.py",
    ),
    Bug(
        "a restored state is not compared with its fingerprint",
        "ag_jax/training/checkpoint.py",
        "_check(step, paths(state), written)",
        "pass",
        "tests/training/test_checkpoint.py",
    ),
    Bug(
        "parameters that are read alone are not compared with their fingerprint",
        "ag_jax/training/checkpoint.py",
        '_check(step, paths({"params": params}), written)',
        "pass",
        "tests/training/test_checkpoint.py",
    ),
    Bug(
        "static masks follow the epoch, not the copy",
        "ag_jax/data/text/corruption.py",
        "epoch_B % config.static_copies",
        "epoch_B // config.static_copies",
        "tests/data/text/test_corruption.py",
    ),
    Bug(
        "every epoch has the order of the first",
        "ag_jax/data/order.py",
        "seed, int(epoch))",
        "seed, 0)",
        "tests/data/text/test_pipeline.py",
    ),
    Bug(
        "packed texts begin where the lengths of others say",
        "ag_jax/data/packing.py",
        "[0, *lengths[:-1]]",
        "[0, *lengths[1:]]",
        "tests/data/test_packing.py",
    ),
    Bug(
        "pairs are packed as if they had a source side alone",
        "ag_jax/data/packing.py",
        "(open_OZ >= size_Z).all(axis=1)",
        "(open_OZ >= size_Z)[:, 0]",
        "tests/data/test_packing.py",
    ),
    Bug(
        "the decoder's first input of a text is the last label of the text before",
        "ag_jax/data/parallel/batching.py",
        "np.where(is_first_BT, start, before_BT)",
        "np.where(is_first_BT & (before_BT == 0), start, before_BT)",
        "tests/data/parallel/test_batching.py",
    ),
    Bug(
        "an alignment counts from the row of packed pairs, not from the text",
        "ag_jax/data/parallel/batching.py",
        "_starts(segments_BS, target_segments_BT) + pointers_BT",
        "pointers_BT",
        "tests/data/parallel/test_alignments.py",
    ),
    Bug(
        "of the source words of a target word, the last one counts",
        "ag_jax/data/parallel/alignments.py",
        "for source, target in links), reverse=True)",
        "for source, target in links))",
        "tests/data/parallel/test_alignments.py",
    ),
    Bug(
        "a pair without tokens leaves its pointers to the next pair",
        "ag_jax/data/parallel/layout.py",
        "            if all(found for found, _ in both)\n",
        "",
        "tests/data/parallel/test_alignments.py",
    ),
    Bug(
        "the prepared text without its null texts is taken for the text",
        "ag_jax/data/text/documents.py",
        '*(["skip_null"] if config.skip_null else []),',
        "",
        "tests/data/records/test_sources.py",
    ),
    Bug(
        "a file without the field that holds the text is left out as null texts",
        "ag_jax/data/records/formats.py",
        "    if missing and not has_field:",
        "    if False:",
        "tests/data/records/test_sources.py",
    ),
    Bug(
        "files of two globs are paired although one side lacks a file",
        "ag_jax/data/parallel/globs.py",
        "if difference != expected:",
        "if not expected:",
        "tests/data/parallel/test_pairs.py",
    ),
    Bug(
        "stored scores are shown although sacreBLEU's seed has changed",
        "ag_jax/pretraining/scores.py",
        "store.digest(translation.signatures(tokenize=self.tokenize))",
        "store.digest(self.tokenize)",
        "tests/pretraining/test_scores.py",
    ),
    Bug(
        "the checkpoint of an interruption pushes out one that is averaged",
        "ag_jax/training/checkpoint.py",
        "return step == newest, step % self.every == 0, step",
        "return step == newest, True, step",
        "tests/training/test_checkpoint.py tests/training/test_train.py",
    ),
    Bug(
        "a run whose last evaluation is NaN is complete",
        "ag_jax/training/journal.py",
        'raise self._not_finite(f"{name} of the validation", step)',
        "pass",
        "tests/training/test_train.py",
    ),
    Bug(
        "a comparison claims the directory of a run that another process trains",
        "ag_jax/pretraining/training_cell.py",
        "run_directory.check(self.config, directory)\n        if",
        "run_directory.claim(self.config, directory)\n        if",
        "tests/pretraining/test_comparison.py",
    ),
    Bug(
        "a joint tokenizer is trained on held-out pairs, too",
        "ag_jax/data/parallel/layout.py",
        "for piece in pieces if not piece.held_out)",
        "for piece in pieces)",
        "tests/data/parallel/test_pipeline.py",
    ),
    Bug(
        "SQuAD's normalisation keeps `an`",
        "ag_jax/evaluation/answers.py",
        r"\b(a|an|the)\b",
        r"\b(a|the)\b",
        "tests/evaluation/test_answers.py",
    ),
    Bug(
        "two systems are resampled with different sentences",
        "ag_jax/evaluation/translation.py",
        "counted.resampled(resamples_RS) - base_R",
        "counted.resampled(resamples_RS[::-1]) - base_R",
        "tests/evaluation/test_translation.py",
    ),
    Bug(
        "a metric that sees no difference between two systems gives a significant p",
        "ag_jax/evaluation/translation.py",
        "if not np.array_equal(others[name].counts_SC, base.counts_SC)",
        "if systems[name] != systems[baseline]",
        "tests/evaluation/test_translation.py",
    ),
    Bug(
        "hard-coded attention reads neighbours of another text",
        "ag_jax/attention/fixed.py",
        "(segments_BQ == segments_BK) & (segments_BK > 0)",
        "(segments_BQ > 0) & (segments_BK > 0)",
        "tests/attention/test_fixed.py",
    ),
    Bug(
        "guidance of attention to a source is divided by the pairs of the source with itself",
        "ag_jax/attention/guidance.py",
        "jnp.maximum(segments.sizes(segments_BQ), 1) * keys_BQ",
        "keys_BQ * keys_BQ",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "a decoder's guides are found in what it predicts, not in what it reads",
        "ag_jax/objectives/guided.py",
        'tokens_BL = batch["target_tokens"]',
        'tokens_BL = batch["target_labels"]',
        "tests/objectives/test_translation.py",
    ),
    Bug(
        "smoothing is spread over all words, the label included",
        "ag_jax/objectives/config.py",
        "share * words / (words - 1)",
        "share",
        "tests/objectives/test_translation.py",
    ),
    Bug(
        "a cached step counts positions from 1",
        "ag_jax/models/seq2seq.py",
        "jnp.broadcast_to(index, tokens_BJ.shape)",
        "jnp.broadcast_to(index + 1, tokens_BJ.shape)",
        "tests/models/test_seq2seq.py",
    ),
    Bug(
        "a cached step sees one position that is not written yet",
        "ag_jax/models/decoder.py",
        "written_T = jnp.arange(length) <= index",
        "written_T = jnp.arange(length) <= index + 1",
        "tests/models/test_seq2seq.py",
    ),
    Bug(
        "a decoder without a LayerNorm at its end",
        "ag_jax/models/decoder.py",
        'return self.final_norm(x) if self.config.norm_position == "pre" else x',
        "return x",
        "tests/models/test_seq2seq.py",
    ),
    Bug(
        "an interrupted translation does not look at what was written",
        "ag_jax/pretraining/translate.py",
        "if written.hexdigest() != done.output or (done.whole and file.read(1)):",
        "if False:",
        "tests/pretraining/test_translation.py",
    ),
    Bug(
        "a file of translations is resumed by another engine",
        "ag_jax/pretraining/translate.py",
        '**({"engine": self.engine.name} if self.engine else {}),',
        "",
        "tests/pretraining/test_translation.py",
    ),
    Bug(
        "CTranslate2 searches a sentence up to the largest limit of its batch",
        "ag_jax/interop/ctranslate2_engine.py",
        "found |= translate(list(rows), int(limit))",
        "found |= {}",
        "tests/interop/test_ctranslate2_engine.py",
    ),
    Bug(
        "CTranslate2 ends a search with its best beam if scores are not divided by lengths",
        "ag_jax/interop/ctranslate2_engine.py",
        "length_penalty=exponent or NO_PENALTY",
        "length_penalty=exponent",
        "tests/interop/test_ctranslate2_engine.py",
    ),
    Bug(
        "a fold is chosen and tested on the same examples",
        "ag_jax/finetuning/splits.py",
        "number, (number + 1) % count",
        "number, number % count",
        "tests/finetuning/test_splits.py",
    ),
    Bug(
        "exported attention kernels are not transposed",
        "ag_jax/interop/layouts.py",
        "store=lambda ours: ours.reshape(ours.shape[0], -1).T",
        "store=lambda ours: ours.reshape(ours.shape[0], -1)",
        "tests/interop/test_goldens.py",
    ),
    Bug(
        "positions of a text count from the next one's offset",
        "ag_jax/models/embeddings.py",
        "order + config.position_offset",
        "order + config.position_offset + 1",
        "tests/models/test_encoder.py tests/models",
    ),
    Bug(
        "test sets are predicted with the weights of the last epoch",
        "ag_jax/training/trainee.py",
        "if self.best is None or self.best.step == int(self.state.step):",
        "if True:",
        "tests/finetuning/test_trial.py",
    ),
    Bug(
        "an item of a list begins another argument",
        "ag_jax/settings/config_files.py",
        "if pairs and not equals:",
        "if not pairs and not equals:",
        "tests/test_config_files.py",
    ),
    Bug(
        "help leaves out all but the first line of a setting's entry",
        "ag_jax/settings/documentation.py",
        'elif current and line.startswith(" "):',
        'elif not current and line.startswith(" "):',
        "tests/test_help.py",
    ),
    Bug(
        "keys of translation models are exported as values",
        "ag_jax/interop/marian.py",
        'f"{ours}/{name}") for name in ("query", "key", "value"))',
        'f"{ours}/{dict(q=\'query\', k=\'value\', v=\'key\')[name[0]]}") for name in ("query", "key", "value"))',
        "tests/interop/test_marian.py",
    ),
    Bug(
        "an exported translation model keeps the vector of padding",
        "ag_jax/interop/marian.py",
        "        table[pad] = 0\n",
        "",
        "tests/interop/test_marian.py",
    ),
    Bug(
        "translations are encoded with the model of the source",
        "ag_jax/data/tokenizer_backends.py",
        "return self._encode(self._target, texts)",
        "return self._encode(self._source, texts)",
        "tests/data/test_tokenizers.py tests/interop/test_marian.py",
    ),
    Bug(
        "tokens of an export get the inverse of their new ids",
        "ag_jax/interop/marian_tokenizer.py",
        "for new, old in enumerate(order_V.tolist())",
        "for old, new in enumerate(order_V.tolist())",
        "tests/interop/test_marian.py",
    ),
    Bug(
        "beam search: the cache does not follow the beams",
        "ag_jax/models/beam_search.py",
        "cache=reorder(cache, parents_BK) if beams > 1 else cache",
        "cache=cache",
        "tests/models/test_beam_search.py",
    ),
    Bug(
        "decoding: beams read the tokens of the beams that were in their places before",
        "ag_jax/models/decoder.py",
        "DecoderCache(cache.layers, follow(cache.stored_BJT, parents_BJ))",
        "cache",
        "tests/models/test_seq2seq.py",
    ),
    Bug(
        "beam search: the bound is that of the current length",
        "ag_jax/models/beam_search.py",
        "penalty(config, max_lengths_B)",
        "penalty(config, length)",
        "tests/models/test_beam_search.py",
    ),
    Bug(
        "beam search: of equal scores the later hypothesis wins",
        "ag_jax/models/beam_search.py",
        "_best_of(state.ended, ending, beams)",
        "_best_of(ending, state.ended, beams)",
        "tests/models/test_beam_search.py",
    ),
    Bug(
        "beam search: the best blocks are left in the order of their maxima",
        "ag_jax/models/beam_search.py",
        "numbers_BJ = jnp.sort(numbers_BJ, axis=-1)",
        "numbers_BJ = jnp.asarray(numbers_BJ)",
        "tests/models/test_beam_search.py",
    ),
    Bug(
        "the mask decoder has all heads",
        "ag_jax/models/encoder.py",
        "queries=queries, rngs=rngs, **ports)",
        "queries=queries, rngs=rngs, attack=attack)",
        "tests/models/test_head_mask.py",
    ),
    Bug(
        "a report links to its figures in its own directory",
        "ag_jax/analysis/figures/canvas.py",
        'f"{path.parent.name}/{save(figure, path).name}"',
        'f"{save(figure, path).name}"',
        "tests/test_inspection.py",
    ),
    Bug(
        "the median over seeds is their mean",
        "ag_jax/finetuning/choosing.py",
        '"median": float(np.median(values))',
        '"median": float(np.mean(values))',
        "tests/finetuning/test_choosing.py",
    ),
    Bug(
        "the table of head ablation has the heads in reverse order",
        "ag_jax/probing/ablation/heads.py",
        "1 - np.eye(heads_count)]",
        "1 - np.eye(heads_count)[::-1]]",
        "tests/probing/test_ablation.py",
    ),
    Bug(
        "the compiled step has the alpha of the first run",
        "ag_jax/training/hyperparameters.py",
        'return dataclasses.replace(config, alpha=self.alpha, alpha_rule="value")',
        'return dataclasses.replace(config, alpha=0.0, alpha_rule="value")',
        "tests/training/test_hyperparameters.py",
    ),
    Bug(
        "a traced warm-up falls from step 0 on",
        "ag_jax/training/schedules.py",
        "x = jnp.clip((step - start) / jnp.maximum(total_steps - start, 1), 0.0, 1.0)",
        "x = jnp.clip(step / jnp.maximum(total_steps, 1), 0.0, 1.0)",
        "tests/training/test_hyperparameters.py tests/training/test_optimizer.py",
    ),
    Bug(
        "programs are not shared over learning rates",
        "ag_jax/pretraining/build.py",
        "optimizer=any_values.in_optimizer(in_effect.optimizer),",
        "optimizer=in_effect.optimizer,",
        "tests/pretraining/test_adversarial_runs.py tests/pretraining/search/test_real_runs.py",
    ),
    Bug(
        "a paused run does not save",
        "ag_jax/training/train.py",
        "if is_due or end or reason or step == pause or",
        "if is_due or end or reason or",
        "tests/pretraining/search/test_real_runs.py",
    ),
    Bug(
        "halving lets the worse half go on",
        "ag_jax/pretraining/search/choose.py",
        "compared[math.ceil(len(compared) / 2) :]",
        "compared[: math.ceil(len(compared) / 2)]",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "a point wins although one of its seeds failed",
        "ag_jax/pretraining/search/choose.py",
        """        if failures:
            status = "failed"
        elif""",
        """        if failures and not measurements:
            status = "failed"
        elif measurements and failures:
            status, measured = "done", _means(measurements)
        elif""",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "a run whose alpha was chosen is trained with that of its config",
        "ag_jax/pretraining/alpha.py",
        "config.guidance), alpha=np.float32(alpha))",
        "config.guidance))",
        "tests/pretraining/test_alpha.py",
    ),
    Bug(
        "alpha is chosen again when a run is resumed",
        "ag_jax/pretraining/alpha.py",
        'if not hosts.from_first("whether alpha is known", (workdir / ALPHA).exists):',
        "if True:",
        "tests/pretraining/test_alpha.py",
    ),
    Bug(
        "a run that is past a rung is trained",
        "ag_jax/pretraining/search/run.py",
        "if step < newest and not store.path_of(directory, step).exists()]",
        "if False]",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "a translation has static settings that are not allowed",
        "ag_jax/pretraining/build.py",
        "keep_last=training.keep_last,",
        "",
        "tests/pretraining/test_build.py",
    ),
    Bug(
        "a flag for the grid of one arm changes that of the others",
        "ag_jax/settings/schema.py",
        "result = copy.deepcopy(dict(values))",
        "result = dict(values)",
        "tests/test_schema.py",
    ),
    Bug(
        "points that differ in a setting of their recipe's sweep alone are one point",
        "ag_jax/finetuning/choosing.py",
        'tuple(sorted(result.get("swept", {}).items()))',
        "()",
        "tests/finetuning/test_choosing.py",
    ),
    Bug(
        "a process leaves a search at a rung",
        "ag_jax/pretraining/search/run.py",
        "is_last=all(one.until is None for one in next_runs)",
        "is_last=True",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "examples of a custom task are held out by the number of their row, not by their text",
        "ag_jax/data/tasks/custom.py",
        "is_held_out(item, settings.held_out, custom_records.content(item))",
        "is_held_out(item, settings.held_out)",
        "tests/data/tasks/test_custom.py",
    ),
    Bug(
        "a number that is no class of a custom task is taken for the index of one",
        "ag_jax/data/tasks/custom_records.py",
        "        return task.labels.index(name)\n",
        "        return task.labels.index(name)\n    if name.isdecimal():\n        return task.label_index(name)\n",
        "tests/data/tasks/test_custom.py",
    ),
    Bug(
        "the loss of a multi-label task is a sum over labels",
        "ag_jax/objectives/supervised.py",
        "(losses_BK.mean(-1) * weights_B).sum()",
        "(losses_BK.sum(-1) * weights_B).sum()",
        "tests/objectives/test_supervised.py",
    ),
    Bug(
        "an ensemble of multi-label models averages logits",
        "ag_jax/evaluation/predictions.py",
        "    return yes - no\n",
        "    return stacked.mean(0)\n",
        "tests/evaluation/test_predictions.py",
    ),
    Bug(
        "an example without labels that is predicted right counts as wrong",
        "ag_jax/evaluation/metrics.py",
        "        return 1.0\n    return classes.micro_f1([example.label]",
        "        return 0.0\n    return classes.micro_f1([example.label]",
        "tests/evaluation/test_metrics.py",
    ),
    Bug(
        "a label that is twice in the list of an example counts once, in silence",
        "ag_jax/data/tasks/label_sets.py",
        "if found.count(name) > 1:",
        "if found.count(name) > 2:",
        "tests/data/tasks/test_custom.py",
    ),
    Bug(
        "a suite is resumed although the files of a custom task have changed",
        "ag_jax/data/tasks/custom_records.py",
        'hashlib.file_digest(stream, "sha256").digest()',
        "hashlib.sha256(file.name.encode()).digest()",
        "tests/data/tasks/test_custom.py tests/finetuning/test_custom.py",
    ),
    Bug(
        "a suite is resumed although the test file of a task of the catalogue has changed",
        "ag_jax/data/tasks/readers.py",
        "    for split in task.splits:\n        try:",
        "    for split in task.splits[:2]:\n        try:",
        "tests/finetuning/test_suite.py",
    ),
    Bug(
        "all layers count as guided, whatever guidance.layers says",
        "ag_jax/attention/assignment.py",
        'layers = None if config.layers == "all" else tuple(layer_numbers(config, is_local))',
        "layers = None",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "progress: the speed of the first interval includes compilation",
        "ag_jax/training/train.py",
        "journal.speed.compiled(time.perf_counter() - began, tokens)",
        "journal.speed.compiled(0.0, tokens)",
        "tests/training/test_speed.py",
    ),
    Bug(
        "early stopping: an equal evaluation counts as an improvement",
        "ag_jax/training/criterion.py",
        "(self.cost(value), number)",
        "(self.cost(value), -number)",
        "tests/pretraining/test_best.py",
    ),
    Bug(
        "the best checkpoint of a resumed run is deleted before its next evaluation",
        "ag_jax/training/journal.py",
        "- {*saved}\n        self._protect_best()",
        "- {*saved}",
        "tests/pretraining/test_best.py",
    ),
    Bug(
        "training.keep_best of a resumed run: an evaluation whose checkpoint is gone counts as the best",
        "ag_jax/training/journal.py",
        "if one.step not in deleted]",
        "if True]",
        "tests/pretraining/test_best.py",
    ),
    Bug(
        "a suite does not notice a process that works at one of its trials",
        "ag_jax/finetuning/suite_directory.py",
        "trial.is_begun(path) or lock.is_held(path / lock.FILE)",
        "trial.is_begun(path)",
        "tests/finetuning/test_suite.py",
    ),
    Bug(
        "a Hugging Face data set: another commit takes the earlier one's place in the cache",
        "ag_jax/data/records/hub.py",
        "self.config, self.split, self.commit()]]",
        "self.config, self.split]]",
        "tests/data/records/test_sources.py",
    ),
    Bug(
        "a result in a bucket is not found",
        "ag_jax/grid/store.py",
        "content = json.loads(storage.read_whole(path))",
        "content = json.loads(open(str(path)).read())",
        "tests/buckets/test_verbs.py",
    ),
    Bug(
        "machines with a cache in a bucket do not see what others are making",
        "ag_jax/data/cache.py",
        "root = self.local if self.remote is None or self._is_in_store(name) else self.remote",
        "root = self.local",
        "tests/buckets/test_verbs.py",
    ),
    Bug(
        "text in a bucket: a time comes before the store's checksum",
        "ag_jax/data/records/remote.py",
        'FINGERPRINTS = ("md5Hash", ',
        'FINGERPRINTS = ("mtime", "md5Hash", ',
        "tests/data/records/test_sources.py",
    ),
    Bug(
        "MFU counts the peak of whole chips where a device is half of one",
        "ag_jax/pretraining/run.py",
        "chip.per_device().flops)",
        "chip.flops)",
        "tests/pretraining/test_build.py",
    ),
    Bug(
        "a SLURM job is started again after an error that would come again",
        "launch/slurm.sh",
        "if [ $status -ne 75 ] && {",
        "if [ $status -eq 0 ] && {",
        "tests/launch/test_slurm.py",
    ),
    Bug(
        "a job of a SLURM array requeues the whole array",
        "launch/slurm.sh",
        '"${job:-$SLURM_JOB_ID}"',
        '"$SLURM_JOB_ID"',
        "tests/launch/test_slurm.py",
    ),
    Bug(
        "an installation that was cut short counts as complete",
        "launch/setup.sh",
        'echo "$accelerator: not completed" >"$venv/.ag_jax-base"',
        "true",
        "tests/launch/test_launch.py",
    ),
    Bug(
        "several workers of a TPU train one model each",
        "launch/tpu.sh",
        'if [ "$workers" -gt 1 ]',
        'if [ "$workers" -gt 64 ]',
        "tests/launch/test_tpu.py",
    ),
    Bug(
        "a host that waits for the others at its end counts as lost",
        "ag_jax/distributed/hosts.py",
        "if sign != _FINISHED and now",
        "if now",
        "tests/distributed/test_hosts.py",
    ),
    Bug(
        "a launcher takes a run that SIGTERM stopped for one that is done",
        "ag_jax/command_line/cli.py",
        "return interruption.status(str(stop))",
        "return 0",
        "tests/test_interruption.py",
    ),
    Bug(
        "a bucket that does not answer for a while fails a run for good",
        "ag_jax/distributed/bucket.py",
        "if is_unreachable or (gcsfs.retry.is_retriable(error) and not is_refused):",
        "if is_unreachable:",
        "tests/buckets/test_runs.py",
    ),
    Bug(
        "a suite trains a trial before the trials that it starts from are done",
        "ag_jax/finetuning/plan.py",
        "if any(one.name not in table for one in firsts):",
        "if all(one.name not in table for one in firsts):",
        "tests/finetuning/test_suite.py",
    ),
    Bug(
        "a trial that started from other weights is taken for one from these",
        "ag_jax/finetuning/plan.py",
        "return [name for name in super().changes(stored) if name in inputs]",
        "return []",
        "tests/finetuning/test_suite.py",
    ),
    Bug(
        "weights that are not the best any more stay",
        "ag_jax/grid/run.py",
        "        cell.tidy(directory, self._table)\n",
        "",
        "tests/finetuning/test_suite.py",
    ),
    Bug(
        "a changed digit in predictions is not noticed",
        "ag_jax/finetuning/task_training.py",
        "artifacts[name] = store.write_text(",
        "store.write_text(",
        "tests/finetuning/test_answerability.py",
    ),
    Bug(
        "translations of another test set are scored",
        "ag_jax/pretraining/scores.py",
        '            "test set": store.digest(self.lines.sources, self.lines.references),\n',
        "",
        "tests/pretraining/test_scores.py",
    ),
    Bug(
        "a cell that is computed anew keeps the result of its earlier files",
        "ag_jax/grid/run.py",
        "store.path_of(self._workdir / cell.path, cell.until).unlink(missing_ok=True)",
        "store.path_of(self._workdir / cell.path, cell.until)",
        "tests/grid/test_run.py",
    ),
    Bug(
        "a process leaves cells to others although their results make more cells ready",
        "ag_jax/grid/run.py",
        "if is_last and all(",
        "if all(",
        "tests/grid/test_run.py",
    ),
    Bug(
        "a process leaves the last cells to a process of which nothing says that it runs",
        "ag_jax/grid/run.py",
        "if is_last and all(self._claims.runs(self._lock_of(cell)) for cell in cells):",
        "if is_last:",
        "tests/grid/test_run.py",
    ),
    Bug(
        "a beat of another machine's process counts however long ago it was",
        "ag_jax/distributed/lock.py",
        "before is not None and now - before.looked < STALE_AFTER",
        "before is not None",
        "tests/grid/test_run.py",
    ),
    Bug(
        "a result that lacks an input of its cell is valid",
        "ag_jax/grid/cells.py",
        "names = sorted({*self.inputs, *stored.inputs})",
        "names = sorted(stored.inputs)",
        "tests/grid/test_run.py",
    ),
    Bug(
        "a run that is past a step is compared by its losses at a later one",
        "ag_jax/pretraining/training_cell.py",
        'if self.until is not None and facts["steps"] != self.until:',
        "if False:",
        "tests/pretraining/test_training_cell.py",
    ),
    Bug(
        "a failure with other settings counts",
        "ag_jax/pretraining/training_cell.py",
        "if not stored.is_done:\n            return changes",
        "if not stored.is_done:\n            return []",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "a seed of a failed point skips the rung",
        "ag_jax/pretraining/search/choose.py",
        "                for number in costs\n                for seed",
        "                for number in costs\n                if costs[number] is None\n                for seed",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "a loss at a rung may be infinite",
        "ag_jax/pretraining/search/states.py",
        "if (reason := not_finite(numbers, metric)) is not None:",
        "if until is None and (reason := not_finite(numbers, metric)) is not None:",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "arms of a search are paired by the names of their points",
        "ag_jax/pretraining/search/report.py",
        "tuple(result.point.settings.items()): result.point.name",
        "result.point.name: result.point.name",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "the best point of a smaller grid stays",
        "ag_jax/pretraining/search/run.py",
        'hosts.from_first("the best point", functools.partial((workdir / BEST).unlink, missing_ok=True))',
        "pass",
        "tests/pretraining/search/test_search.py",
    ),
    Bug(
        "steps in words are those of a failed attempt's tokenizer",
        "ag_jax/pretraining/words.py",
        "workdir if has_begun else None",
        "workdir",
        "tests/pretraining/test_words.py",
    ),
    Bug(
        "the library normalises the text of a sentencepiece model",
        "ag_jax/data/tokenizer_backends.py",
        "[self._normalize(text) for text in texts] if self._normalize else texts",
        "texts",
        "tests/data/test_tokenizers.py",
    ),
    Bug(
        "the second text of a pair has type 1 whatever the tokenizer says",
        "ag_jax/data/tokenizers.py",
        "int(token_types > 1) if self.second_type is None else self.second_type",
        "int(token_types > 1)",
        "tests/interop/test_pair_types.py",
    ),
    Bug(
        "a RoBERTa has one token type although its tokenizer gives two",
        "ag_jax/interop/source.py",
        "    if tokenizer_files.second_type(directory):",
        "    if False:",
        "tests/interop/test_pair_types.py",
    ),
    Bug(
        "a vocabulary in capital letters is read with lower-cased text",
        "ag_jax/interop/vocabularies.py",
        "    if lowercase and ",
        "    if False and ",
        "tests/interop/test_bad_input.py",
    ),
    Bug(
        "the printed conversion of a pickle needs the GPU of its tensors",
        "ag_jax/interop/tensors.py",
        "'map_location': 'cpu', ",
        "",
        "tests/interop/test_bad_input.py",
    ),
    Bug(
        "queries and keys of fairseq's joined projections are exchanged",
        "ag_jax/interop/fairseq.py",
        'enumerate("qkv")',
        'enumerate("kqv")',
        "tests/interop/test_fairseq.py",
    ),
    Bug(
        "the mask is no token of a dict.txt",
        "ag_jax/interop/fairseq.py",
        "return found if mask in ids else [*found, mask]",
        "return found",
        "tests/interop/test_fairseq.py",
    ),
    Bug(
        "a special token that is written in a text is one, to a tokenizer that splits at spaces",
        "ag_jax/data/tokenizer_backends.py",
        "{hidden.get(word, word): id for word, id in",
        "{word: id for word, id in",
        "tests/interop/test_fairseq.py",
    ),
    Bug(
        "words that begin with # and have the file's columns are comments",
        "ag_jax/data/conll.py",
        " and [_columns(line)] != [columns for columns, _ in of_file]",
        "",
        "tests/data/tasks/test_custom.py",
    ),
    Bug(
        "a trial of one step has a warm-up of one step",
        "ag_jax/finetuning/config.py",
        "min(math.ceil(self.warmup_fraction * steps), steps - 1)",
        "math.ceil(self.warmup_fraction * steps)",
        "tests/finetuning/test_config.py",
    ),
    Bug(
        "rows that are missing before a checkpoint are not noticed",
        "ag_jax/training/metrics.py",
        "_digest(path.read_bytes()[: digest[0]]) != [*digest]",
        "False",
        "tests/training/test_metrics.py",
    ),
    Bug(
        "a metric that its labels leave undefined chooses epochs",
        "ag_jax/finetuning/splits.py",
        "if task.metric in (zero := metrics.undefined(task, examples)):",
        "if (zero := metrics.undefined(task, examples)) and False:",
        "tests/finetuning/test_splits.py",
    ),
    Bug(
        "a prefix that all tensors share is kept",
        "ag_jax/interop/source.py",
        "without(max(range(shared + 1), key=fitting))",
        "without(0)",
        "tests/interop/test_goldens.py",
    ),
    Bug(
        "what a stored file names is imported",
        "ag_jax/settings/imported.py",
        "return _trusts_all or path in _allowed or not _is_stored(path)",
        "return True",
        "tests/test_imported.py",
    ),
    Bug(
        "the guidance loss of a text is divided by the length of its row, padding included, times its number of tokens",
        "ag_jax/attention/guidance.py",
        "    pairs_BQ = (jnp.maximum(segments.sizes(segments_BQ), 1) * keys_BQ).astype(jnp.float32)",
        "    pairs_BQ = (segments_BQ.shape[1] * keys_BQ).astype(jnp.float32)",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "guidance after dropout takes the attention of a boundary row as summing to 1, which dropout undoes",
        "ag_jax/attention/guidance.py",
        "        total_BHQ = rows_BHQK.sum(-1) if guides.after_dropout else 1.0",
        "        total_BHQ = 1.0",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "in a decoder or a window the squared norm of a target over n columns is 1 / n^2, not 1 / n",
        "ag_jax/attention/guidance.py",
        "jnp.where(columns_BQ > 0, 1.0 / jnp.maximum(columns_BQ, 1), uniform_BQ)",
        "jnp.where(columns_BQ > 0, 1.0 / jnp.square(jnp.maximum(columns_BQ, 1)), uniform_BQ)",
        "tests/attention/test_guidance.py",
    ),
    Bug(
        "the encoder's attention patterns look for full stops in the masked tokens, not in the original ones",
        "ag_jax/objectives/guided.py",
        'rows["tokens" if self.config.mode == "bias" else "original"]',
        'rows["tokens"]',
        "tests/objectives/test_masked_lm_and_guided.py",
    ),
    Bug(
        "the adversary's merged scores multiply the query's bias by the transposed key kernel",
        "ag_jax/attention/adversary.py",
        'hidden_BLD, kernel_DD) + (key["kernel"] @ query["bias"])[None, None, :]',
        'hidden_BLD, kernel_DD) + (query["bias"] @ key["kernel"])[None, None, :]',
        "tests/attention/test_adversary.py",
    ),
    Bug(
        "a query whose keys are all masked keeps its score bias, so that it does not attend evenly to what it sees",
        "ag_jax/attention/multihead.py",
        "bias_BHQK = None if bias_BHQK is None else jnp.where(zeroed_BHQ1, 0.0, bias_BHQK)",
        "pass",
        "tests/attention/test_adversary.py",
    ),
    Bug(
        "FreeLB as in fairseq divides the sums over its K + 1 passes by K",
        "ag_jax/objectives/adversarial/freelb.py",
        "lambda leaf: leaf / self.config.passes, sums",
        "lambda leaf: leaf / self.config.steps, sums",
        "tests/objectives/test_freelb.py",
    ),
    Bug(
        "SMART's noise as in mt-dnn is divided by the largest component of the row, not of each token",
        "ag_jax/objectives/adversarial/smart.py",
        "jnp.abs(moved_BLE).max(-1, keepdims=True)",
        "jnp.abs(moved_BLE).max((1, 2), keepdims=True)",
        "tests/objectives/test_smart_and_sift.py",
    ),
    Bug(
        "SiFT lets the gradient of the perturbed pass reach the embeddings",
        "ag_jax/objectives/adversarial/sift.py",
        "jax.lax.stop_gradient(x_BLE) + self.delta_BLE",
        "x_BLE + self.delta_BLE",
        "tests/objectives/test_smart_and_sift.py",
    ),
    Bug(
        "R-Drop's weight is rounded down to a whole number",
        "ag_jax/objectives/adversarial/r_drop.py",
        "jnp.full_like(step, self.weight, jnp.float32)",
        "jnp.full_like(step, self.weight).astype(jnp.float32)",
        "tests/objectives/test_r_drop.py",
    ),
    Bug(
        "masked spans of n tokens have probabilities proportional to 1 / n^2, not 1 / n",
        "ag_jax/data/text/corruption.py",
        "    shares = 1.0 / np.arange(1, longest + 1)",
        "    shares = 1.0 / np.arange(1, longest + 1) ** 2",
        "tests/data/text/test_corruption.py",
    ),
    Bug(
        "the rate of whole words counts words, not tokens",
        "ag_jax/data/text/corruption.py",
        "        room_B -= np.where(fits_WB[rank], ordered_BW[:, rank], 0)",
        "        room_B -= fits_WB[rank]",
        "tests/data/text/test_corruption.py",
    ),
    Bug(
        "what follows a punctuation mark continues the mark's word",
        "ag_jax/data/words.py",
        "    ends = text[-1].isspace() or is_mark or",
        "    ends = text[-1].isspace() or",
        "tests/data/test_words.py",
    ),
    Bug(
        "with whole words, the first word behind a special token is never masked",
        "ag_jax/data/text/corruption.py",
        "begins_BL[:, 1:] |= ~maskable_BL[:, :-1]",
        "pass",
        "tests/data/text/test_corruption.py",
    ),
    Bug(
        "the unigram generator of replaced tokens draws special tokens, too, except for padding",
        "ag_jax/data/text/unigram.py",
        "        counts_V[list(tokenizer.special_ids)] = 0",
        "        counts_V[tokenizer.specials.pad] = 0",
        "tests/data/text/test_corruption.py",
    ),
    Bug(
        "embeddings have no weight decay",
        "ag_jax/training/optimizer.py",
        'path[-1].key in ("kernel", "embedding")',
        'path[-1].key in ("kernel",)',
        "tests/training/test_optimizer.py",
    ),
    Bug(
        "Muon's updates are scaled by the root of the smaller side of a matrix, not of the larger one",
        "ag_jax/training/optimizer.py",
        "MUON_RMS * math.sqrt(max(rows, columns)) * update",
        "MUON_RMS * math.sqrt(min(rows, columns)) * update",
        "tests/training/test_optimizer.py",
    ),
    Bug(
        "after a warm-up the learning rate falls as slowly as over all steps of the run, so that it does not end at 0",
        "ag_jax/training/schedules.py",
        "(step - start) / jnp.maximum(total_steps - start, 1)",
        "(step - start) / jnp.maximum(total_steps, 1)",
        "tests/training/test_hyperparameters.py",
    ),
    Bug(
        "DeBERTa's logarithmic buckets end at the span, not one distance before it",
        "ag_jax/attention/disentangled.py",
        "    base = np.float32((span - 1) / middle)",
        "    base = np.float32(span / middle)",
        "tests/attention/test_disentangled.py",
    ),
    Bug(
        "the enhanced mask decoder attends to the output of the last layer, not to its input",
        "ag_jax/models/encoder.py",
        "self._decode(last, queries, before_BLD, context, attack, head_mask_H)",
        "self._decode(last, queries, hidden_BLD, context, attack, head_mask_H)",
        "tests/models/test_encoders.py",
    ),
    Bug(
        "a window of 128 tokens reaches 63 tokens to each side, not 64",
        "ag_jax/attention/visibility.py",
        "    side = None if window is None else window // 2",
        "    side = None if window is None else (window - 1) // 2",
        "tests/models/test_encoders.py",
    ),
    Bug(
        "rotary positions have the base of local layers in global ones, and the other way round",
        "ag_jax/models/encoder.py",
        "bases = (config.rotary_base, config.rotary_base_local or config.rotary_base)",
        "bases = (config.rotary_base_local or config.rotary_base, config.rotary_base)",
        "tests/models/test_encoders.py",
    ),
    Bug(
        "gated feed-forward layers apply the activation to the gate, not to the other half",
        "ag_jax/models/layers.py",
        "inner = activation(linear.first(x))\n"
        "        return linear.second(inner if linear.gate is None else inner * linear.gate(x))",
        "inner = linear.first(x)\n"
        "        inner = activation(inner) if linear.gate is None else inner * activation(linear.gate(x))\n"
        "        return linear.second(inner)",
        "tests/models/test_encoders.py",
    ),
    Bug(
        "the scaled initialisation divides the last layers' deviation by sqrt(N), not by sqrt(2 N), for N layers",
        "ag_jax/models/layers.py",
        "    scale = math.sqrt(2 * config.layers) if is_last else 1.0",
        "    scale = math.sqrt(config.layers) if is_last else 1.0",
        "tests/models/test_encoder.py",
    ),
    Bug(
        "label smoothing over the V - 1 other words is multiplied by (V - 1) / V, not by V / (V - 1)",
        "ag_jax/objectives/config.py",
        "share * words / (words - 1)",
        "share * (words - 1) / words",
        "tests/objectives/test_translation.py",
    ),
    Bug(
        "the bound that ends a beam search has the penalty of the present length, not of the maximum length",
        "ag_jax/models/beam_search.py",
        "log_probs_BK[:, 0] / penalty(config, max_lengths_B)",
        "log_probs_BK[:, 0] / penalty(config, length)",
        "tests/models/test_beam_search.py",
    ),
    Bug(
        "hard-coded Gaussian weights are not divided by the standard deviation",
        "ag_jax/attention/fixed.py",
        "jnp.exp(-0.5 * jnp.square(scaled)) / (config.deviation * math.sqrt(2 * math.pi))",
        "jnp.exp(-0.5 * jnp.square(scaled)) / math.sqrt(2 * math.pi)",
        "tests/attention/test_fixed.py",
    ),
    Bug(
        "a random second segment fills the whole row, although the pair should be a short one",
        "ag_jax/data/text/sequences.py",
        "_random_segment(store, number, target - first.size, room, draws)",
        "_random_segment(store, number, room - first.size, room, draws)",
        "tests/data/text/test_sequences.py",
    ),
    Bug(
        "a pointer leads from one segment of a pair into the other, past the separator",
        "ag_jax/data/text/sequences.py",
        "*(np.full(segment.size, place) for place in segment)",
        "*(np.full(segment.size, place) for place in (0, len(store.tokens)))",
        "tests/data/text/test_pointers.py",
    ),
    Bug(
        "of the words that begin in one token, the last has its pointer",
        "ag_jax/data/text/pointers.py",
        "np.flatnonzero(token_W != NONE)[::-1]",
        "np.flatnonzero(token_W != NONE)",
        "tests/data/text/test_pointers.py",
    ),
    Bug(
        "the words of a range that is written otherwise begin one behind the other",
        "ag_jax/data/records/conllu.py",
        "if is_cut else [0] * len(forms)",
        "if True else [0] * len(forms)",
        "tests/data/records/test_annotated.py",
    ),
    Bug(
        "the control offset_by_word draws its offsets from all tokens, those without a head included",
        "ag_jax/data/text/pointers.py",
        "counts[0] = 0",
        "counts[0] += 0",
        "tests/data/text/test_pointers.py",
    ),
    Bug(
        "an entity goes on with the I- tags of any type, not of its own type alone",
        "ag_jax/data/tasks/schemes.py",
        "tag != OUTSIDE and tag[2:] == kind and",
        "tag != OUTSIDE and bool(kind) and",
        "tests/evaluation/test_entities.py",
    ),
    Bug(
        "an IOB1 entity behind another of its type does not begin with B-",
        "ag_jax/data/tasks/schemes.py",
        "[::2] == (kind, first - 1)",
        "[::2] == (kind, first)",
        "tests/data/tasks/test_schemes.py",
    ),
    Bug(
        "a scheme is recognised by the most misplaced tags",
        "ag_jax/data/tasks/schemes.py",
        "return min(found, key",
        "return max(found, key",
        "tests/data/tasks/test_schemes.py",
    ),
    Bug(
        "the 95 % intervals of BLEU, chrF and TER leave out 5 % of the resamples on each side, which is 90 %",
        "ag_jax/evaluation/translation.py",
        "len(values_R) // 40",
        "len(values_R) // 20",
        "tests/evaluation/test_translation.py",
    ),
    Bug(
        "the confidence interval of a mean difference over seeds takes the deviation with n, not with n - 1",
        "ag_jax/evaluation/significance.py",
        "differences.std(ddof=1)",
        "differences.std()",
        "tests/evaluation/test_significance.py",
    ),
    Bug(
        "the attention to a word is the largest of its tokens' attention, not their sum",
        "ag_jax/analysis/heads/rows.py",
        "np.add.reduceat(rows_FNHL, starts[:-1], axis=-1)",
        "np.maximum.reduceat(rows_FNHL, starts[:-1], axis=-1)",
        "tests/probing/test_measuring.py",
    ),
    Bug(
        "the GPU kernels' backward pass counts the sum of squares once, not twice, in the row sums of dH * H",
        "ag_jax/attention/kernels/gpu/attention.py",
        "zip((2.0, 1.0), statistics, g_statistics, strict=False)",
        "zip((1.0, 1.0), statistics, g_statistics, strict=False)",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "the GPU kernels add the gradient by the logarithmic sum to the row sums of dH * H, and do not take it away",
        "ag_jax/attention/kernels/gpu/attention.py",
        "delta - g_log_sums",
        "delta + g_log_sums",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "the TPU kernels' cross-entropy counts columns of other texts",
        "ag_jax/attention/kernels/tpu/tile.py",
        "jnp.where(self.visible_KQ, target_KQ, 0.0) if",
        "target_KQ if",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "kernels do not divide the cross-entropy by the columns that a query sees",
        "ag_jax/attention/kernels/interface.py",
        "score_sums_BhQ / jnp.maximum(total_B1Q, 1)",
        "score_sums_BhQ",
        "tests/attention/test_kernels.py",
    ),
    Bug(
        "a row counts a separator before its first document",
        "ag_jax/data/text/sequences.py",
        "limit = before[:-1] + room + (is_first if across_documents else 0)",
        "limit = before[:-1] + room",
        "tests/data/text/test_sequences.py",
    ),
    Bug(
        "documents without tokens move the decisions which others are held out",
        "ag_jax/data/tokens.py",
        "decisions.append(of_pieces[has_tokens])",
        "decisions.append(of_pieces[: int(has_tokens.sum())])",
        "tests/data/test_tokens.py",
    ),
    Bug(
        "results of several processes come in another order",
        "ag_jax/data/mapping.py",
        "yield waiting.popleft().result()\n        while",
        "yield waiting.pop().result()\n        while",
        "tests/data/test_tokens.py",
    ),
    Bug(
        "a process that waited for a directory of the cache makes it once more",
        "ag_jax/data/cache.py",
        "        if directory.exists():\n            entry, damage = _read(directory, check_large)",
        "        if False:\n            entry, damage = _read(directory, check_large)",
        "tests/data/test_cache.py",
    ),
    Bug(
        "rows of a pair limit are taken for those of another",
        "ag_jax/data/tokens.py",
        "config.duplicates, config.pack, config.max_tokens",
        "config.duplicates, config.pack",
        "tests/data/parallel",
    ),
    Bug(
        "the ids of gigatoken are compared at the beginning alone",
        "ag_jax/data/fast_tokenizer.py",
        "compared = slice(None, None, SAMPLED if self._characters >= CHECKED_CHARACTERS else None)",
        "compared = slice(0 if self._characters >= CHECKED_CHARACTERS else None)",
        "tests/data/test_tokenizers.py",
    ),
    Bug(
        "NaN in a data frame is written as a text",
        "ag_jax/data/records/sources.py",
        "value is None or (isinstance(value, float) and value != value)",
        "value is None",
        "tests/test_api.py",
    ),
    Bug(
        "the hash of spooled records depends on the order of the columns",
        "ag_jax/data/records/sources.py",
        "ensure_ascii=False, sort_keys=True, allow_nan=False",
        "ensure_ascii=False, allow_nan=False",
        "tests/test_api.py",
    ),
    Bug(
        "a run goes on with other texts than those that it began with",
        "ag_jax/api/texts.py",
        "if others and any(",
        "if False and any(",
        "tests/test_api.py",
    ),
    Bug(
        "a call without texts reads those of the config",
        "ag_jax/api/texts.py",
        "return str(before[0]) if before else None",
        "return None",
        "tests/test_api.py",
    ),
    Bug(
        "a fine-tuned model predicts the names of whole numbers",
        "ag_jax/data/tasks/custom_labels.py",
        '{int: "integer", float: "number"',
        '{float: "number"',
        "tests/test_api.py",
    ),
    Bug(
        "every number of texts is compiled",
        "ag_jax/api/pipelines/pipeline.py",
        "2 ** max(len(features) - 1, 0).bit_length()",
        "max(len(features), 1)",
        "tests/test_pipelines.py",
    ),
    Bug(
        "predict_proba returns weights that are not normalised",
        "ag_jax/api/model.py",
        "self.classify.probabilities(np.atleast_2d",
        "np.exp(np.atleast_2d",
        "tests/test_pipelines.py",
    ),
    Bug(
        "apply(train=True) has no dropout",
        "ag_jax/api/model.py",
        '"deterministic": not train',
        '"deterministic": True',
        "tests/test_api.py",
    ),
    Bug(
        "a token that begins with a space belongs to the word before",
        "ag_jax/analysis/words.py",
        "spans[at][1] <= begin:",
        "spans[at][1] < begin:",
        "tests/analysis/test_words.py",
    ),
    Bug(
        "a notebook gets the escape sequences of a terminal",
        "ag_jax/distributed/terminal.py",
        "console.is_terminal) or in_notebook,",
        "console.is_terminal),",
        "tests/test_api.py",
    ),
    Bug(
        "weights that were changed on the disk are opened",
        "ag_jax/training/weights.py",
        "if _digest(arrays, text) != digest:",
        "if digest != digest:",
        "tests/training/test_weights.py",
    ),
    Bug(
        "the masses of Python's attention are those of chance",
        "ag_jax/api/attention.py",
        "name: target.mass_NH for",
        "name: target.chance_N for",
        "tests/test_api.py",
    ),
    Bug(
        "a setting that is computed from another keeps its value when a flag changes the other",
        "ag_jax/settings/schema.py",
        "section[name].set(value, type_safe=False)",
        "section[name] = value",
        "tests/test_config_files.py",
    ),
    Bug(
        "the standard error of a validation loss grows with the held-out text",
        "ag_jax/pretraining/findings.py",
        "math.sqrt(variance * tokens_of_row / tokens)",
        "math.sqrt(variance / tokens_of_row * tokens)",
        "tests/pretraining/test_findings.py",
    ),
    Bug(
        "the result of a report calls a higher loss lower",
        "ag_jax/pretraining/findings.py",
        'verb = "raises" if of.change > 0 else "lowers"',
        'verb = "lowers" if of.change > 0 else "raises"',
        "tests/pretraining/test_findings.py",
    ),
    Bug(
        "a free head follows a pattern at chance in a short text",
        "ag_jax/analysis/maps.py",
        "return mass >= chance + CLEAR * (1 - chance)",
        "return mass >= CLEAR",
        "tests/analysis/test_plots.py",
    ),
    Bug(
        "the frame of a search is around another cell than the best",
        "ag_jax/analysis/figures/search.py",
        "row, column = np.argwhere(cells == best)[0]",
        "column, row = np.argwhere(cells == best)[0]",
        "tests/analysis/test_search_figures.py",
    ),
    Bug(
        "attention between words is not averaged over the rows of a word",
        "ag_jax/viewer/encode.py",
        "axis=0) / counts_Q[:, None]",
        "axis=0)",
        "tests/analysis/test_words.py",
    ),
    Bug(
        "the tile of a layer's mean is its first head",
        "ag_jax/viewer/page.py",
        "measure(values_NH.mean(1, keepdims=True))",
        "measure(values_NH[:, :1])",
        "tests/viewer",
    ),
    Bug(
        "a confusion matrix has predictions as rows",
        "ag_jax/evaluation/classes.py",
        "(np.asarray(labels, int), np.asarray(predictions, int))",
        "(np.asarray(predictions, int), np.asarray(labels, int))",
        "tests/finetuning/test_error_analysis.py",
    ),
    Bug(
        "the examples that are most wrong are the least wrong",
        "ag_jax/finetuning/error_analysis.py",
        "key=lambda pair: pair[0], reverse=True)",
        "key=lambda pair: pair[0])",
        "tests/finetuning/test_error_analysis.py",
    ),
    Bug(
        "the model that needs no training is the most frequent label, whatever the metric",
        "ag_jax/finetuning/trivial.py",
        "max(scored, key=lambda pair: pair[1][task.metric])",
        "scored[0]",
        "tests/finetuning/test_error_analysis.py",
    ),
    Bug(
        "LAYER.HEAD counts from 1",
        "ag_jax/inspection/heads.py",
        "places.add((layer, head))",
        "places.add((layer - 1, head - 1))",
        "tests/test_inspection.py",
    ),
)


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_copies(
    root: pathlib.Path, workers: int, work: Callable[[pathlib.Path, Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yield `work(checkout, item)` of each item, in their order; several at a time, each in a copy of the checkout.

    A copy lacks `LEFT_OUT`, and has a link to the `../shared` of the checkout beside it.
    """
    copies: queue.Queue[pathlib.Path] = queue.Queue()

    def in_one(item: Item) -> Result:
        checkout = copies.get()
        try:
            return work(checkout, item)
        finally:
            copies.put(checkout)

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for number in range(workers):
            checkout = pathlib.Path(folder, str(number), "checkout")
            shutil.copytree(root, checkout, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
            if (root.parent / "shared").is_dir():
                (checkout.parent / "shared").symlink_to((root.parent / "shared").resolve())
            copies.put(checkout)
        yield from pool.map(in_one, items)


def environment(checkout: pathlib.Path) -> dict[str, str]:
    """Return the environment variables with which tests run in a checkout; Python keeps what it has compiled there."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return variables | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}


def fails(
    checkout: pathlib.Path, tests: Iterable[str], changes: dict[str, bytes], limit: float | None = None
) -> str | None:
    """Run tests in a checkout with changed files until a test fails; return its name, or None if all pass.

    changes: {file: its content meanwhile}.
    limit: seconds after which the tests count as failed; None for any time.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    before = {name: (checkout / name).read_bytes() for name in changes}
    try:
        for name, content in changes.items():
            (checkout / name).write_bytes(content)
        done = subprocess.run(command, cwd=checkout, env=environment(checkout), capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"takes more than {limit:.0f} s"
    finally:
        for name, content in before.items():
            (checkout / name).write_bytes(content)
    if done.returncode == 0:
        return None
    output = (done.stdout + done.stderr).decode(errors="replace")
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:160] if failed else f"pytest ended with status {done.returncode}: {output[-300:]}"


def plant(checkout: pathlib.Path, bug: Bug, own: bool) -> str | None:
    """Plant a bug, run the tests and remove the bug; return the failed test, or None if all pass.

    own: run only the tests named with the bug, not all.

    Raises ValueError if the file does not have the bug's text.
    """
    text = (checkout / bug.file).read_text()
    if bug.right not in text:
        raise ValueError(
            f"{bug.file} has no {bug.right!r}: the code was rewritten; plant {bug.what!r} in it another way"
        )
    changes = {bug.file: text.replace(bug.right, bug.wrong).encode()}
    runs = [bug.tests.split()] if own else [bug.tests.split(), ["tests"], [*CI]]
    return next((failed for tests in runs if (failed := fails(checkout, tests, changes))), None)


def differing(root: pathlib.Path, commit: str) -> set[str]:
    """Return the files of a checkout that differ from a commit."""
    command = ["git", "diff", "--name-only", commit]
    return set(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split())


def main() -> int:
    """Print for every bug the test that found it; return 1 if a bug was not found or could not be planted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=REPOSITORY, help="the checkout to copy")
    parser.add_argument("--only", default="", help="numbers of bugs, with commas")
    parser.add_argument("--changed", metavar="COMMIT", help="only bugs in files that differ from this commit")
    parser.add_argument("--own", action="store_true", help="run only the tests named with the bug")
    parser.add_argument("--workers", type=int, default=2, help="number of bugs that are tried at a time")
    parser.add_argument("--list", action="store_true", help="print the bugs and stop")
    options = parser.parse_args()
    root = options.root.resolve()
    chosen = [int(number) for number in options.only.split(",") if number] or range(1, len(BUGS) + 1)
    if options.changed:
        changed = differing(root, options.changed)
        chosen = [number for number in chosen if BUGS[number - 1].file in changed]
    if options.list:
        print("\n".join(f"{number}. {BUGS[number - 1].file}: {BUGS[number - 1].what}" for number in chosen))
        return 0

    def judge(checkout: pathlib.Path, number: int) -> tuple[str | None, float]:
        began = time.monotonic()
        try:
            return plant(checkout, BUGS[number - 1], options.own), time.monotonic() - began
        except (OSError, ValueError) as error:
            return f"CANNOT BE PLANTED: {error}", 0.0

    missed = 0
    for number, (verdict, seconds) in zip(chosen, in_copies(root, options.workers, judge, chosen), strict=True):
        missed += verdict is None or verdict.startswith("CANNOT")
        print(f"{number}. {BUGS[number - 1].what}: {verdict or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

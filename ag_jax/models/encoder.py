"""Transformer encoder: embeddings and a scanned stack of layers.

Shape letters: B batch, L length, M masked positions of a row, N layers, H head, D width, E width of the embeddings.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import guidance, rotary, segments
from ag_jax.attention.attack import Attack
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import RESIDUALS, Attend
from ag_jax.models import embeddings, layers
from ag_jax.models.config import EncoderConfig

Batch = dict[str, Array]
Params = dict[str, Any]

SOWN = ("intermediates", "statistics", "attack")  # collections that layers add to
REMAT_POLICIES = {
    "layer": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(RESIDUALS),
    ),
}


@flax.struct.dataclass
class Ports:
    """Optional inputs by which guidance, adversaries and the ablation of heads change an encoder's forward pass.

    All are None by default.

    guides: patterns for the guided heads, whose statistics are then sown.
    decoder_guides, cross_guides: patterns for the guided heads of a decoder, in its self-attention and in its attention
        to the source.
    embedding_delta: `BLE`, added to the word embeddings.
    on_embeddings: called with the sum of the embeddings, `BLE`; LayerNorm is applied to its result. A pytree.
    attention_bias: broadcasts to `BHQK`, added to the attention scores of every layer.
    attack: called by every layer with its input; each leaf has a leading axis over the layers.
    head_mask_NH: factor of the output of each head in each layer: 1 keeps the output, 0 zeroes it (Michel et al. 2019,
        section 2.3, where it is xi_h). The attention weights of the head stay as they are.
    """

    guides: guidance.Guides | None = None
    decoder_guides: guidance.Guides | None = None
    cross_guides: guidance.Guides | None = None
    embedding_delta: Array | None = None
    on_embeddings: Callable[[Array], Array] | None = None
    attention_bias: Array | None = None
    attack: Attack | None = None
    head_mask_NH: Array | None = None


@flax.struct.dataclass
class ConvolutionBranch:
    """Output of a convolution parallel to the first layer, and parameters of the LayerNorm after both are added.

    convolved_BLD: output of the convolution, to be added to the first layer's output.
    norm: parameters of the LayerNorm.
    """

    convolved_BLD: Array
    norm: dict[str, Array]

    def join(self, config: EncoderConfig, hidden_BLD: Array) -> Array:
        """Return LayerNorm(hidden_BLD + self.convolved_BLD), where `hidden_BLD` is the first layer's output."""
        norm: Any = layers.normalization(config, parent=None)
        return norm.apply({"params": self.norm}, hidden_BLD + self.convolved_BLD)


def rows(batch: Batch) -> Batch:
    """Return the fields of a batch that encoder and guidance read, with each candidate text of an example as a row.

    Fields `BCL` with C candidates, as in multiple choice, become `(B C)L`.

    `original` is the tokens if the batch has no such field, because nothing was corrupted.
    """
    fields = {name: batch[name] for name in ("tokens", "segment_ids", "token_type_ids")}
    fields["original"] = batch.get("original", batch["tokens"])
    return {name: field.reshape(-1, field.shape[-1]) for name, field in fields.items()}


def at_masks(hidden_BLD: Array, batch: Batch) -> Array:
    """Return the hidden states at the M masked positions of each row, `batch["masked_positions"]`, as `BMD`."""
    return jnp.take_along_axis(hidden_BLD, batch["masked_positions"][:, :, None], axis=1)


def over_layers(
    config: EncoderConfig, step: Callable, count: int, collections: tuple[str, ...], in_axes: Any
) -> Callable:
    """Return a function (layer, carry, *arguments) -> (carry, None) that runs `step` on all layers by `nn.scan`.

    step: a function of the same form, for one layer; `config.remat` says what the backward pass recomputes of it.
    count: number of layers.
    collections: collections of variables that have a leading axis over the layers.
    in_axes: for each argument, 0 if it has a leading axis over the layers, else `nn.broadcast`.
    """
    if config.remat != "none":
        # Inside a loop, XLA cannot replace what is recomputed by what was computed before. Elsewhere it has to be
        # prevented from doing so, which takes some operations.
        step = nn.remat(step, policy=REMAT_POLICIES[config.remat], prevent_cse=not config.scan_layers)
    return nn.scan(
        step,
        variable_axes=dict.fromkeys(collections, 0),
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
        length=count,
        unroll=1 if config.scan_layers else count,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


class Encoder(nn.Module):
    """Bidirectional Transformer encoder: BERT, RoBERTa, ELECTRA, DeBERTa or ModernBERT, depending on `config`.

    The parameters of all layers are stacked, with a leading axis of length `layers`. With `config.scan_layers` the
    layers are a loop, so compile time does not grow with depth. What attention sows has the same leading axis: with
    `mutable=["intermediates"]`, `intermediates["encoder"]["layers"]["attention"]["attention_weights"][0]` is `NBHQK`
    for all N layers.

    With `config.window`, some layers see a window only (`EncoderConfig.layer_kinds`). The loop is then over groups of
    layers, one of each kind, and `statistics` of guidance has only the layers whose kind is in `ports.guides.kinds`.

    The enhanced mask decoder (`mask_decoder_passes`) applies the last layer again to a query subset: the masked
    positions, for the word head only. These passes sow nothing and contribute to no guidance loss. `attention_bias` is
    added in them as in every layer, and the last layer's attack is applied on the same input, with separate random
    numbers if it draws any. The last layer's row of `head_mask_NH` is applied in them, too. The ordinary last layer is
    computed as well; `__call__` returns its output, and guidance reads its attention.

    attend: implementation of attention (`attention.kernels.dispatch`); it changes nothing but speed and memory.
    """

    config: EncoderConfig
    attend: Attend = reference.attend

    def setup(self):
        config = self.config
        self.embeddings = embeddings.Embeddings(config)
        if config.relative.terms:
            init = layers.initializer(config)
            self.relative = nn.Embed(
                2 * config.relative.half,
                config.width,
                dtype=jnp.dtype(config.dtype),
                embedding_init=nn.with_logical_partitioning(init, ("distance", "embed")),
            )
            if config.relative.normalized:
                self.relative_norm = layers.normalization(config)
        if config.convolution:
            self.convolution = layers.Convolution(config)
            self.convolution_norm = layers.NormParameters(config)
        # The kind of the first layer; `_run_groups` makes layers of the other kinds with the same parameters.
        self.layers = layers.EncoderLayer(config, self.attend, config.layer_kinds[0])
        if config.norm_position == "pre":
            self.final_norm = layers.normalization(config)

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Array:
        """Run the encoder on a batch of token ids; return the hidden states `BLD` after the last layer.

        batch: `tokens`, `segment_ids` and `token_type_ids`, `BL`. Tokens attend only within their own text.
        deterministic: no dropout; otherwise a model with dropout, or an attack that draws, needs the rng `dropout`.
        """
        return self._encode(batch, ports, deterministic)[1]

    def with_mask_decoder(
        self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool, embedded_BLE: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the last hidden states `BLD`, and vectors `BMD` from which words at masked positions are predicted.

        Without a mask decoder, `BMD` are the hidden states at the masked positions. With one, they are z_T of

            z_0 = H_{N-1} + absolute positions,   z_{t+1} = last layer(query z_t, key and value H_{N-1}),

        with T = `mask_decoder_passes` (He et al. 2021, section 3.2; as in the released code, the decoder reuses the
        encoder's last layer). No query attends to another one, so queries at the masked positions are enough.

        embedded_BLE: embeddings of another encoder before `project`, used in place of this encoder's embeddings;
            `ports.embedding_delta` and `ports.on_embeddings`, which the other encoder has read, have no effect then.
        """
        before_BLD, hidden_BLD, context = self._encode(batch, ports, deterministic, embedded_BLE)
        if not self.config.mask_decoder_passes:
            return hidden_BLD, at_masks(hidden_BLD, batch)
        decoded_BMD = at_masks(before_BLD + self.embeddings.positions(context.segments_BL), batch)
        last = jax.tree.map(lambda leaf: leaf[-1], nn.unbox(self.layers.variables["params"]))
        attack, head_mask_H = jax.tree.map(lambda leaf: leaf[-1], (ports.attack, ports.head_mask_NH))
        for _ in range(self.config.mask_decoder_passes):
            queries = layers.QuerySubset(decoded_BMD, batch["masked_positions"])
            decoded_BMD = self._decode(last, queries, before_BLD, context, attack, head_mask_H)
        return hidden_BLD, decoded_BMD

    def _encode(
        self, batch: Batch, ports: Ports, deterministic: bool, embedded_BLE: Array | None = None
    ) -> tuple[Array | None, Array, layers.Context]:
        """Run all layers; return input and output of the last one, `BLD`, and the arguments that all layers share.

        The last layer's input is for the mask decoder, and None in an encoder without one.

        embedded_BLE: as in `with_mask_decoder`.
        """
        config, segments_BL = self.config, batch["segment_ids"]
        if embedded_BLE is None:
            embedded_BLE = self.embeddings(
                batch["tokens"],
                segments_BL,
                batch["token_type_ids"],
                ports.embedding_delta,
                deterministic=deterministic,
                on_sum=ports.on_embeddings,
            )
        hidden_BLD = self.embeddings.project(embedded_BLE)
        context = layers.Context(
            segments_BL,
            ports.guides,
            ports.attention_bias,
            self._distances(),
            *self._rotations(segments_BL),
            deterministic=deterministic,
        )
        # Parameters do not depend on the kind of a layer, so all are initialised by the loop over single layers.
        if len(config.layer_kinds) > 1 and not self.is_initializing():
            return None, self._finish(self._run_groups(hidden_BLD, context, ports)), context
        branch = None
        if config.convolution:
            convolved_BLD = self.convolution(hidden_BLD, segments_BL, deterministic=deterministic)
            branch = ConvolutionBranch(convolved_BLD, self.convolution_norm())

        def step(layer, carry, context, branch, index, attack, head_mask_H):
            _, hidden_BLD = carry
            next_BLD = layer(hidden_BLD, context, attack=attack, head_mask_H=head_mask_H, index=index)
            if branch is not None:  # computed in every layer, because the scan runs one program for all of them
                next_BLD = jnp.where(index == 0, branch.join(config, next_BLD), next_BLD)
            return (hidden_BLD if config.mask_decoder_passes else None, next_BLD), None

        scanned = over_layers(
            config,
            step,
            config.layers,
            ("params", *SOWN),
            in_axes=(nn.broadcast, nn.broadcast, 0, 0, 0),
        )
        # Only the mask decoder reads the last layer's input, so the carry has it only then.
        carry = (hidden_BLD if config.mask_decoder_passes else None, hidden_BLD)
        by_layer = (jnp.arange(config.layers), ports.attack, ports.head_mask_NH)
        (before_BLD, hidden_BLD), _ = scanned(self.layers, carry, context, branch, *by_layer)
        return before_BLD, self._finish(hidden_BLD), context

    def _finish(self, hidden_BLD: Array) -> Array:
        """Return the last layer's output, after the final LayerNorm if `norm_position=pre`."""
        return self.final_norm(hidden_BLD) if self.config.norm_position == "pre" else hidden_BLD

    def _run_groups(self, hidden_BLD: Array, context: layers.Context, ports: Ports) -> Array:
        """Run layers of which some have windowed attention, in groups; return the output of the last layer.

        The layers of a group are compiled one after the other, each with its own kind of attention, and the groups are
        a loop. What the layers sow gets a leading axis over the layers, as in a loop over single layers.

        `nn.scan` runs one module with one set of attributes, and the kind is an attribute. So each layer is a module
        without a parent here, applied to its slice of the stacked parameters, and what it sows is returned by the loop
        and stored afterwards (`put_variable`).
        """
        config, attend, kinds = self.config, self.attend, self.config.layer_kinds
        size = len(kinds)
        groups, rest = divmod(config.layers, size)
        unguided = dataclasses.replace(context, guides=None)
        collections = [name for name in SOWN if self.is_mutable_collection(name)]
        key = self.make_rng("dropout") if self._draws(ports.attack) and not context.deterministic else None

        def run(is_local: bool, hidden_BLD: Array, layer_inputs: tuple) -> tuple[Array, Any]:
            params, index, attack, head_mask_H = layer_inputs
            guided = context if context.guides is None or is_local in context.guides.kinds else unguided
            layer = layers.EncoderLayer(config, attend, is_local, parent=None)
            rngs = None if key is None else {"dropout": jax.random.fold_in(key, index)}
            inputs = {"attack": attack, "head_mask_H": head_mask_H, "index": index}
            return layer.apply({"params": params}, hidden_BLD, guided, rngs=rngs, mutable=collections, **inputs)

        policy = REMAT_POLICIES.get(config.remat)  # None with `remat=none`
        steps: dict[bool, Callable] = {is_local: functools.partial(run, is_local) for is_local in set(kinds)}
        if policy is not None:
            # The last, shorter group is outside the loop: see `over_layers`.
            remat = functools.partial(jax.checkpoint, policy=policy, prevent_cse=not config.scan_layers or rest > 0)
            steps = {is_local: remat(step) for is_local, step in steps.items()}

        def group(hidden_BLD: Array, group_inputs: Any) -> tuple[Array, dict[str, Any]]:
            by_layer = []
            for place in range(jax.tree.leaves(group_inputs)[0].shape[0]):
                layer_inputs = jax.tree.map(operator.itemgetter(place), group_inputs)
                hidden_BLD, sown = steps[kinds[place]](hidden_BLD, layer_inputs)
                by_layer.append(sown)
            # With one axis over the layers of the group that sow into a collection.
            by_collection = {name: [sown[name] for sown in by_layer if name in sown] for name in collections}
            return hidden_BLD, {
                name: jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
                for name, values in by_collection.items()
                if values
            }

        params = nn.unbox(self.layers.variables["params"])
        inputs = (params, jnp.arange(config.layers), ports.attack, ports.head_mask_NH)
        in_groups = jax.tree.map(lambda leaf: leaf[: groups * size].reshape(groups, size, *leaf.shape[1:]), inputs)
        hidden_BLD, sown = jax.lax.scan(group, hidden_BLD, in_groups, unroll=1 if config.scan_layers else groups)
        sown = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), sown)
        if rest:  # the last group is shorter
            hidden_BLD, sown_last = group(hidden_BLD, jax.tree.map(lambda leaf: leaf[-rest:], inputs))
            # A kind of layers that the last group lacks sows nothing there.
            sown_last = {
                name: sown_last.get(name, jax.tree.map(lambda leaf: leaf[:0], values)) for name, values in sown.items()
            }
            sown = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), sown, sown_last)
        for name, modules in sown.items():
            for module, values in modules.items():
                self.layers.put_variable(name, module, values)
        return hidden_BLD

    def _draws(self, attack: Attack | None) -> bool:
        """Return whether dropout or an attack draws random numbers in training, so that the rng `dropout` is needed."""
        return attack is not None or max(self.config.dropout, self.config.attention_dropout) > 0.0

    def _rotations(self, segments_BL: Array) -> tuple[rotary.Rotation | None, rotary.Rotation | None]:
        """Return the rotations of rotary positions: (in layers without a window, in layers with a window).

        A rotation is None without rotary positions, and for a kind of layers that the model does not have.
        """
        config = self.config
        if config.positions != "rotary":
            return None, None
        order_BL = segments.order(segments_BL)
        bases = (config.rotary_base, config.rotary_base_local or config.rotary_base)
        without, local = (
            rotary.rotation(order_BL, config.head_width, base) if is_local in config.layer_kinds else None
            for is_local, base in zip((False, True), bases, strict=True)
        )
        return without, local

    def _distances(self) -> Array | None:
        """Return the relative-position embeddings `RD` of disentangled attention, or None without it."""
        if not self.config.relative.terms:
            return None
        relative_RD = self.relative.embedding.astype(self.config.dtype)
        return self.relative_norm(relative_RD) if self.config.relative.normalized else relative_RD

    def _decode(
        self,
        params: Params,
        queries: layers.QuerySubset,
        hidden_BLD: Array,
        context: layers.Context,
        attack: Attack | None,
        head_mask_H: Array | None,
    ) -> Array:
        """Apply an encoder layer to the mask decoder's queries at M masked positions; return their new vectors, `BMD`.

        Keys and values are computed from `hidden_BLD`. The layer has a dropout key of its own.

        params: parameters of the layer.
        """
        config, attend = self.config, self.attend
        rngs = {"dropout": self.make_rng("dropout")} if self._draws(attack) and not context.deterministic else None

        def apply(params, rngs, queries, hidden_BLD, context, attack, head_mask_H):
            layer = layers.EncoderLayer(config, attend, parent=None)
            ports = {"attack": attack, "head_mask_H": head_mask_H}
            return layer.apply({"params": params}, hidden_BLD, context, queries=queries, rngs=rngs, **ports)

        if config.remat != "none":
            apply = jax.checkpoint(apply, policy=REMAT_POLICIES[config.remat])
        return apply(params, rngs, queries, hidden_BLD, context, attack, head_mask_H)

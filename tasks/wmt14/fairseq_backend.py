"""fairseq's own Transformer behind our model's calls, and parameters of one as those of the other.

The only file that knows fairseq. It is imported when a model is built and not before: that takes
seconds.
"""

from __future__ import annotations

import logging
import re
import sys
from argparse import Namespace
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tasks.wmt14.beam import BeamOptions, Hypothesis, Marks
from tasks.wmt14.model import POSITIONS, Transformer, TransformerOptions, fairseq_sinusoids

EMBEDDING = "embedding"  # ours
EMBEDDINGS = (  # and theirs, one matrix with three names
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)
PARTS = {  # of a layer: ours and theirs
    f"{ours}.{part}": f"{theirs}.{part}_proj"
    for ours, theirs in (("attention", "self_attn"), ("cross", "encoder_attn"))
    for part in ("q", "k", "v", "out")
} | {
    "attention_norm": "self_attn_layer_norm",
    "cross_norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
VERSIONS = ("encoder.version", "decoder.version")  # of fairseq's format, among its parameters
VERSION = 3.0


def load_fairseq() -> None:
    """Imports fairseq and takes back what that does to the process.

    It would configure the root logger, and leave its configurations in Hydra's store, where ours
    could be taken for them.
    """
    if "fairseq" in sys.modules:
        return
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        from fairseq.dataclass.configs import FairseqConfig
        from fairseq.dataclass.initialize import ConfigStore
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
    store = ConfigStore.instance().repo
    for name in ("config", *FairseqConfig.__dataclass_fields__):
        store.pop(f"{name}.yaml", None)
        group = store.get(name, {})
        for key in [key for key, node in group.items() if node.provider == "fairseq"]:
            del group[key]
        if name in store and not group:
            del store[name]


class FairseqTransformer(nn.Module):
    """`transformer_wmt_en_de_big`, with one matrix for all words, in the sizes of the options.

    Called as ours is; the padding is given by lengths here too. Words other than padding must not
    be `options.pad`, which fairseq takes for padding wherever it stands.
    """

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        load_fairseq()
        from fairseq.models.transformer import TransformerModel
        from fairseq.models.transformer.transformer_legacy import transformer_wmt_en_de_big

        if options.variant != "fairseq":
            raise ValueError(
                f'FairseqTransformer: variant must be "fairseq", not {options.variant!r}'
            )
        self.options = options
        arguments = Namespace(
            encoder_embed_dim=options.d_model,
            encoder_ffn_embed_dim=options.d_ff,
            encoder_layers=options.encoder_layers,
            encoder_attention_heads=options.heads,
            decoder_embed_dim=options.d_model,
            decoder_ffn_embed_dim=options.d_ff,
            decoder_layers=options.decoder_layers,
            decoder_attention_heads=options.heads,
            dropout=options.dropout,
            attention_dropout=options.dropout,
            activation_dropout=0.0,
            share_all_embeddings=True,
            max_source_positions=POSITIONS,
            max_target_positions=POSITIONS,
        )
        transformer_wmt_en_de_big(arguments)
        words = _Words(options.vocabulary, Marks(options.pad, options.pad, options.pad))
        task = Namespace(source_dictionary=words, target_dictionary=words)
        self.model = TransformerModel.build_model(arguments, task)
        self._aliases: list[Transformer] = []  # in a list: not a part of this module

    def forward(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Logits (B, T, V), as `Transformer.forward`."""
        source, source_lengths = self._padded(source, source_lengths)
        logits: Tensor = self.model(source, source_lengths, target)[0]
        return logits

    @torch.no_grad()
    def translate(
        self, source: Tensor, source_lengths: Tensor | None, marks: Marks, options: BeamOptions
    ) -> list[Hypothesis]:
        """By fairseq's search, whose greatest length is that of the batch's longest source."""
        from fairseq.sequence_generator import SequenceGenerator

        source, source_lengths = self._padded(source, source_lengths)
        search = SequenceGenerator(
            [self.model],
            _Words(self.options.vocabulary, marks),
            beam_size=options.beam,
            max_len_a=1,
            max_len_b=options.extra,
            max_len=options.longest + 1,
            min_len=options.shortest,
            len_penalty=options.alpha,
        )
        batch = {"net_input": {"src_tokens": source, "src_lengths": source_lengths}}
        found = search(batch, bos_token=marks.begin)
        return [Hypothesis(h[0]["tokens"][:-1].tolist(), h[0]["score"].item()) for h in found]

    def as_ours(self) -> Transformer:
        """Our Transformer with these very parameters: what changes here changes there."""
        own = self._words()
        if not self._aliases or self._aliases[0].embedding.data_ptr() != own.data_ptr():
            with torch.device("meta"):
                ours = Transformer(self.options)
            ours.load_state_dict(from_fairseq(self.model.state_dict()), assign=True)
            table = fairseq_sinusoids(self.options.d_model, self.options.pad)
            ours.positions = table.to(own)
            self._aliases = [ours]
        return self._aliases[0].train(self.training)

    def _words(self) -> Tensor:
        words: Tensor = self.model.encoder.embed_tokens.weight
        return words

    def _padded(self, source: Tensor, source_lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """With fairseq's sign for padding, and lengths that are not None."""
        width = source.shape[1]
        if source_lengths is None:
            return source, torch.full_like(source[:, 0], width)
        beyond = torch.arange(width, device=source.device) >= source_lengths[:, None]
        return source.masked_fill(beyond, self.options.pad), source_lengths


class _Words:
    """What fairseq asks a dictionary for."""

    def __init__(self, size: int, marks: Marks) -> None:
        self.size, self.marks = size, marks

    def __len__(self) -> int:
        return self.size

    def bos(self) -> int:
        return self.marks.begin

    def eos(self) -> int:
        return self.marks.end

    def pad(self) -> int:
        return self.marks.pad

    def unk(self) -> int:
        return self.marks.pad  # never chosen; fairseq wants to know a word for the unknown


def smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """fairseq's sum of label-smoothed -log p, `smoothing` spread over the V - 1 wrong words."""
    load_fairseq()
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    wide = torch.promote_types(logits.dtype, torch.float32)
    log_p = logits.flatten(0, 1).log_softmax(-1, dtype=wide)
    loss: Tensor = label_smoothed_nll_loss(log_p, targets.flatten(), smoothing)[0]
    return loss


def to_fairseq(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A `Transformer.state_dict()`, variant "fairseq", for `FairseqTransformer.model`."""
    theirs = {name: torch.tensor([VERSION]) for name in VERSIONS}
    for name, tensor in ours.items():
        theirs |= (
            dict.fromkeys(EMBEDDINGS, tensor) if name == EMBEDDING else {_theirs(name): tensor}
        )
    return theirs


def from_fairseq(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A `FairseqTransformer.model.state_dict()`, for `Transformer` with variant "fairseq"."""
    embedding, *others = (theirs[name] for name in EMBEDDINGS)
    if not all(torch.equal(embedding, other) for other in others):
        raise ValueError(f"from_fairseq: {', '.join(EMBEDDINGS)} must be the same matrix")
    ours = {EMBEDDING: embedding}
    for name, tensor in theirs.items():
        if name not in (*EMBEDDINGS, *VERSIONS):
            ours[_ours(name)] = tensor
    return ours


def _theirs(name: str) -> str:
    match = re.fullmatch(r"(encoder|decoder)\.(\d+)\.(.+)\.(weight|bias)", name)
    if not match or match[3] not in PARTS:
        raise ValueError(f"to_fairseq: {name} has no counterpart in fairseq's model")
    return f"{match[1]}.layers.{match[2]}.{PARTS[match[3]]}.{match[4]}"


def _ours(name: str) -> str:
    back = {theirs: ours for ours, theirs in PARTS.items()}
    match = re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if not match or match[3] not in back:
        raise ValueError(f"from_fairseq: {name} has no counterpart in our model")
    return f"{match[1]}.{match[2]}.{back[match[3]]}.{match[4]}"

"""What a draft's decoder reads beside the text: its own encoder's outputs, or the target's."""

import inspect
from dataclasses import dataclass

import torch

from .. import compat
from ..errors import SpecUnsupportedError

CROSS_ATTENTION = {"encoder_attn", "crossattention", "cross_attn"}
"""What transformers calls the modules that attend to an encoder's outputs."""


@dataclass
class Source:
    """What the target's encoder was given and made.

    Attributes:
        encoder: the target's.
        input_name: the argument under which it takes its input.
        inputs: ids `[batch, length]` or features; the batch without `num_return_sequences`.
        mask: of `inputs`, `[rows, length]`, or None.
        outputs: of the encoder, `[rows, …]`.
    """

    encoder: torch.nn.Module
    input_name: str
    inputs: torch.Tensor
    mask: torch.Tensor | None
    outputs: object

    def ids_of(self, row: int) -> torch.Tensor | None:
        """The ids of a row that the encoder read, `[length]` without padding; None if it read something else."""
        if self.inputs.dim() != 2 or (self.inputs < 0).any():
            return None
        copies = self.outputs[0].shape[0] // len(self.inputs)
        ids = self.inputs[row // copies]
        return ids if self.mask is None else ids[self.mask[row].bool()]


def takes_encoder_outputs(model) -> bool:
    """Whether a decoder-only model attends to an encoder's outputs (Whisper's or BART's decoder alone)."""
    known = compat.forward_parameters(model)
    if model.config.is_encoder_decoder or not {"encoder_outputs", "encoder_hidden_states"} & known:
        return False  # many classes take them but attend to them only if they were built to
    return any(name.rsplit(".", 1)[-1] in CROSS_ATTENTION for name, _ in model.named_modules())


def input_name(model) -> str:
    """The argument under which a model's encoder takes its input."""
    return getattr(model.get_encoder(), "main_input_name", model.main_input_name)


def check_encoder(draft, source: Source | None, vocabulary=None) -> None:
    """Refuse a draft whose encoder cannot read the target's inputs, or whose decoder cannot read its outputs.

    Args:
        vocabulary: what the draft's ids stand for (a `VocabularyMap`); None where both use the same.
    """
    name = type(draft).__name__
    if not draft.config.is_encoder_decoder:
        if source is not None and takes_encoder_outputs(draft):
            width, given = compat.text_config(draft).hidden_size, source.outputs[0].shape[-1]
            if width != given:
                raise SpecUnsupportedError(
                    f"The draft {name} reads encoder outputs of width {width}, the target's have {given}. "
                    "Use a decoder made for this encoder, or a draft with an encoder of its own."
                )
        return
    if source is None:
        raise SpecUnsupportedError(
            f"The draft {name} is an encoder-decoder and the target is not. Use a causal language model as draft."
        )
    if shares(draft, source):
        return
    bins = getattr(draft.config, "num_mel_bins", None)
    if bins is not None and source.inputs.dim() == 3 and source.inputs.shape[1] != bins:
        raise SpecUnsupportedError(
            f"The draft {name} reads {bins} mel bins, the input has {source.inputs.shape[1]}. "
            "Use a draft with the target's feature size (num_mel_bins)."
        )
    frames = getattr(draft.config, "max_source_positions", None)
    if bins is not None and frames is not None and source.inputs.dim() == 3:
        encoder = draft.get_encoder()
        frames *= encoder.conv1.stride[0] * encoder.conv2.stride[0] if hasattr(encoder, "conv2") else 1
        if source.inputs.shape[2] != frames:
            raise SpecUnsupportedError(
                f"The draft {name} reads segments of {frames} frames, the input has {source.inputs.shape[2]}. "
                "Use a draft with the target's max_source_positions."
            )
    if input_name(draft) != source.input_name:
        raise SpecUnsupportedError(
            f"The draft's encoder reads {input_name(draft)}, the target's {source.input_name}. "
            "Use a draft for the same kind of input."
        )
    if vocabulary is not None and input_name(draft) == "input_ids":
        raise SpecUnsupportedError(
            f"The draft {name} has another vocabulary than the target and an encoder of its own, which would have to "
            "read the prompt in it. Use a draft with the target's tokenizer."
        )
    embedded = source.inputs.is_floating_point()
    if input_name(draft) == "input_ids" and (embedded or (source.inputs < 0).any()):
        given = "inputs_embeds" if embedded else "encoder_outputs"
        raise SpecUnsupportedError(
            f"{given} without input_ids: the draft {name} has an encoder of its own and nothing to read. "
            "Pass input_ids, or a draft that shares the target's encoder."
        )


def known_ids(draft, ids: torch.Tensor) -> torch.Tensor:
    """Ids the draft's embedding does not have are read as its first one: only acceptance can suffer."""
    return ids.masked_fill(ids >= draft.get_input_embeddings().num_embeddings, 0)


def shares(draft, source: Source) -> bool:
    """Whether the draft's encoder holds the very weights of the target's: then it need not run."""
    own = draft.get_encoder()
    if own is source.encoder:
        return True
    mine, theirs = dict(own.named_parameters()), dict(source.encoder.named_parameters())
    return mine.keys() == theirs.keys() and all(p.data_ptr() == theirs[n].data_ptr() for n, p in mine.items())


@torch.no_grad()
def encoder_inputs(draft, source: Source | None) -> dict:
    """The encoder's part of the draft's inputs, `[rows, …]`; its own encoder runs here, once in a call."""
    if source is None:
        return {}
    if not draft.config.is_encoder_decoder:
        if not takes_encoder_outputs(draft):
            return {}
        if "encoder_outputs" in compat.forward_parameters(draft):
            return {"encoder_outputs": source.outputs}
        return {"encoder_hidden_states": source.outputs[0], "encoder_attention_mask": source.mask}
    outputs = source.outputs
    if not shares(draft, source):
        encoder, rows = draft.get_encoder(), source.outputs[0].shape[0]
        copies = rows // len(source.inputs)
        inputs = {input_name(draft): source.inputs}
        if source.inputs.dim() == 2 and not source.inputs.is_floating_point():
            inputs = {input_name(draft): known_ids(draft, source.inputs)}
        if source.mask is not None and "attention_mask" in inspect.signature(encoder.forward).parameters:
            inputs["attention_mask"] = source.mask[::copies]
        outputs = encoder(**inputs, return_dict=True)
        if copies > 1:
            outputs = type(outputs)(last_hidden_state=outputs[0].repeat_interleave(copies, dim=0))
    return {"encoder_outputs": outputs, "attention_mask": source.mask}

"""Tiny checkpoints that every back end can take, and what is in a quantized model."""

import torch
from toys import tiny

IDS = torch.arange(2, 26)[None]
GREEDY = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "max_new_tokens": 16, "do_sample": False}
DRAFTING = GREEDY | {"num_assistant_tokens": 5}  # by itself, a draft as large as its target rests


def make(folder, tied: bool = False, scale: float = 3.0, **config):
    """Save a decisive float32 model and return its folder. Sizes are multiples of 128."""
    sizes = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    model = tiny(scale=scale, tie_word_embeddings=tied, **sizes | {"eos_token_id": 255} | config)
    model.save_pretrained(folder)
    return folder


def tensors_of(model) -> dict[str, torch.Tensor]:
    """All tensors that a model holds, those inside quantized weights included, without `state_dict`."""
    found = {}

    def add(name, x):
        if hasattr(x, "__tensor_flatten__"):
            for part in x.__tensor_flatten__()[0]:
                add(f"{name}.{part}", getattr(x, part))
        elif isinstance(x, torch.Tensor):
            found[name] = x

    for path, module in model.named_modules():
        for name, x in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            add(f"{path}.{name}", x.data if type(x) is torch.nn.Parameter else x)
            for part in ("CB", "SCB"):
                add(f"{path}.{name}.{part}", getattr(x, part, None))
            for part, value in vars(getattr(x, "quant_state", None) or torch.nn.Module()).items():
                add(f"{path}.{name}.{part}", value)
    return found

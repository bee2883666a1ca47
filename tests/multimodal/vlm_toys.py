"""Tiny random vision-language models, prompts with images for them, and text-only drafts with their text weights."""

import copy
import functools
from dataclasses import dataclass

import torch
import transformers
from toys import noisy
from transformers import AutoModelForCausalLM, GenerationConfig

VOCAB = 64
IMAGE, VISION_START, VISION_END, VIDEO = 60, 57, 58, 59

_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_MROPE = {"rope_type": "default", "type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


@dataclass(frozen=True)
class Family:
    """`text`: the config of the text-only model. `image`: tokens that stand for one image. `scale`, `seed`: of the
    weights, so that texts vary and depend on the images."""

    model: str
    config: str
    settings: dict
    text: str
    image: int = 4
    scale: float = 3.0
    seed: int = 0


def _qwen(vision: dict) -> dict:
    return _QWEN_IDS | {
        "text_config": _TEXT | {"rope_parameters": _MROPE},
        "vision_config": {
            "depth": 1,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        }
        | vision,
    }


FAMILIES = {
    "qwen2_vl": Family(
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        _qwen({"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}),
        "Qwen2Config",
        scale=1.5,
        seed=2,
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        _qwen(
            {
                "hidden_size": 16,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "window_size": 8,
                "fullatt_block_indexes": [0],
            }
        ),
        "Qwen2Config",
        scale=1.5,
    ),
    "llava": Family(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "image_token_index": IMAGE,
            "image_token_id": IMAGE,
            "text_config": {"model_type": "llama"} | _TEXT,
            "vision_config": {"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4, "projection_dim": 16}
            | _TOWER,
            "vision_feature_layer": -1,
        },
        "LlamaConfig",
    ),
    "gemma3": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "image_token_id": IMAGE,
            "image_token_index": IMAGE,
            "boi_token_id": VISION_START,
            "eoi_token_id": VISION_END,
            "mm_tokens_per_image": 4,
            "tie_word_embeddings": False,
            "text_config": _TEXT
            | {
                "head_dim": 8,
                "query_pre_attn_scalar": 8,
                "sliding_window": 8,
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            "vision_config": {"image_size": 16, "patch_size": 4, "vision_use_head": False} | _TOWER,
        },
        "Gemma3TextConfig",
    ),
    "paligemma": Family(
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {
            "image_token_id": IMAGE,
            "image_token_index": IMAGE,
            "projection_dim": 32,
            "tie_word_embeddings": False,
            "text_config": {"model_type": "gemma", "head_dim": 8} | _TEXT,
            "vision_config": {
                "model_type": "siglip_vision_model",
                "image_size": 8,
                "patch_size": 4,
                "projection_dim": 32,
                "vision_use_head": False,
            }
            | _TOWER,
        },
        "GemmaConfig",
    ),
    "idefics3": Family(
        "Idefics3ForConditionalGeneration",
        "Idefics3Config",
        {
            "image_token_id": IMAGE,
            "scale_factor": 2,
            "text_config": {"model_type": "llama"} | _TEXT,
            "vision_config": {"image_size": 16, "patch_size": 4} | _TOWER,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
        },
        "LlamaConfig",
        scale=1.5,
        seed=1,
    ),
    "mllama": Family(
        "MllamaForConditionalGeneration",
        "MllamaConfig",
        {
            "image_token_index": IMAGE,
            "text_config": _TEXT
            | {
                "num_hidden_layers": 3,
                "cross_attention_layers": [1],
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 2,
                "image_size": 8,
                "patch_size": 4,
                "vision_output_dim": 32,
                "intermediate_layers_indices": [0],
                "max_num_tiles": 1,
                "supported_aspect_ratios": [[1, 1]],
            },
        },
        "MllamaTextConfig",
        image=1,
    ),
}


@functools.cache
def build(name: str, attention: str = "sdpa"):
    """The family's target, shared by all tests that ask for the same one: leave it as it is."""
    family = FAMILIES[name]
    config = getattr(transformers, family.config)(**copy.deepcopy(family.settings), attn_implementation=attention)
    torch.manual_seed(family.seed)
    model = getattr(transformers, family.model)(config).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                if not p.any():  # Gemma3's projection of images starts at zero
                    p.normal_(std=0.02)
                p.mul_(family.scale)
    model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1)
    return model


def text_part(model):
    """The decoder of a vision-language model."""
    return getattr(model.model, "language_model", None) or model.model.text_model


@functools.cache
def text_draft(name: str, noise: float = 0.02):
    """A text-only causal LM with the target's text weights, and noise on them."""
    target, family = build(name), FAMILIES[name]
    settings = text_part(target).config.to_dict()
    settings.pop("model_type")
    if name.startswith("qwen"):
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config = getattr(transformers, family.text)(**settings)
    kind = transformers.MllamaForCausalLM if name == "mllama" else AutoModelForCausalLM
    draft = (kind(config) if name == "mllama" else kind.from_config(config)).float().eval()
    draft.model.load_state_dict(text_part(target).state_dict())
    draft.lm_head.load_state_dict(target.lm_head.state_dict())
    draft.generation_config = GenerationConfig(pad_token_id=0)
    return noisy(draft, noise)


def vision_part(model):
    """The tower that reads pixels."""
    names = ("visual", "vision_tower", "vision_model")
    return next(getattr(model.model, name) for name in names if hasattr(model.model, name))


def prompt(name: str, rows: list[tuple], seed: int = 0) -> dict:
    """Inputs of a batch, padded on the left.

    Args:
        rows: per row its parts: an int is so many text tokens, "i" an image, "I" (Qwen) one of another size.
    """
    generator = torch.Generator().manual_seed(seed)
    texts, images = [], []
    for parts in rows:
        ids, own = [], []
        for part in parts:
            if isinstance(part, int):
                ids += torch.randint(2, 50, (part,), generator=generator).tolist()
            else:
                ids += _placeholders(name, part)
                own.append(part)
        texts.append(ids)
        images.append(own)
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(t)) + t for t in texts])
    mask = torch.tensor([[0] * (width - len(t)) + [1] * len(t) for t in texts])
    return {"input_ids": ids, "attention_mask": mask} | _pixels(name, ids, images, generator)


def _placeholders(name: str, kind: str) -> list[int]:
    if name.startswith("qwen"):
        return [VISION_START, *[IMAGE] * (4 if kind == "i" else 6), VISION_END]
    return [IMAGE] * FAMILIES[name].image


def _pixels(name: str, ids: torch.Tensor, images: list[list[str]], generator) -> dict:
    count, most = sum(map(len, images)), max(map(len, images))
    found = {}
    if name.startswith("qwen"):
        found["mm_token_type_ids"] = (ids == IMAGE).long()
    if name == "gemma3":
        found["token_type_ids"] = (ids == IMAGE).long()
    if name == "paligemma":
        found["token_type_ids"] = torch.zeros_like(ids)  # a prefix that sees all of itself
    if not count:
        return found

    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    if name.startswith("qwen"):
        grids = [[1, 4, 4] if kind == "i" else [1, 4, 6] for own in images for kind in own]
        found["image_grid_thw"] = torch.tensor(grids)
        found["pixel_values"] = noise(sum(h * w for _, h, w in grids), 96)
    elif name == "idefics3":
        found["pixel_values"] = noise(len(images), most, 3, 16, 16)
        for b, own in enumerate(images):
            found["pixel_values"][b, len(own) :] = 0
    elif name == "mllama":
        found["pixel_values"] = noise(len(images), most, 1, 3, 8, 8)
        found["aspect_ratio_ids"] = torch.tensor([[1] * len(own) + [0] * (most - len(own)) for own in images])
        found["aspect_ratio_mask"] = found["aspect_ratio_ids"][..., None]
        mask = torch.zeros(len(images), ids.shape[1], most, 1, dtype=torch.long)
        for b in range(len(images)):
            for i, column in enumerate((ids[b] == IMAGE).nonzero().flatten()):
                mask[b, column:, i] = 1
        found["cross_attention_mask"] = mask
    else:
        size = 16 if name == "gemma3" else 8
        found["pixel_values"] = noise(count, 3, size, size)
    return found

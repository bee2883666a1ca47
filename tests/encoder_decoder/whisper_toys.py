"""A tiny Whisper with the whole of a real checkpoint's generation config: languages, tasks, timestamps, suppressions.

Ids: 0-29 text, 30 end (= pad = bos), 31 start, 32-34 languages, 35/36 tasks, 38 previous text, 39 no speech,
40 no timestamps, 41-63 timestamps (0.00 to 0.44 s; a segment is 40 frames, 0.4 s).
"""

import copy
import functools

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperForCausalLM, WhisperForConditionalGeneration

EOS, START, PREVIOUS, NO_TIMESTAMPS = 30, 31, 38, 40
FRAMES = 40  # of one segment
MELS = 8


def config(**overrides) -> WhisperConfig:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {
        "init_std": 0.1,
        "tie_word_embeddings": False,
        "max_source_positions": FRAMES // 2,
        "max_target_positions": 48,
        "num_mel_bins": MELS,
    }
    ids = {"pad_token_id": EOS, "bos_token_id": EOS, "eos_token_id": EOS, "decoder_start_token_id": START}
    return WhisperConfig(vocab_size=64, suppress_tokens=None, begin_suppress_tokens=None, **sizes | ids | overrides)


def generation_config() -> GenerationConfig:
    return GenerationConfig(
        pad_token_id=EOS,
        bos_token_id=EOS,
        eos_token_id=EOS,
        decoder_start_token_id=START,
        is_multilingual=True,
        lang_to_id={"<|en|>": 32, "<|de|>": 33, "<|fr|>": 34},
        task_to_id={"translate": 35, "transcribe": 36},
        prev_sot_token_id=PREVIOUS,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=10,
        suppress_tokens=[1, 2, START, 32, 33, 34, 35, 36, 37, PREVIOUS, 39],
        begin_suppress_tokens=[3, EOS],
        return_timestamps=False,
        alignment_heads=[[0, 1], [1, 2]],
        max_length=26,
    )


@functools.cache
def whisper(seed: int = 1, **overrides) -> WhisperForConditionalGeneration:
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config(**overrides)).float().eval()
    model.generation_config = generation_config()
    return model


def decoder_of(model) -> WhisperForCausalLM:
    """The target's decoder alone, with its weights."""
    alone = WhisperForCausalLM(copy.deepcopy(model.config)).float().eval()
    alone.model.decoder.load_state_dict(model.model.decoder.state_dict())
    alone.proj_out.weight = torch.nn.Parameter(model.proj_out.weight.detach().clone())
    alone.generation_config = generation_config()
    return alone


def sound(batch: int, frames: int = FRAMES, seed: int = 0, mels: int = MELS) -> torch.Tensor:
    """Random mel features `[batch, mels, frames]`."""
    return torch.randn(batch, mels, frames, generator=torch.Generator().manual_seed(seed)) * 2

"""Every option of `generate()` against plain decoding: one row and a ragged batch, greedy and sampled.

python benchmarks/parity.py [--only WORD]

Greedy: ids equal to plain decoding's, in float32, with a noisy copy of the target as draft. Sampled: the ids that the
same seed gives without any draft (`coupled`, whose text depends on the seed alone), that is, the target's own law.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

import hf_specgen
from hf_specgen.compat import CACHE_NAME

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "encoder_decoder"), str(TESTS / "multimodal")]

import encoder_toys  # noqa: E402
import vlm_toys  # noqa: E402
import whisper_toys  # noqa: E402
from architectures.build import build, noisy_copy  # noqa: E402
from toys import noisy, prompts, read_into_cache, tiny, toy_tokenizer  # noqa: E402

NEW = 14


@dataclass(frozen=True)
class Option:
    """`pair()` gives target and draft; `inputs(target, rows)` the call's arguments, anew each time.

    `oracle`: the arguments whose plain ids are wanted, if they are not the same (plain decoding reads padding on the
    right as text).
    """

    pair: Callable
    inputs: Callable
    settings: dict
    oracle: Callable | None = None


def llama(**overrides):
    target = tiny(eos_token_id=None, **overrides)
    return target, noisy(target)


def gpt2():
    target = tiny(transformers.GPT2Config, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=None)
    return target, noisy(target, 0.02)


def architecture(name: str):
    target = build(name)
    return target, noisy_copy(target)


def text(target, rows: int) -> dict:
    return prompts([9] if rows == 1 else [9, 4, 6])


def right(target, rows: int) -> dict:
    return prompts([9] if rows == 1 else [9, 4, 6], side="right")


def turn(target, rows: int, drop: bool = False) -> dict:
    """A second turn: the cache of the first, and the whole text (or, with `drop`, only what is new)."""
    first, new = text(target, rows), prompts([4] * rows, seed=7)
    cache = read_into_cache(target, first)
    ids = new["input_ids"] if drop else torch.cat([first["input_ids"], new["input_ids"]], dim=1)
    mask = torch.cat([first["attention_mask"], new["attention_mask"]], dim=1)
    return {"input_ids": ids, "attention_mask": mask, **(cache if isinstance(cache, dict) else {CACHE_NAME: cache})}


def hole(target, rows: int) -> dict:
    batch = prompts([9] * rows)
    batch["attention_mask"][0, 3:5] = 0
    return batch


def embeds(target, rows: int, ids: bool) -> dict:
    batch = text(target, rows)
    found = {"inputs_embeds": target.get_input_embeddings()(batch["input_ids"]).detach() * 1.01}
    return found | (batch if ids else {"attention_mask": batch["attention_mask"]})


def types(target, rows: int) -> dict:
    batch = text(target, rows)
    return batch | {"token_type_ids": batch["input_ids"] % 5}


def positions(target, rows: int) -> dict:
    batch = text(target, rows)
    return batch | {"position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0) + 3}


def encoded(target, rows: int) -> dict:
    return prompts([7] if rows == 1 else [7, 3, 5], side="right")


def sound(target, rows: int) -> dict:
    return {"input_features": whisper_toys.sound(rows)}


def images(name: str) -> Callable:
    return lambda target, rows: vlm_toys.prompt(name, [(3, "i", 4)] if rows == 1 else [(3, "i", 4), (5, "i", 6)])


DICT = {"return_dict_in_generate": True}
OPTIONS = {
    "plain text": Option(llama, text, {}),
    "right padding": Option(llama, right, {}, oracle=text),
    "mask with a hole": Option(llama, hole, {}),
    "scores and logits": Option(llama, text, {**DICT, "output_scores": True, "output_logits": True}),
    "hidden states": Option(llama, text, {**DICT, "output_hidden_states": True}),
    "attentions": Option(lambda: llama(attn_implementation="eager"), text, {**DICT, "output_attentions": True}),
    "cache of a turn": Option(llama, turn, {}),
    "cache, new ids only": Option(llama, lambda t, r: turn(t, r, drop=True), {}),
    "inputs_embeds": Option(llama, lambda t, r: embeds(t, r, False), {}),
    "inputs_embeds and ids": Option(llama, lambda t, r: embeds(t, r, True), {}),
    "position_ids": Option(llama, positions, {}),
    "token_type_ids": Option(gpt2, types, {}),
    "num_return_sequences=2": Option(llama, text, {"num_return_sequences": 2}),
    "stop_strings": Option(llama, text, {"stop_strings": ["q", "z"], "tokenizer": toy_tokenizer()}),
    "no_repeat_ngram_size=2": Option(llama, text, {"no_repeat_ngram_size": 2}),
    "sliding window": Option(lambda: architecture("gemma3_text"), text, {}),
    "recurrent (qwen3_next)": Option(lambda: architecture("qwen3_next"), text, {}),
    "T5": Option(lambda: (encoder_toys.build("t5"), encoder_toys.draft_of("t5")), encoded, {}),
    "BART": Option(lambda: (encoder_toys.build("bart"), encoder_toys.draft_of("bart")), encoded, {}),
    "Whisper": Option(lambda: (w := whisper_toys.whisper(), noisy(w, 0.02)), sound, {}),
    "Whisper, shared encoder": Option(lambda: (w := whisper_toys.whisper(), whisper_toys.decoder_of(w)), sound, {}),
    "Qwen2-VL": Option(lambda: (vlm_toys.build("qwen2_vl"), vlm_toys.text_draft("qwen2_vl")), images("qwen2_vl"), {}),
    "LLaVA": Option(lambda: (vlm_toys.build("llava"), vlm_toys.text_draft("llava")), images("llava"), {}),
}


def ids_of(out) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else out.sequences


def check(option: Option, rows: int, sampled: bool) -> tuple[bool, float | None]:
    """Whether the ids are those wanted, and the acceptance rate."""
    target, draft = option.pair()
    settings = {"max_new_tokens": NEW, "pad_token_id": 0, **option.settings, "do_sample": sampled}

    def run(strategy: str | None, draft=None, inputs=option.inputs):
        given = {} if strategy is None else {"spec_strategy": strategy, "num_assistant_tokens": 3}
        given |= {"assistant_model": draft} if draft is not None else {}
        given |= {"generator": torch.Generator().manual_seed(5)} if sampled else {}
        with hf_specgen.collect_stats() as stats:
            return ids_of(target.generate(**inputs(target, rows), **settings, **given)), stats

    hf_specgen.enable(target)
    wanted, _ = run("coupled" if sampled else None, inputs=option.oracle or option.inputs)
    found, stats = run("coupled" if sampled else "rejection", draft)
    if option.oracle is not None:
        found, wanted = found[:, -NEW:], wanted[:, -NEW:]
    return torch.equal(found, wanted), stats.acceptance_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="options whose name holds this word")
    only = parser.parse_args().only
    logging.set_verbosity_error()
    table = Table(
        title=f"transformers {transformers.__version__}, torch {torch.__version__}, float32, K = 3, {NEW} tokens"
    )
    table.add_column("option")
    cases = [(rows, sampled) for sampled in (False, True) for rows in (1, 3)]
    for rows, sampled in cases:
        table.add_column(f"{'sampled' if sampled else 'greedy'}, {'one row' if rows == 1 else 'ragged batch'}")
    wrong = 0
    for name, option in OPTIONS.items():
        if only not in name:
            continue
        cells = []
        for rows, sampled in cases:
            if "num_return_sequences" in option.settings and not sampled:  # greedy decoding has one
                cells.append("")
                continue
            same, rate = check(option, rows, sampled)
            wrong += not same
            cells.append(
                f"{'equal' if same else '[red]DIFFERENT[/]'} ({rate:.0%} accepted)" if rate is not None else "?"
            )
        table.add_row(name, *cells)
    Console(width=130).print(table)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

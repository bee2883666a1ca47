"""The main job on the embedded pair: plain beside speculative, same ids, where each token came from, the speed-up."""

import statistics
import time
from dataclasses import dataclass, field

import torch

from .. import collect_stats, disable, enable
from ..display import OriginText, coloured
from ..stats import SpecStats
from . import load


@dataclass
class Answer:
    """One prompt, decoded both ways."""

    text: OriginText
    same_ids: bool
    plain_seconds: list[float] = field(default_factory=list)
    spec_seconds: list[float] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Plain time / speculative time of whole calls: median over pairs that ran one after the other."""
        return statistics.median(p / s for p, s in zip(self.plain_seconds, self.spec_seconds, strict=True))


def compare(prompts, *, max_new_tokens: int, num_assistant_tokens: int, repeats: int) -> tuple[list[Answer], SpecStats]:
    """Decode each prompt `repeats` times plainly and speculatively, interleaved; greedy, float32."""
    target, draft, tokenizer = load()
    options = {"max_new_tokens": max_new_tokens, "do_sample": False, "return_dict_in_generate": True}
    speculation = {"assistant_model": draft, "spec_strategy": "rejection", "num_assistant_tokens": num_assistant_tokens}
    enable(target)
    try:
        answers = []
        warm = tokenizer(prompts[0], return_tensors="pt")
        target.generate(**warm, **options | {"max_new_tokens": 8})
        target.generate(**warm, **options | {"max_new_tokens": 8}, **speculation)
        with collect_stats() as stats:
            for prompt in prompts:
                inputs = tokenizer(prompt, return_tensors="pt")
                plain_seconds, spec_seconds = [], []
                for _ in range(repeats):
                    plain = _timed(plain_seconds, lambda i=inputs: target.generate(**i, **options))
                    spec = _timed(spec_seconds, lambda i=inputs: target.generate(**i, **options, **speculation))
                (text,) = coloured(spec, tokenizer)
                same = torch.equal(plain.sequences, spec.sequences)
                answers.append(Answer(text, same, plain_seconds, spec_seconds))
        return answers, stats
    finally:
        disable(target)


def _timed(seconds: list[float], call):
    start = time.perf_counter()
    result = call()
    seconds.append(time.perf_counter() - start)
    return result

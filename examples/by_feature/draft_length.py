"""How much is drafted: a constant K, a wanted acceptance rate, or (the default) what brings the most tokens per second.

python examples/by_feature/draft_length.py [TARGET DRAFT]
"""

import sys

import hf_specgen
from hf_specgen import demo

SCHEDULES = {
    "one token": {"num_assistant_tokens": 1},
    "eight tokens": {"num_assistant_tokens": 8},
    "target rate": {"num_assistant_tokens_schedule": {"name": "target-rate", "rate": 0.6, "maximum": 8}},
    "the same, as an object": {"num_assistant_tokens_schedule": hf_specgen.TargetRateLength(rate=0.6, maximum=8)},
    "goodput": {},
}

target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection")
print(f"{'rule':24}{'drafted':>8}{'accepted':>10}{'tokens per forward':>20}{'decode seconds':>16}")
for name, options in SCHEDULES.items():
    with hf_specgen.collect_stats() as stats:
        for prompt in demo.PROMPTS:
            inputs = tokenizer(prompt, return_tensors="pt")
            target.generate(**inputs, max_new_tokens=40, do_sample=False, **options)
    print(
        f"{name:24}{stats.drafted:>8}{stats.acceptance_rate or 0:>10.0%}{stats.tokens_per_target_forward:>20.2f}"
        f"{stats.decode_seconds:>16.2f}"
    )

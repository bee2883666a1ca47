"""The rules, the most decisive first."""

import operator

from ..lengths.planner import BLIND, REMEDY, WAITING
from . import figures
from .rule import Rule

LEVIATHAN = "Leviathan et al. 2023, arXiv 2211.17192"

RULES = (
    Rule(
        name="fallback",
        figure=figures.rows_without_drafts,
        speaks=operator.gt,
        threshold=0,
        source="by definition",
        seen=lambda stats, rows: (
            f"{rows} of {max(rows, len(stats.rows))} row(s) without drafts: {figures.reasons(stats)}."
        ),
        means="They were decoded at the speed of plain decoding.",
        do="Remove the cause: a shorter prompt or a draft with a longer context, a smaller or quantized draft where "
        "memory ran out.",
    ),
    Rule(
        name="costs not known",
        figure=lambda stats: int(stats.off_reason == BLIND),
        speaks=operator.gt,
        threshold=0,
        source="by definition",
        seen=lambda stats, _: f"the draft was not used: {WAITING}.",
        means="Equal seeds give equal ids with any neighbours, so no row may look at the clock or at the others.",
        do=f"To draft, {REMEDY}.",
    ),
    Rule(
        name="off",
        figure=lambda stats: int(stats.off_reason not in (None, BLIND)),
        speaks=operator.gt,
        threshold=0,
        source="by definition",
        seen=lambda stats, _: f"the draft was not used: {stats.off_reason}.",
        means="It was expected to cost more than it gives, or was switched off.",
        do='Use a smaller or quantized draft (`hf-specgen recommend`), or spec_source="lookup" for texts that repeat '
        "their prompt.",
    ),
    Rule(
        name="slower than plain",
        figure=lambda stats: stats.actual_speedup,
        speaks=operator.lt,
        threshold=0.97,
        source="the bound of `python benchmarks/never_slower.py TARGET`: 3 % are within its noise",
        seen=lambda _, speedup: f"after the prefill {speedup:.2f}× the speed of plain decoding.",
        means="Drafting cost more than it gave; the other lines say why.",
        do='Leave out num_assistant_tokens: num_assistant_tokens_schedule="goodput" drafts only where it pays.',
    ),
    Rule(
        name="draft too large",
        figure=figures.cost_over_acceptance,
        speaks=operator.ge,
        threshold=1,
        source=f"c / α; {LEVIATHAN}, Corollary 3.9",
        seen=lambda stats, _: (
            f"a draft forward takes {figures.cost_ratio(stats):.2f} of a target's, and of the judged tokens "
            f"{figures.alpha(stats):.0%} are accepted."
        ),
        means="Speculation can only win, whatever the number of drafted tokens, while that share is above that cost.",
        do="Use a smaller draft or a quantized one (`hf-specgen recommend`, `hf-specgen quantize`).",
    ),
    Rule(
        name="first token",
        figure=figures.first_acceptance,
        speaks=operator.lt,
        threshold=0.4,
        source="chosen here, below the 0.55 of SmolLM2-135M, of another family and vocabulary, as draft of "
        "Qwen2.5-Coder-1.5B (`python benchmarks/vocabularies.py TARGET DRAFT`: 2.1 tokens per forward at K = 4)",
        seen=lambda _, share: f"{share:.0%} of the first drafted tokens are accepted.",
        means="Even a draft of another family does better: this one does not read what the target reads.",
        do="See whether it is of the target's family, tuned for the same chat template, and has the same tokenizer "
        "(`hf-specgen check-pair`).",
    ),
    Rule(
        name="low acceptance",
        figure=figures.alpha,
        speaks=operator.lt,
        threshold=0.6,
        source=f"chosen here: at α = 0.6, no draft gives more than 1 / (1 - α) = 2.5 tokens per forward; {LEVIATHAN}, "
        "equation 1",
        seen=lambda _, share: f"{share:.0%} of the draft's judged tokens are accepted.",
        means="Much of the draft's work is thrown away.",
        do="Use a draft nearer to the target (same family, same tuning), or a lower num_assistant_tokens.",
    ),
    Rule(
        name="healthy acceptance",
        figure=figures.alpha,
        speaks=operator.ge,
        threshold=0.7,
        source=f"chosen here: from α = 0.7, four drafted tokens give 2.77 or more per forward; {LEVIATHAN}, equation 1",
        seen=lambda _, share: f"{share:.0%} of the draft's judged tokens are accepted.",
        means="The draft fits the target on these prompts.",
        do="Keep it: what is left to gain is in its cost and in how many tokens it drafts.",
    ),
    Rule(
        name="drafts too long",
        figure=figures.gain_over_price,
        speaks=operator.lt,
        threshold=1,
        source=f"gain / price, where E / (1 + c·k) stops rising; {LEVIATHAN}, Theorem 3.8",
        seen=lambda stats, _: (
            "drafted token {} is accepted in {:.0%} of its rounds, {:.2f} of what its forward costs.".format(
                *figures.least_paying(stats)
            )
        ),
        means="Acceptance has fallen so far at this position that drafting up to it loses time.",
        do="Draft fewer tokens: a lower num_assistant_tokens, or none given, so that their number adapts.",
    ),
    Rule(
        name="temperature",
        figure=lambda stats: stats.temperature,
        speaks=operator.gt,
        threshold=1.0,
        source="chosen here; Li et al. 2025, arXiv 2503.01840, Table 1: a draft model for Vicuna-13B makes it 1.92× as "
        "fast at temperature 0 and 1.60× at 1, and none is higher there",
        seen=lambda _, temperature: f"sampled at temperature {temperature:g}.",
        means="The flatter the distributions, the less they agree: gains shrink, and can turn into losses.",
        do="Sample at 1 or below if the task allows; else leave out num_assistant_tokens, so that drafting can stop "
        "(`hf-specgen bench --temperatures 0,1,1.3`).",
    ),
    Rule(
        name="batch",
        figure=figures.verify_over_step,
        speaks=operator.gt,
        threshold=1.5,
        source=f"chosen here; 1 in {LEVIATHAN}, section 3.3; 0.6 to 1.0 for one row (`python benchmarks/steps.py "
        "TARGET`), 1.2 for eight rows of two positions (`python benchmarks/batch.py TARGET DRAFT`)",
        seen=lambda _, ratio: f"a target forward takes {ratio:.2f} steps of one position.",
        means="It grows with rows × (drafted tokens + 1): arithmetic bounds it, not the reading of weights.",
        do="Decode fewer rows at once or draft fewer tokens; large batches leave little to gain.",
    ),
    Rule(
        name="short answers",
        figure=lambda stats: figures.prefill_share(stats, short=True),
        speaks=operator.ge,
        threshold=0.5,
        source="Amdahl 1967: whatever becomes of the rest, the whole call cannot become twice as fast",
        seen=lambda stats, share: (
            f"{share:.0%} of the time is prefill, for {figures.new_tokens(stats):.0f} new tokens a row."
        ),
        means="There is little decoding to speed up.",
        do='Expect no gain here; spec_source="lookup" has no draft that must read the prompt, too.',
    ),
    Rule(
        name="long prompts",
        figure=lambda stats: figures.prefill_share(stats, short=False),
        speaks=operator.ge,
        threshold=0.5,
        source="Amdahl 1967: whatever becomes of the rest, the whole call cannot become twice as fast",
        seen=lambda stats, share: (
            f"{share:.0%} of the time is prefill, for {figures.new_tokens(stats):.0f} new tokens a row."
        ),
        means="Both models read the prompts, and their caches hold them; only what comes after is speculative.",
        do="Keep what was read from call to call (`spec_session=SpecSession()`), or use a smaller draft or none "
        '(spec_source="lookup").',
    ),
    Rule(
        name="overhead",
        figure=figures.rest_share,
        speaks=operator.gt,
        threshold=0.05,
        source="chosen here, twice what `python benchmarks/batch.py TARGET DRAFT` gives: 454 ms a round of eight rows "
        "against 442 ms of forwards",
        seen=lambda _, share: f"{share:.0%} of the time after the prefill is spent outside the models' forwards.",
        means="Logits processors, stopping criteria, streamers and Python take it; very small models cannot avoid it.",
        do="Leave out or speed up custom processors, criteria and streamers.",
    ),
)

"""The figures that rules look at, beside those of `SpecStats`. None: not measured, or on too few rounds.

α is the share of the draft's judged tokens that stay, c the time of a draft forward in target steps (Leviathan et al.
2023, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192). Unlike accepted / drafted, α does
not depend on how many are drafted.
"""

from ..stats import RowStats, SpecStats

ROUNDS = 20
"""Rounds with drafts from which on acceptance is judged: its standard error is then at most 0.11."""
SHORT_ANSWER = 32
"""New tokens per row under which a large share of prefill is put down to the answer, not to the prompt."""


def drafts(stats: SpecStats) -> RowStats | None:
    """The rounds with tokens of the draft model, as one row: lookup says nothing of the draft."""
    rounds = zip(stats.origins, stats.history, strict=True)
    trace = [entry for source, entry in rounds if source == "draft" and entry[0]]
    return RowStats(trace=trace) if len(trace) >= ROUNDS else None


def first_acceptance(stats: SpecStats) -> float | None:
    """Of the first token of each draft."""
    seen = drafts(stats)
    return seen and seen.acceptance_by_position.unconditional[0]


def alpha(stats: SpecStats) -> float | None:
    """accepted / (accepted + rejected): what comes after a rejection is not judged."""
    seen = drafts(stats)
    return seen and seen.accepted / (seen.accepted + sum(a < d for d, a in seen.trace))


def draft_seconds(stats: SpecStats) -> float | None:
    """Of one forward of the draft after the prefill."""
    return stats.draft_seconds / stats.drafting_forwards if stats.drafting_forwards else None


def verify_seconds(stats: SpecStats) -> float | None:
    """Of one forward of the target after the prefill, whatever its width."""
    return stats.verify_seconds / stats.verify_forwards if stats.verify_forwards else None


def cost_ratio(stats: SpecStats) -> float | None:
    """c. Where no forward of one position was seen, in verifying ones: they take longer, so that c is at least this."""
    draft, step = draft_seconds(stats), stats.target_step_seconds or verify_seconds(stats)
    return draft / step if draft is not None and step else None


def cost_over_acceptance(stats: SpecStats) -> float | None:
    """c / α."""
    c, share = cost_ratio(stats), alpha(stats)
    if c is None or share is None:
        return None
    return c / share if share else float("inf")


def least_paying(stats: SpecStats) -> tuple[int, float, float] | None:
    """Of the draft's tokens from the second on, the one that pays least.

    E / (1 + c·k) rises with a further token as long as the share of rounds in which it stays is above the price of its
    forward: the tokens that decoding gives elsewhere in that time.

    Returns:
        Its place from 1, the share of its rounds in which it stays, and share / price.
    """
    draft, verify, speedup, seen = draft_seconds(stats), verify_seconds(stats), stats.theoretical_speedup, drafts(stats)
    if seen is None or not (draft and verify and speedup):
        return None
    price = draft / verify * speedup
    shares = seen.acceptance_by_position.unconditional
    often = [i for i in range(1, len(shares)) if sum(d > i for d, _ in seen.trace) >= ROUNDS]
    return min(((i + 1, shares[i], shares[i] / price) for i in often), key=lambda place: place[2], default=None)


def gain_over_price(stats: SpecStats) -> float | None:
    """Of the draft's token that pays least."""
    place = least_paying(stats)
    return place and place[2]


def verify_over_step(stats: SpecStats) -> float | None:
    """Target forwards, those over drafts among them, in steps of one position."""
    verify, step = verify_seconds(stats), stats.target_step_seconds
    return verify / step if verify is not None and step else None


def new_tokens(stats: SpecStats) -> float | None:
    """Per row."""
    return stats.emitted / len(stats.rows) if stats.rows else None


def prefill_share(stats: SpecStats, short: bool) -> float | None:
    """Of the whole time; only of calls with short answers, or only of others."""
    total, new = stats.prefill_seconds + stats.decode_seconds, new_tokens(stats)
    return stats.prefill_seconds / total if total and new is not None and short == (new < SHORT_ANSWER) else None


def rest_share(stats: SpecStats) -> float | None:
    """Of the time after the prefill, outside both models' forwards."""
    return stats.rest_seconds / stats.decode_seconds if stats.decode_seconds else None


def rows_without_drafts(stats: SpecStats) -> int:
    """From the start or from some point on; all, where the call has a reason and no row one of its own (a call that was
    decoded plainly has no rows, and counts as one)."""
    own = sum(row.fallback_reason is not None for row in stats.rows)
    return own or (max(1, len(stats.rows)) if stats.fallback_reason else 0)


def reasons(stats: SpecStats) -> str:
    """Why those rows: the first reason, and how many others there are."""
    given = (stats.fallback_reason, *(row.fallback_reason for row in stats.rows))
    first, *others = dict.fromkeys(reason for reason in given if reason)
    return f"{first} (and {len(others)} more)" if others else first

"""The test of a sampled law, in words and for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .law import AFTER, BONUS, COPYING, FIRST, LATER, Law, SetTest
from .ways import WAYS

SETS = {
    "draft": "tokens that the draft finds likelier",
    "left": "tokens that the draft finds less than half as likely",
    "best": "the target's most probable token",
    "rare": "tokens of less than one percent",
    "low": "ids below the median",
    "seen": "tokens of the text before",
    "copied": "the token that the text would repeat",
}
GROUPS = {
    FIRST: "first tokens",
    LATER: "tokens after the first",
    AFTER: "tokens after one that the draft finds likelier",
    BONUS: "tokens after a draft that was accepted whole",
    COPYING: "where the text repeats itself",
}


def faults(law: Law) -> list[str]:
    """One line for each."""
    unlikely = [told(law.worst, law)] if law.unlikely else []
    return [f"{law.strategy}: {fault}" for fault in (*law.problems, *unlikely)]


def told(test: SetTest, law: Law) -> str:
    group = GROUPS.get(test.group, f"all tokens with {test.group}")
    return (
        f"{SETS[test.set]}, {group}: {test.observed} of {test.draws} drawn, {test.expected:.1f} expected "
        f"(p = {test.p_value:.2g}, {test.adjusted:.2g} for {len(law.tests)} tests)"
    )


def summary(law: Law) -> list[str]:
    sees = ", ".join(f"{shift:.1%} across {SETS[name]}" for name, shift in law.visible_shifts.items())
    lines = [
        f"sampling  {law.strategy}, temperature {law.temperature:g}: {law.samples} continuations of "
        f"{len(law.contexts)} contexts ({law.accepted} of {law.drafted} drafted tokens accepted, {law.rejections} "
        f"rejections, {law.bonuses} bonus tokens, {law.copied} drafted tokens copied from the text): "
        f"p = {law.p_value:.2g} over {len(law.tests)} tests",
        f"  least likely: {told(law.worst, law)}",
        f"  ways: {'; '.join(way.name for way in WAYS)}",
        f"  seen with {law.power:.0%}: a rule that moves, of the probability, {sees}",
    ]
    lines += [f"  {line}" for line in limits(law)]
    return [*lines, f"  a lossless rule is blamed about once in {1 / law.level:,.0f} times"]


def limits(law: Law) -> list[str]:
    """Which wrong rules would have been seen here, and what is not known."""
    lines = []
    if law.unread is not None:
        lines.append(f"the draft's law is not known ({law.unread}): nor what a wrong rule would move")
    for shows, how in ((True, "would have been seen"), (False, "would NOT have been seen")):
        rules = [
            f"{rule.name} ({rule.moves:.1%}, visible from {rule.visible:.1%})"
            for rule in law.wrong_rules
            if rule.would_show == shows
        ]
        if rules:
            lines.append(f"{how}: {'; '.join(rules)}" + ("" if shows else ": more --samples, or another draft"))
    if law.strategy == "block":
        lines.append("not counted here: errors in the weights of blocks, which move less: thousands of --samples")
    if law.never:
        lines.append(f"never happened, and is not tested: {', '.join(law.never)}")
    return lines


def to_dict(law: Law) -> dict[str, Any]:
    found = asdict(law)
    for context in found["contexts"]:
        context["ids"] = len(context["ids"])  # the prompts are the user's own
    for rule, entry in zip(law.wrong_rules, found["wrong_rules"], strict=True):
        entry["would_show"] = rule.would_show
    derived = ("p_value", "passed", "visible_shifts", "never")
    return found | {name: getattr(law, name) for name in derived} | {"limits": limits(law)}

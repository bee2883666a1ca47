"""A certificate as a card tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..verifying.certificate import lengths_of
from ..verifying.greedy import SAME
from ..verifying.ways import Way
from .commands import block
from .parts import NEAR_TIES, Section, facts, table

if TYPE_CHECKING:
    from .measured import BenchRun

NOT_VERIFIED = (
    f"Not verified for this card. By construction the target's text does not depend on the draft ({NEAR_TIES}); "
    "`hf-specgen verify` checks it where you run it."
)
NOT_SAMPLED = "Sampling was not tested."
MEANING = {
    "LOSSLESS": "every greedy text is plain decoding's own, token by token",
    "LOSSLESS UP TO ROUNDING": "greedy texts part from plain decoding's at ties only, within twice the noise that "
    "plain decoding itself shows, and not more often than it does itself",
    "FAULT": "**the pair did not decode losslessly on that machine**",
}


def losslessness(certificate: dict[str, Any] | None, run: BenchRun | None) -> Section:
    """
    Args:
        run: the bench on the same card, whose texts may part from plain's where the verified ones do not.

    Raises:
        ValueError: the certificate lacks something.
    """
    if certificate is None:
        return Section("Losslessness", NOT_VERIFIED)
    try:
        return Section("Losslessness", "\n\n".join(filter(None, _parts(certificate, run))))
    except (KeyError, TypeError) as error:
        raise ValueError(f"The certificate is not whole ({error!r}): make it again.") from None


def _parts(told: dict[str, Any], run: BenchRun | None) -> list[str]:
    greedy, machine, settings = told["greedy"], told["machine"], told["settings"]
    texts, flips = greedy["texts"], greedy["flips"]
    same = sum(text["verdict"] == SAME for text in texts)
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    rows = [
        ("verdict", f"**{told['verdict']}**: {MEANING[told['verdict']]}"),
        (
            "greedy",
            f"{same} of {len(texts)} texts (of {told['prompts']['count']} {lengths_of(told['prompts'], settings)}; "
            "alone, in one batch, and one by default settings) are plain's own; "
            f"{greedy['accepted']} of {greedy['drafted']} drafted tokens accepted",
        ),
        *((f"noise of plain decoding, {how}", _noise(noise)) for how, noise in greedy["noise"].items()),
        (
            "tokens below the best one",
            "; ".join(f"{how} {counts['ours']} of {counts['tokens']}" for how, counts in flips["ways"].items())
            + f" (p-value {flips['p_value']:.2g} under plain decoding's own rate); "
            f"from {flips['visible']:.1%} on it would be a fault",
        ),
        ("where", f"{told['target']['dtype']} on {machine['device']}, {machine['threads']} threads, {versions}"),
        ("when", f"{told['date']}, {told['seconds']:.0f} s"),
    ]
    parts = [block([told["command"]] if told.get("command") else []), facts(rows)]
    parts += ["\n".join(f"- {fault}" for fault in told["faults"]), _partings(greedy["noise"], run)]
    return [*parts, *(_sampled(told["sampling"], settings["sampled"]) if told["sampling"] else [NOT_SAMPLED])]


def _sampled(laws: list[dict[str, Any]], settings: dict[str, Any]) -> list[str]:
    rows = [
        [
            law["strategy"],
            f"{law['temperature']:g}",
            str(law["samples"]),
            f"{law['accepted']} of {law['drafted']}",
            f"{law['p_value']:.2g}",
        ]
        for law in laws
    ]
    ways = "; ".join(Way(**way).name for way in settings["ways"])
    return [
        table(["sampling", "temperature", "continuations", "drafts accepted", "p-value"], rows),
        "The p-value is that of drawing such tokens under the target's own law, over all tests. "
        f"{settings['num_assistant_tokens']} tokens were drafted in a round, by a {settings['schedule']} schedule, in "
        f"these ways: {ways}. Other lengths of drafts, processors and settings of the models' own were not tested.",
        "\n".join(f"- {law['strategy']}: {line}" for law in laws for line in law["limits"]),
    ]


def _noise(noise: dict[str, Any]) -> str:
    return (
        f"up to {noise['largest']:.2g} logits; a token may be {noise['tolerance']:.2g} below the best one, which is "
        f"further ahead at {noise['decided']:.0%} of the positions"
    )


def _partings(noises: dict[str, Any], run: BenchRun | None) -> str:
    """What the bench's texts say to the verdict; empty where all of ours are plain's."""
    if run is None or not run.partings:
        return ""
    tolerance = max(noise["tolerance"] for noise in noises.values())
    lines = ["The bench above, with other prompts and lengths, has texts of ours that part from plain's:"]
    for part in run.partings:
        if part.gap is None:
            gap = "one of the two had ended"
        elif abs(part.gap) <= tolerance:
            gap = f"a gap of {part.gap:.2g} logits, which rounding explains (up to {tolerance:.2g})"
        else:
            gap = f"**a gap of {part.gap:.2g} logits, more than rounding explains here ({tolerance:.2g})**"
        lines.append(f"- {part.task} {part.prompt}, token {part.at}: {gap}")
    return lines[0] + "\n\n" + "\n".join(lines[1:])

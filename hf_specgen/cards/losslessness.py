"""A certificate as a card tells it."""

from __future__ import annotations

from typing import Any

from ..verifying.greedy import SAME
from ..verifying.ways import Way
from .commands import block
from .parts import Section, facts, table

NOT_VERIFIED = (
    "Not verified for this card. By construction the target's text does not depend on the draft; `hf-specgen verify` "
    "checks it where you run it."
)
NOT_SAMPLED = "Sampling was not tested."
MEANING = {
    "LOSSLESS": "every greedy text is plain decoding's own, token by token",
    "LOSSLESS UP TO ROUNDING": "greedy texts part from plain decoding's at ties only, within twice the noise that "
    "plain decoding itself shows",
    "FAULT": "**the pair did not decode losslessly on that machine**",
}


def losslessness(certificate: dict[str, Any] | None) -> Section:
    """
    Raises:
        ValueError: the certificate lacks something.
    """
    if certificate is None:
        return Section("Losslessness", NOT_VERIFIED)
    try:
        return Section("Losslessness", "\n\n".join(filter(None, _parts(certificate))))
    except (KeyError, TypeError) as error:
        raise ValueError(f"The certificate is not whole ({error!r}): make it again.") from None


def _parts(told: dict[str, Any]) -> list[str]:
    greedy, machine, settings = told["greedy"], told["machine"], told["settings"]
    texts, noise = greedy["texts"], greedy["noise"]
    same = sum(text["verdict"] == SAME for text in texts)
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    rows = [
        ("verdict", f"**{told['verdict']}**: {MEANING[told['verdict']]}"),
        (
            "greedy",
            f"{same} of {len(texts)} texts (of {told['prompts']['count']} prompts, up to {settings['max_new_tokens']} "
            "tokens) are plain's own; "
            f"{greedy['accepted']} of {greedy['drafted']} drafted tokens accepted",
        ),
        ("noise of plain decoding", f"up to {noise['largest']:.2g} logits between widths of a forward and batch sizes"),
        ("where", f"{told['target']['dtype']} on {machine['device']}, {machine['threads']} threads, {versions}"),
        ("when", f"{told['date']}, {told['seconds']:.0f} s"),
    ]
    parts = [block([told["command"]] if told.get("command") else []), facts(rows)]
    parts += ["\n".join(f"- {fault}" for fault in told["faults"])]
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

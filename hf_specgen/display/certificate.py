"""`Certificate` in a notebook: the verdict, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..verifying import telling
from ..verifying.certificate import FAULTY, LOSSLESS, ROUNDING
from ..verifying.law import LEVEL
from . import html
from .verdicts import BAD, GOOD

if TYPE_CHECKING:
    from ..verifying.certificate import Certificate

COLOURS = {LOSSLESS: GOOD, ROUNDING: GOOD, FAULTY: BAD}


def html_of(certificate: Certificate) -> str:
    colour = COLOURS[certificate.verdict].notebook
    where = f"{certificate.target['dtype']} on {certificate.machine['device']}, {certificate.seconds:.0f} s"
    faults = "".join(f"<div>{html.escape(fault)}</div>" for fault in certificate.faults)
    found = [html.verdict(certificate.verdict, colour, where), faults, _greedy(certificate)]
    found.append(_sampled(certificate) if certificate.laws else html.muted("sampling not tested (temperature 0)"))
    return html.block(*found)


def _greedy(certificate: Certificate) -> str:
    told = [f"Greedy: {certificate.accepted} of {certificate.drafted} drafted tokens accepted."]
    told += [
        f"Read another way ({how}), plain decoding's own scores move by up to {noise.largest:.2g}; a token may be "
        f"{noise.tolerance:.2g} below the best one, which is further ahead at {noise.decided:.0%} of the positions."
        for how, noise in certificate.noise.items()
    ]
    flips = certificate.flips
    told.append(f"{flips}; from {flips.visible:.1%} of our tokens on it would be a fault.")
    rows = [
        (
            f"prompt {text.prompt}, {html.escape(text.how)}",
            html.escape(text.verdict),
            str(text.tokens),
            "" if text.diverged_at is None else str(text.diverged_at),
            "" if text.gap is None else f"{text.gap:.3g}",
        )
        for text in certificate.texts
    ]
    return "".join(f"<div>{html.escape(one)}</div>" for one in told) + html.table(
        rows, ("text", "verdict", "tokens", "parts at token", "gap")
    )


def _sampled(certificate: Certificate) -> str:
    rows = [
        (
            html.escape(law.strategy),
            f"{law.temperature:g}",
            str(law.samples),
            f"{law.accepted} of {law.drafted}",
            f"{law.p_value:.2g}",
            "passed" if law.passed else "<b>fault</b>",
        )
        for law in certificate.laws
    ]
    head = ("sampling", "temperature", "samples", "accepted", "p", "")
    notes = [f"{law.strategy}: {line}" for law in certificate.laws for line in telling.limits(law)]
    notes.append(f"A lossless pair fails these tests about once in {1 / LEVEL:,.0f} times.")
    return html.table(rows, head) + "".join(f"<div>{html.muted(note)}</div>" for note in notes)

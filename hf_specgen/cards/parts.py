"""What all cards share: how metadata and sections become a file, the snippet, the limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

TAGS = ("speculative-decoding", "assisted-generation")
QUANTIZATION = "Quantization"
"""Heading of the section that `hf-specgen quantize` writes and `hf-specgen card` takes over."""

NEAR_TIES = "below float32: but for near ties"
"""What every promise of the same text is qualified by."""
DRAFTS_PART = f"A draft changes how fast a target's text comes, not what it says ({NEAR_TIES})."

QUANTIZED_LIMITS = (
    "Quantized weights do not survive `state_dict()` after a forward on a CPU, a move to another device, or a cast: "
    "load the draft where it is to run."
)


class Section(NamedTuple):
    heading: str
    text: str


def rendered(data: ModelCardData, title: str, summary: str, sections: Iterable[Section]) -> str:
    """The file: front matter, then Markdown."""
    parts = [f"---\n{data.to_yaml().strip()}\n---", f"# {title}", summary]
    parts += [f"## {heading}\n\n{text.strip()}" for heading, text in sections]
    return "\n\n".join(parts) + "\n"


def section_of(card: str, heading: str) -> Section | None:
    """A section of a card that was rendered here, without those below it."""
    _, found, rest = card.partition(f"\n## {heading}\n")
    return Section(heading, rest.split("\n## ")[0].strip()) if found else None


THE_TARGET, THE_DRAFT = "TARGET", "DRAFT"
"""In a draft's snippet, for what its reader has under other names."""


def usage(target: str, draft: str, quantization: str | None = None) -> Section:
    """A snippet that runs where the two names are found."""
    loading = f'"{target}", "{draft}"' + (f', draft_quantization="{quantization}"' if quantization else "")
    meanings = {
        THE_TARGET: "the target's id or folder",
        THE_DRAFT: "this repository's id, or a folder with a copy of it",
    }
    notes = [f"`{name}` is {meanings[name]}." for name in (target, draft) if name in meanings]
    notes.append("`pair.target.generate()` speculates, too, with every argument that it has without a draft.")
    return Section(
        "How to use",
        f"""With hf-specgen installed (`pip install .` in a clone of it):

```python
import hf_specgen

pair = hf_specgen.load_pair({loading})
inputs = pair.tokenizer("def fibonacci(n):", return_tensors="pt")
out = pair.generate(**inputs, max_new_tokens=100, return_dict_in_generate=True)
print(pair.tokenizer.decode(out.sequences[0], skip_special_tokens=True))
print(out.spec_stats)
```

{" ".join(notes)}""",
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown; figures to the right of a first column of words."""
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Markdown: names and what is so named."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])

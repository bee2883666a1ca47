"""Arguments and options that several commands have: one name, one metavar and one help text each.

Annotated types for a command's signature; the default is the command's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "folder, GGUF file or Hub id"
PROMPTS = ".txt (one per line), .json, .jsonl, or Spec-Bench's file"


Target = Annotated[str, typer.Argument(metavar="TARGET", help=f"The target model: {MODEL}.", show_default=False)]
Draft = Annotated[str, typer.Argument(metavar="DRAFT", help=f"The draft model: {MODEL}.", show_default=False)]
MaybeDraft = Annotated[
    str | None,
    typer.Argument(
        metavar="DRAFT",
        help=f"The draft model: {MODEL}. Without one, drafts are looked up in the text itself.",
        show_default=False,
    ),
]

Dtype = Annotated[str, typer.Option("--dtype", metavar="NAME", help="auto, bfloat16, float16 or float32.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Like cpu or cuda:1.", show_default="where they fit")
]
DraftQuantization = Annotated[
    str | None,
    typer.Option(
        "--draft-quantization",
        metavar="NAME",
        help="Load the draft so: nf4, fp4, int8, torchao-int8, int4; awq or gguf, if its files are so.",
        show_default="as its files are",
    ),
]

Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help=f"Your own prompts: {PROMPTS}.", show_default="prompts of ours"),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Prompts to take, spread evenly over them.")]
Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        metavar="NAMES",
        help="Of code, qa, math, writing, translation, summarization, json, sql, code-editing; or of --prompts.",
        show_default="all",
    ),
]

MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", metavar="N", min=1, help="Tokens per answer, at most.")]
K = Annotated[
    int | None,
    typer.Option(
        "--num-assistant-tokens",
        "-k",
        metavar="K",
        min=1,
        help="Draft tokens per round.",
        show_default="as many as pay",
    ),
]
FixedK = Annotated[
    int, typer.Option("--num-assistant-tokens", "-k", metavar="K", min=1, help="Draft tokens per round.")
]
Temperature = Annotated[float, typer.Option("--temperature", metavar="T", min=0.0, help="Of sampling; 0 is greedy.")]
Temperatures = Annotated[str, typer.Option("--temperatures", metavar="LIST", help="Of sampling; 0 is greedy.")]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Acceptance rule: rejection, block or coupled.",
        show_default="rejection; coupled if sampled",
    ),
]
Strategies = Annotated[
    str, typer.Option("--strategies", metavar="NAMES", help="Acceptance rules: rejection, block, coupled.")
]
BatchSizes = Annotated[str, typer.Option("--batch-sizes", metavar="LIST", help="Prompts of a task decoded together.")]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Interleaved repetitions.")]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, help="Of sampling.", show_default="a new one each time"),
]
FixedSeed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of sampling.")]

SpecConfig = Annotated[
    Path | None,
    typer.Option("--spec-config", metavar="FOLDER", help="What hf-specgen tune has written.", show_default=False),
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Of sampling; 1 leaves all tokens.", show_default="the target's own"),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k", metavar="N", min=0, help="Of sampling; 0 leaves all tokens.", show_default="the target's own"
    ),
]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System prompt.", show_default=False)]
Show = Annotated[bool, typer.Option("--show", help="Colour each token by where it came from.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print all statistics at the end.")]
AdviceToo = Annotated[bool, typer.Option("--advice", help="Say why the speed-up is what it is, and what to change.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

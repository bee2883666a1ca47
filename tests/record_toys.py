"""Records of calls that nobody made."""

from hf_specgen.benchmarking.record import Cell, Record


def record(contender="plain", *, repeat=0, task="code", prompt=0, tokens=11, seconds=1.0, **figures):
    """11 tokens in a second; `figures` are fields of Cell or Record."""
    cell = {name: figures.pop(name) for name in ("temperature", "batch", "context", "k", "strategy") if name in figures}
    if figures.get("error"):
        tokens, seconds = 0, None
    return Record(Cell(contender, task, prompt, **cell), repeat, new_tokens=tokens, seconds=seconds, **figures)

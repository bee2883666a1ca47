"""The exit codes of all commands: what they are, and what 0 and 1 mean in each."""

DONE, NO, FAILED, INTERRUPTED, NOBODY_READS = 0, 1, 2, 130, 141

CODES = {
    DONE: "done, and the answer is yes",
    NO: "done, but the answer is no: a refused pair, a fault, no room …",
    FAILED: "not done: wrong input, a missing package, a full disk …",
    INTERRUPTED: "ended by Ctrl-C; nothing is left half-written",
    NOBODY_READS: "whatever read the output has gone",
}

ANSWERS = {
    "demo": ("the same ids as plain decoding", "other ids"),
    "recommend": ("there are drafts", "there are none"),
    "check-pair": ("usable", "refused"),
    "plan": ("it fits", "it does not, or only with a part of the target offloaded"),
    "quantize": ("written", "not good enough, and nothing is left of it"),
    "generate": ("the text has ended", None),
    "chat": ("the chat has ended", None),
    "bench": ("measured", "some calls failed"),
    "tune": ("written", None),
    "cost": ("computed", None),
    "verify": ("lossless, ties included", "a fault"),
    "card": ("written", "written, and the certificate says FAULT"),
    "env": ("hf-specgen can run", "a package that it needs cannot be imported"),
}
"""By command: what 0 means, and what 1 means where it is used."""


def of_command(name: str) -> str:
    """For the end of its help."""
    yes, no = ANSWERS[name]
    codes = {DONE: yes, NO: no, FAILED: "could not be done", INTERRUPTED: "Ctrl-C"}
    return "Exit code: " + ", ".join(f"{code} {meaning}" for code, meaning in codes.items() if meaning) + "."


def table() -> str:
    """All of them, in Markdown."""
    rows = (f"| {code} | {meaning} |" for code, meaning in CODES.items())
    return "\n".join(["| exit code | |", "|---|---|", *rows])

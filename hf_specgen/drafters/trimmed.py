"""A draft that computes logits for a part of its tokens only: `draft_vocab_size` (cf. FR-Spec, arXiv 2502.14856).

The output layer is a large part of a small draft's step where the vocabulary is large, and most of its rows are hardly
ever wanted. q is zero for the others, so that any acceptance rule stays exact. In the order in which BPE learned them,
frequent tokens come first: so N tokens are the first N, of which no copy is needed.
"""

from collections.abc import Iterable, Sequence

import torch

from .. import compat
from ..cache import probe, products
from ..cache.reader import device_of, read_prompt
from ..errors import SpecUnsupportedError

WAY_OUT = "Leave out draft_vocab_size, or use another draft."


class Trimmed:
    """The tokens that a draft can propose in one call: those given, and for each row those of its own prompt.

    Args:
        model: the draft. It is never changed: a shallow copy with another output layer computes in its place.
        first: ids below this one are known to all rows.
        others: more ids, from `first` on, that are.
    """

    def __init__(self, model, first: int, others: Iterable[int]):
        self.model, self.first = model, first
        self.others = sorted(others)
        self.rows = model.get_output_embeddings().out_features
        self.more = torch.empty(0, dtype=torch.long)  # ids from `first` on that logits are computed for
        self.barred: torch.Tensor | None = None  # bool [rows of the batch, more]: brought by other rows' prompts only
        self._asked: list[int] = []  # the rows of the last `expand`
        self._bars: torch.Tensor | None = None  # what is barred to them

    @classmethod
    def of(cls, model, size: int | Sequence[int], ends: Iterable[int] = ()) -> "Trimmed | None":
        """What `draft_vocab_size` asks for; None where that is the whole vocabulary.

        Args:
            size: how many of the first ids; or which ids.
            ends: ids that end the text, in the draft's vocabulary. They are kept, and the special ids in the draft's
                configs; with a number, all from such an id in the upper half on: tokens that were added to the others.

        Raises:
            SpecUnsupportedError: an id that the draft does not have, or a draft that cannot be trimmed.
        """
        head = model.get_output_embeddings()
        rows = getattr(head, "out_features", None) or compat.text_config(model).vocab_size
        special = {i for i in (*ends, *special_ids(model)) if 0 <= i < rows}
        if isinstance(size, int):
            if size < 1:
                raise SpecUnsupportedError(f"draft_vocab_size={size}: pass how many tokens to keep, at least 1.")
            added = min((i for i in special if i >= rows // 2), default=rows)
            first, others = size, {i for i in (*special, *range(added, rows)) if i >= size}
        else:
            wrong = next((i for i in size if not 0 <= i < rows), None)
            if wrong is not None or not len(size):
                what = "is empty" if wrong is None else f"holds the id {wrong}"
                raise SpecUnsupportedError(f"draft_vocab_size {what}; the draft knows ids 0 to {rows - 1}.")
            kept = sorted({*size, *special})
            first = next((n for n, id_ in enumerate(kept) if n != id_), len(kept))
            others = kept[first:]
        if first + len(others) >= rows:
            return None
        if why := why_whole(model, head) or fault_of(model):
            raise SpecUnsupportedError(f"draft_vocab_size: the draft {type(model).__name__} {why}. {WAY_OUT}")
        return cls(model, first, others)

    def begin(self, prompts: list[list[int]]):
        """The model to compute with, once the rows' prompts are known; in the draft's ids. Its logits are
        `[..., first + more]`."""
        known = set(self.others)
        brought = [{i for i in prompt if self.first <= i < self.rows} - known for prompt in prompts]
        together = sorted(set().union(*brought))
        self.more = torch.tensor(self.others + together, dtype=torch.long)
        self.barred = None
        if any(len(own) < len(together) for own in brought):
            own = [[True] * len(known) + [i in own for i in together] for own in brought]
            self.barred = ~torch.tensor(own)
        head = self.model.get_output_embeddings()
        self.part = with_head(self.model, PartOfHead(head, self.first, self.more.to(head.weight.device)))
        return self.part

    def now(self, rows: list, order: list[int]):
        """The model to compute with in this round, for rows at these places among those that `begin` was given."""
        return self.part

    def expand(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Logits `[len(rows), first + more]` of some of the rows that `begin` was given, by their place there, as
        logits of all tokens: -inf for those that were left out, and for what only other rows' prompts have brought."""
        more = logits[:, self.first :]
        self.more = self.more.to(logits.device)
        if self.barred is not None:
            if self._asked != rows:
                self._asked, self._bars = list(rows), self.barred[rows].to(logits.device)
            more = more.masked_fill(self._bars, float("-inf"))
        whole = logits.new_full((len(logits), self.rows), float("-inf"))
        whole[:, : self.first] = logits[:, : self.first]
        return whole.index_copy_(1, self.more, more)


class PartOfHead(torch.nn.Module):
    """Some rows of an output layer: the first, where they are, and copies of others."""

    def __init__(self, head: torch.nn.Linear, first: int, more: torch.Tensor):
        super().__init__()
        self.in_features, self.out_features = head.in_features, first + len(more)
        for name in ("weight", "bias"):
            whole = getattr(head, name)
            self.register_buffer(name, None if whole is None else whole.detach()[:first])
            self.register_buffer(f"more_{name}", None if whole is None else whole.detach()[more])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.flatten(0, -2)  # a CPU multiplies one position of three axes by weights without gradients slowly
        logits = products.few(rows, self.weight, self.bias)
        if len(self.more_weight):
            logits = torch.cat([logits, products.few(rows, self.more_weight, self.more_bias)], dim=-1)
        return logits.unflatten(0, hidden.shape[:-1])


def with_head(model, head: torch.nn.Module):
    """The model with another output layer: a copy of it and of the modules on the way there, which shares all else."""
    whole = inner = products.shallow(model)
    *way, last = _way_to(model, model.get_output_embeddings())
    for name in way:
        inner._modules[name] = products.shallow(inner._modules[name])
        inner = inner._modules[name]
    inner._modules[last] = head
    return whole


def _way_to(model, head) -> list[str]:
    """The names that lead from the model to its output layer; none where that is no module of it."""
    return next((name.split(".") for name, module in model.named_modules() if module is head), [])


def special_ids(model) -> set[int]:
    """Beginnings, ends and padding that the model's configs name."""
    found: set[int] = set()
    for config in (compat.text_config(model), model.generation_config):
        for role in ("bos", "eos", "pad"):
            ids = getattr(config, f"{role}_token_id", None)
            found.update([] if ids is None else torch.as_tensor(ids).flatten().tolist())
    return found


def why_whole(model, head) -> str | None:
    """Why a draft cannot be trimmed: its output layer cannot be taken apart, or a copy would be passed by."""
    why = None
    way = _way_to(model, head)
    passed = [model.get_submodule(".".join(way[:n])) for n in range(len(way) + 1)]
    replaced = [module for module in passed if "forward" in vars(module) or hasattr(module, "_hf_hook")]
    if model.config.is_encoder_decoder:
        why = "is an encoder-decoder"
    elif getattr(model, "_device_mesh", None) is not None:
        why = "is spread over several processes"
    elif type(head) is not torch.nn.Linear or type(head.weight) is not torch.nn.Parameter:
        kind = type(head if type(head) is not torch.nn.Linear else head.weight)
        why = f"has an output layer that is no plain torch.nn.Linear ({kind.__module__}.{kind.__name__})"
    elif not head.weight.is_floating_point():
        why = f"has an output layer of {head.weight.dtype}"
    elif not way:
        why = "keeps its output layer elsewhere"
    elif replaced:
        by = "accelerate (device_map)" if hasattr(replaced[0], "_hf_hook") else "a patch or torch.compile"
        why = f"has a forward of its own, set by {by}, on its {type(replaced[0]).__name__}"
    elif head._forward_hooks or head._forward_pre_hooks:
        why = "has hooks on its output layer, which the copy could not call"
    return why


def fault_of(model) -> str | None:
    """Why the logits of a copy are not the draft's own: tried once, on a few tokens; None if they are."""
    fault = probe.once("trimmed", model, lambda: _fault(model, model.get_output_embeddings()))
    return fault and f"cannot compute logits for some tokens only: {fault}"


@torch.no_grad()
def _fault(model, head: torch.nn.Linear) -> str | None:
    """Why the copy's logits are not the model's own; None if they are."""
    first, last = max(1, head.out_features // 2), head.out_features - 1
    kept = [*range(first), last]
    ids = torch.tensor([probe.some_text(model, 2)], device=device_of(model, torch.device("cpu")))
    try:
        whole = read_prompt(model, ids, None)[0][..., kept]
        part = with_head(model, PartOfHead(head, first, torch.tensor([last], device=head.weight.device)))
        logits = read_prompt(part, ids, None)[0]
    except Exception as error:
        return f"its forward raises {type(error).__name__} ({error})"
    if logits.shape != whole.shape:
        return f"its forward gives {logits.shape[-1]} logits for {whole.shape[-1]} tokens"
    far = probe.gap(logits, whole)
    return None if far < probe.tolerance(model) else f"its logits are {far:.2g} standard deviations off"

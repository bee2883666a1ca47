"""What tokens cost, from a throughput and a price. All formulas:

    price of a million tokens  = price_per_hour × gpus_per_replica / (3600 × tokens_per_second × utilization) × 10⁶
    replicas needed            = ⌈load / (tokens_per_second × utilization)⌉
    GPUs needed                = replicas needed × gpus_per_replica
    price of an hour           = GPUs needed × price_per_hour
    saving                     = 1 − price / plain decoding's price   (negative: dearer than plain)

A replica is one copy of target and draft on `gpus_per_replica` GPUs; `tokens_per_second` is one replica's. The price of
a million tokens is that of replicas which are busy for the share `utilization` of the time they are paid for. That the
last replica needed for a load may idle is in the price of an hour alone.

The throughput of a bench is Σ new tokens / Σ seconds of whole calls, over the calls that all compared contenders have
made. It holds for the batch size, temperature and context of those calls; nothing is extrapolated to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .record import Record
from .summary import PLAIN, Contender, Setting, call_of, labels, tokens_per_second

SMALLEST, LARGEST = 1e-15, 1e15
"""What is paid, wanted or measured lies between them: beyond, quotients leave what computers can count with."""


@dataclass(frozen=True)
class Terms:
    """What is paid, and what is wanted. Raises ValueError for values that cannot be.

    Attributes:
        price_per_hour: of one GPU, in any currency.
        gpus_per_replica: GPUs that the measured throughput took.
        utilization: share of the paid time in which tokens are made, above 0 and up to 1.
        load: tokens per second wanted in sum, None: no number of GPUs is asked for.
    """

    price_per_hour: float
    gpus_per_replica: int = 1
    utilization: float = 1.0
    load: float | None = None

    def __post_init__(self):
        _positive("price per hour", self.price_per_hour)
        _positive("number of GPUs per replica", self.gpus_per_replica)
        _positive("utilization", self.utilization)
        if self.utilization > 1:
            raise ValueError(f"The utilization is {self.utilization:g}: pass a share up to 1, such as 0.6 for 60 %.")
        if self.load is not None:
            _positive("load", self.load)


@dataclass(frozen=True)
class Cost:
    """One configuration. Prices are in the currency of `Terms`; what needs a load is None without one.

    Attributes:
        tokens_per_second: one replica's, while it is busy.
        million: price of a million tokens.
        hour: price of an hour of all GPUs needed.
        million_saving, hour_saving: share of plain's price.
    """

    name: str
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    million: float
    million_saving: float
    gpus: int | None
    hour: float | None
    hour_saving: float | None


@dataclass(frozen=True)
class Throughputs:
    """Tokens per second by name, plain first.

    Attributes:
        setting, tasks, calls: where they were taken, and over how many calls of each; None and empty where they were
            given by hand.
        left_out: name → why it could not be compared.
    """

    tokens_per_second: Mapping[str, float]
    setting: Setting | None = None
    tasks: tuple[str, ...] = ()
    calls: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


def by_hand(tokens_per_second: float, plain_tokens_per_second: float) -> Throughputs:
    return Throughputs({PLAIN: plain_tokens_per_second, "speculative": tokens_per_second})


def costs(throughput: Mapping[str, float], terms: Terms) -> list[Cost]:
    """One per entry of `throughput`: tokens per second by name, "plain" among them.

    Raises:
        ValueError: a throughput that cannot be.
    """
    for name, speed in throughput.items():
        _positive(f"throughput of {name}", speed)
    plain = _prices(throughput[PLAIN], terms)
    found = []
    for name, speed in throughput.items():
        million, gpus, hour = _prices(speed, terms)
        found.append(
            Cost(
                name=name,
                tokens_per_second=speed,
                tokens_per_second_per_gpu=speed / terms.gpus_per_replica,
                million=million,
                million_saving=1 - million / plain[0],
                gpus=gpus,
                hour=hour,
                hour_saving=None if hour is None else 1 - hour / plain[2],
            )
        )
    return found


def throughputs(records: Iterable[Record], tasks: Iterable[str] = (), batch: int | None = None) -> list[Throughputs]:
    """One per setting, of these tasks (default: all) and this batch size (default: each that there is).

    Raises:
        ValueError: there are no such records, or plain is not among them.
    """
    records, tasks = list(records), tuple(tasks)
    if not records:
        raise ValueError("There are no records: run hf-specgen bench first.")
    for name, wanted, known in (
        ("task", tasks, {record.cell.task for record in records}),
        ("batch", () if batch is None else (batch,), {record.cell.batch for record in records}),
    ):
        if foreign := [value for value in wanted if value not in known]:
            raise ValueError(f"No record is of {name} {foreign[0]}; there are {', '.join(map(str, sorted(known)))}.")
    chosen = [r for r in records if (not tasks or r.cell.task in tasks) and batch in (None, r.cell.batch)]
    names = labels(map(Contender.of, chosen))
    settings = sorted(set(map(Setting.of, chosen)))
    return [_throughputs(setting, [r for r in chosen if Setting.of(r) == setting], names) for setting in settings]


def _throughputs(setting: Setting, records: list[Record], names: dict[Contender, str]) -> Throughputs:
    calls: dict[str, dict[tuple, Record]] = {}
    for record in records:
        made = calls.setdefault(names[Contender.of(record)], {})
        if record.error is None and tokens_per_second(record):
            made[call_of(record)] = record
    plain = calls.pop(PLAIN, None)
    if not plain:
        raise ValueError(f"No call of plain decoding was measured at {setting}: nothing to compare with.")
    tasks = tuple(dict.fromkeys(record.cell.task for record in plain.values()))
    common, compared, left_out = set(plain), {PLAIN: plain}, {}
    for name, made in calls.items():
        shared = common & set(made)
        done = {plain[call].cell.task for call in shared}
        if lacking := [task for task in tasks if task not in done]:
            left_out[name] = f"no call in common with the others: {', '.join(lacking)}"
        else:
            common, compared[name] = shared, made
    speeds = {
        name: sum(made[call].new_tokens for call in common) / sum(made[call].seconds for call in common)
        for name, made in compared.items()
    }
    return Throughputs(speeds, setting, tasks, len(common), left_out)


def _prices(tokens_per_second: float, terms: Terms) -> tuple[float, int | None, float | None]:
    """(price of a million tokens, GPUs needed, price of an hour)."""
    busy = tokens_per_second * terms.utilization
    million = terms.price_per_hour * terms.gpus_per_replica / (3600 * busy) * 1e6
    if terms.load is None:
        return million, None, None
    replicas = max(1, math.ceil(round(terms.load / busy, 9)))  # rounded: 3.0000000000000004 replicas are 3
    gpus = replicas * terms.gpus_per_replica
    return million, gpus, gpus * terms.price_per_hour


def _positive(name: str, value: float) -> None:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"The {name} is {value:g}: pass a number above 0 ({SMALLEST:g} to {LARGEST:g}).")

"""Other packages, where they are installed: plain's ids, rounds that add up, models as they were."""

from dataclasses import replace

import pytest
from bench_toys import call
from toys import toy_tokenizer
from transformers import AutoModelForCausalLM

from hf_specgen.benchmarking import peers
from hf_specgen.benchmarking.calls import Models
from hf_specgen.benchmarking.contenders import Plain


@pytest.fixture
def loaded(pair):
    target, draft = (AutoModelForCausalLM.from_pretrained(pair / name).eval() for name in ("target", "draft"))
    return Models(target, draft, toy_tokenizer())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "package, name", [("flashspec", "FlashSpec"), ("economize", "Economize"), ("economize", "EconomizeDraft")]
)
def test_greedy_answers_are_plains(loaded, package, name):
    pytest.importorskip(package)
    contender = getattr(peers, name)(loaded)
    answer = contender.decode(call())
    assert answer.ids == Plain(loaded).decode(call()).ids
    assert answer.stats.rounds + answer.stats.accepted >= sum(map(len, answer.ids)) and answer.stats.drafted > 0
    assert len(contender.decode(call(temperature=1.0)).ids) == 2


def test_flashspec_refuses_what_it_would_ignore(loaded):
    with pytest.raises(ValueError, match="flashspec samples without"):
        peers.FlashSpec(loaded).decode(replace(call(temperature=1.0), top_p=0.9))

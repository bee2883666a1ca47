"""The package's prompts, prompts from files, and which calls they make."""

import json
from pathlib import Path

import pytest
from toys import toy_tokenizer

from hf_specgen.benchmarking.jobs import groups, mixture
from hf_specgen.benchmarking.names import entrants
from hf_specgen.benchmarking.settings import Settings
from hf_specgen.benchmarking.tasks import TASKS, chosen, filler, own_tasks, read_tasks, spread
from hf_specgen.demo import PAIR


def test_own_prompts():
    tasks = own_tasks()
    assert tuple(tasks) == TASKS
    texts = [text for prompts in tasks.values() for text in prompts]
    assert all(6 <= len(prompts) <= 10 for prompts in tasks.values())
    assert len(set(texts)) == len(texts) and all(isinstance(text, str) for text in texts)
    for text in tasks["summarization"]:
        assert 250 <= len(text.split("\n\n", 1)[1].split()) <= 500
    for text in tasks["code-editing"]:
        assert 20 <= len(text.split("```")[1].strip().splitlines()) - 1 <= 40


def written(folder: Path, name: str, entries: list) -> Path:
    path = folder / name
    lines = [json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) if name.endswith(".jsonl") else json.dumps(entries))
    return path


def test_spec_bench_categories_become_sub_tasks(tmp_path):
    entries = [
        {"category": "coding", "turns": ["a", "b"]},
        {"category": "writing", "turns": ["c"]},
        {"category": "math_reasoning", "turns": ["d"]},
        {"category": "rag", "turns": ["e"]},
    ]
    tasks = read_tasks(written(tmp_path, "spec.jsonl", entries))
    assert tasks == {"multi-turn": ["a", "c"], "math": ["d"], "rag": ["e"]}


def test_own_names_of_tasks(tmp_path):
    entries = [{"prompt": "a", "category": "writing"}, {"prompt": "b", "task": "mail"}, "c"]
    assert read_tasks(written(tmp_path, "mine.json", entries)) == {"writing": ["a"], "mail": ["b"], "mine": ["c"]}
    (tmp_path / "lines.txt").write_text("a\n\nb\n")
    assert read_tasks(tmp_path / "lines.txt") == {"lines": ["a", "b"]}
    with pytest.raises(ValueError, match="task is 3; it must be a name"):
        read_tasks(written(tmp_path, "mine.json", [{"prompt": "a", "task": 3}]))


def test_chosen_and_spread():
    tasks = {"one": ["a"], "two": ["b"]}
    assert list(chosen(tasks, ("two", "one"))) == ["two", "one"] and chosen(tasks, None) is tasks
    with pytest.raises(ValueError, match="'three' is no task here"):
        chosen(tasks, ("three",))
    assert spread(8, 2) == [0, 4] and spread(2, 5) == [0, 1]


def jobs(path, **settings):
    return groups(read_tasks(path / "prompts.jsonl"), Settings(**settings), toy_tokenizer())


def test_groups_share_a_setting_and_rows_are_consecutive_prompts(pair):
    found = jobs(pair, per_task=3, batch_sizes=(1, 2), temperatures=(0.0, 0.7))
    assert [(g[0].batch, g[0].temperature) for g in found] == [(1, 0.0), (1, 0.7), (2, 0.0), (2, 0.7)]
    single = {(job.task, job.prompt): job.rows[0] for job in jobs(pair, per_task=9)[0]}
    assert [(job.task, job.prompt) for job in found[0]] == [("one", 0), ("one", 1), ("one", 2), ("two", 0), ("two", 1)]
    assert [(job.task, job.prompt) for job in found[2]] == [("one", 0), ("one", 2), ("two", 0)]
    assert found[2][1].rows == (single["one", 2], single["one", 3])
    assert found[2][2].rows == (single["two", 0], single["two", 1])
    assert len({job.seed for group in found for job in group}) == sum(map(len, found))


def test_concurrency_mixes_the_tasks(pair):
    ((job,),) = jobs(pair, concurrency=5)
    assert (job.task, job.batch, len(job.rows)) == ("mixed", 5, 5)
    assert mixture({"one": ["a", "b"], "two": ["c"]}, 5) == ["a", "c", "b", "c", "a"]


def test_greedily_one_strategy_stands_for_all(pair):
    greedy, sampled = jobs(pair, temperatures=(0.0, 1.0))
    asked = entrants(["plain", "ours"], (), ("block", "rejection"), True)
    assert [e.strategy for e in greedy[0].entrants(asked)] == [None, "block"]
    assert [e.strategy for e in sampled[0].entrants(asked)] == [None, "block", "rejection"]


def test_contexts_are_filled_with_other_text():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    (_,), (filled,) = groups({"one": ["def close(self):"]}, Settings(contexts=(0, 300)), tokenizer)
    assert abs(len(filled.rows[0]) - 300) <= 5 and filled.context == 300
    text = tokenizer.decode(filled.rows[0])
    assert text.endswith("def close(self):") and filler().startswith(text[:500])
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ((filled,),) = groups({"one": [messages]}, Settings(contexts=(200,)), tokenizer)
    assert tokenizer.decode(filled.rows[0]).startswith("user: a\nassistant: b\nuser: ")
    assert tokenizer.decode(filled.rows[0]).endswith("\n\nc\n")


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"temperatures": (-0.1,)}, "temperatures=-0.1"),
        ({"temperatures": ()}, "temperatures is empty"),
        ({"temperatures": (float("nan"),)}, "temperatures=nan"),
        ({"ks": (0,)}, "ks=0"),
        ({"batch_sizes": (2, 2)}, "batch_sizes holds something twice"),
        ({"contexts": (-1,)}, "contexts=-1"),
        ({"strategies": ("typical",)}, "choose among rejection, block, coupled"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"max_new_tokens": 1}, "max_new_tokens=1"),
        ({"repeats": 0}, "repeats=0"),
        ({"against": "plain"}, "against='plain': pass a list"),
        ({"concurrency": 4, "batch_sizes": (2,)}, "pass one of them"),
    ],
)
def test_wrong_settings(wrong, said):
    with pytest.raises(ValueError) as error:
        Settings(**wrong)
    assert said in str(error.value)

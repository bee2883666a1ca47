"""hf-specgen generate: the target's own text, how it is shown, and what is refused before anything is loaded."""

import io
import json
import os
import re
import select
import sys

import pytest
from bench_toys import save_pair
from toys import plain, spec
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hf_specgen.cli import app
from hf_specgen.cli.streaming import Stream
from hf_specgen.cli.terminal import PipedConsole
from hf_specgen.decoding.pieces import pieces_of

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }} {{ m['content'] }} {% endfor %}"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("generate"))


@pytest.fixture(scope="module")
def chatty(pair, tmp_path_factory):
    """The same target, with a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    AutoModelForCausalLM.from_pretrained(pair / "target").save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def run(*arguments, prompt="the cab", stdin=None):
    asked = ["--prompt", prompt] if prompt is not None else []
    return CliRunner().invoke(app, ["generate", *map(str, arguments), *asked], input=stdin)


def expected(folder, text, new=12):
    """(text, ids) of plain greedy decoding."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    new_ids = plain(model, input_ids=ids, max_new_tokens=new, do_sample=False)[0, ids.shape[1] :].tolist()
    return tokenizer.decode(new_ids, skip_special_tokens=True), new_ids


def decoded(pair, new, k):
    """(piece, source) of each token of what our `generate` says."""
    models = (AutoModelForCausalLM.from_pretrained(pair / name) for name in ("target", "draft"))
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    inputs = tokenizer("the cab", return_tensors="pt")
    out = spec(*models, **inputs, max_new_tokens=new, num_assistant_tokens=k)
    prompt = inputs["input_ids"][0].tolist()
    pieces = pieces_of(tokenizer, out.sequences[0, len(prompt) :].tolist(), prompt)
    return pieces, out.spec_stats.rows[0].token_sources


@pytest.mark.parametrize("draft", [True, False])
def test_stdout_is_plain_decodings_text_and_nothing_else(pair, draft):
    models = [pair / "target", *([pair / "draft"] if draft else [])]
    result = run(*models, "--max-new-tokens", 12)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == expected(pair / "target", "the cab")[0] + "\n"
    assert result.stderr.startswith("12 tokens in ") and len(result.stderr.splitlines()) == 1


def test_json_is_one_object_with_ids_sources_and_figures(pair):
    result = run(pair / "target", pair / "draft", "--max-new-tokens", 12, "-k", 3, "--json")
    (line,) = result.stdout.splitlines()
    answer = json.loads(line)
    assert result.exit_code == 0 and result.stderr == ""
    assert (answer["text"], answer["ids"]) == expected(pair / "target", "the cab")
    accepted = answer["stats"]["accepted"]
    assert 0 < accepted <= answer["stats"]["drafted"] and answer["stats"]["by_source"].keys() == {"draft"}
    assert len(answer["sources"]) == 12 and answer["sources"].count("draft") in (accepted, accepted - 1)


def test_the_prompt_from_a_file_and_from_a_pipe(pair, tmp_path):
    (tmp_path / "prompt").write_text("the cab")
    wanted = expected(pair / "target", "the cab")[0] + "\n"
    options = pair / "target", "--max-new-tokens", 12
    assert run(*options, "--file", tmp_path / "prompt", prompt=None).stdout == wanted
    assert run(*options, prompt=None, stdin="the cab").stdout == wanted


@pytest.mark.parametrize(
    ("options", "read"),
    [([], "u the cab "), (["--system", "sing"], "s sing u the cab "), (["--raw"], "the cab")],
    ids=["template", "system", "raw"],
)
def test_the_chat_template_is_used_where_there_is_one(chatty, options, read):
    answer = json.loads(run(chatty, "--max-new-tokens", 12, "--json", *options).stdout)
    assert (answer["text"], answer["ids"]) == expected(chatty, read)


def test_a_seed_repeats_a_sampled_text_and_is_told_where_none_was_given(pair):
    def answer(*options):
        sampled = "--temperature", 1.5, "--top-p", 0.95, "--top-k", 20, "--max-new-tokens", 12, "--json"
        return json.loads(run(pair / "target", pair / "draft", *sampled, *options).stdout)

    first = answer()
    assert answer("--seed", first["seed"])["ids"] == first["ids"]
    assert len({tuple(answer("--seed", seed)["ids"]) for seed in range(4)}) > 1


def test_tokens_are_coloured_by_source_on_a_terminal(pair, monkeypatch):
    console = PipedConsole(color_system="standard", force_terminal=True, width=80, file=io.StringIO())
    monkeypatch.setattr("hf_specgen.cli.provenance.console", lambda: console)
    result = run(pair / "target", pair / "draft", "--max-new-tokens", 12, "-k", 3, "--show")
    legend = "\x1b[32mdraft model\x1b[0m  \x1b[36mtext lookup\x1b[0m  \x1b[1;33mtarget itself\x1b[0m\n"
    assert console.file.getvalue() == legend
    texts, sources = decoded(pair, new=12, k=3)
    colours = ["32" if source == "draft" else "1;33" for source in sources]
    found = re.findall(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", result.stdout, re.DOTALL)
    assert found == [(colour, text) for colour, text in zip(colours, texts, strict=True) if text]
    assert {*colours} == {"32", "1;33"}


@pytest.mark.parametrize("options", [{}, {"color_system": "standard", "force_terminal": True, "no_color": True}])
def test_without_colours_show_says_so_and_the_text_is_plain(pair, monkeypatch, options):
    monkeypatch.setattr("hf_specgen.cli.provenance.console", lambda: PipedConsole(file=io.StringIO(), **options))
    result = run(pair / "target", "--max-new-tokens", 4, "--show")
    assert result.exit_code == 0 and "\x1b" not in result.stdout
    assert result.stderr.startswith("generate: --show needs a terminal with colours")


def test_through_a_pipe_text_comes_as_it_is_decoded_and_all_of_it_before_the_figures(pair, monkeypatch):
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdout", os.fdopen(write, "w"))
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(write), "w", buffering=1))
    put, come = Stream.put_token, []

    def noted(self, row, token, source):
        put(self, row, token, source)
        come.append(os.read(read, 4096).decode() if select.select([read], [], [], 0)[0] else "")

    monkeypatch.setattr(Stream, "put_token", noted)
    with pytest.raises(SystemExit) as ended:
        options = "--max-new-tokens", "12", "-k", "3", "--prompt", "the cab"
        app(["generate", str(pair / "target"), str(pair / "draft"), *options])
    sys.stdout.close()
    sys.stderr.close()
    with os.fdopen(read) as rest:
        assert ended.value.code == 0 and rest.read().startswith("\n12 tokens in ")
    assert come == decoded(pair, new=12, k=3)[0]


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_statistics_and_advice_go_to_stderr(pair, as_json):
    result = run(pair / "target", pair / "draft", "--max-new-tokens", 12, "-k", 3, "--stats", "--advice", *as_json)
    assert "tokens per forward" in result.stderr and "tokens per forward" not in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_what_cannot_be_speculated_is_decoded_plainly_and_told(pair, monkeypatch):
    from hf_specgen.errors import SpecUnsupportedError

    def refuse(*_):
        raise SpecUnsupportedError("no way back")

    monkeypatch.setattr("hf_specgen.api.check_model", refuse)
    result = run(pair / "target", "--max-new-tokens", 12)
    assert result.exit_code == 0 and result.stdout == expected(pair / "target", "the cab")[0] + "\n"
    warned, told = result.stderr.splitlines()
    assert warned == "generate: Decoding without the draft: no way back"
    assert told.startswith("12 tokens in ") and told.endswith("; without drafts: no way back")
    sampled = [
        run(pair / "target", "--max-new-tokens", 12, "--temperature", 1.5, "--seed", seed).stdout for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2], "the seed is that of plain decoding, too"


def test_a_draft_that_waits_is_told_in_one_line(pair):
    from hf_specgen.decoding import call

    call._tell_waiting.cache_clear()
    options = "--max-new-tokens", 12, "--temperature", 1.0, "--strategy", "rejection", "--seed", 0
    (told,) = run(pair / "target", pair / "draft", *options).stderr.splitlines()
    assert " tokens in " in told and "; without drafts: sampled rows are planned apart" in told


def test_a_text_longer_than_the_context_ends_there(pair):
    result = run(pair / "target", "--max-new-tokens", 5000, "--json", prompt="a" * 500)
    assert json.loads(result.stdout)["prompt_tokens"] == 500 and len(json.loads(result.stdout)["ids"]) <= 12
    result = run(pair / "target", prompt="a" * 512)
    assert (
        result.exit_code == 2
        and result.stderr == "generate: The text of 512 tokens fills the target's 512 positions.\n"
    )


def test_an_interruption_leaves_the_text_so_far(pair, monkeypatch):
    put = Stream.put_token

    def interrupted(self, row, token, source):
        if len(self.ids) == 5:
            raise KeyboardInterrupt
        put(self, row, token, source)

    monkeypatch.setattr(Stream, "put_token", interrupted)
    result = run(pair / "target", "--max-new-tokens", 12)
    assert result.exit_code == 130 and result.stderr == "generate: interrupted\n"
    assert result.stdout == expected(pair / "target", "the cab", 5)[0] + "\n"
    result = run(pair / "target", "--json")
    assert result.exit_code == 130 and result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", "a", "--file", "b"], "pass one of them"),
        (["--prompt", " \n"], "The prompt is empty."),
        ([], "The prompt is empty."),
        (["--file", "{}/target/model.safetensors"], "model.safetensors is not UTF-8 text"),
        (["--file", "{}/gone.txt"], "gone.txt"),
        (["--file", "{}"], "Is a directory"),
        (["--prompt", "a", "--system", "b"], "--system needs a chat template"),
        (["--prompt", "a", "--raw", "--system", "b"], "which --raw leaves out"),
        (["--prompt", "a", "--temperature", "inf"], "--temperature inf: pass a number"),
        (["--prompt", "a", "--top-p", "0"], "--top-p 0.0: pass a share"),
        (["--prompt", "a", "--top-p", "0.9"], "--top-p 0.9 is of sampling: pass --temperature T above 0"),
        (["--prompt", "a", "--top-k", "0"], "--top-k 0 is of sampling: pass --temperature T above 0"),
        (["--prompt", "a", "--strategy", "greedy"], "choose one of rejection, block, coupled"),
        (["--prompt", "a", "--spec-config", "{}/gone"], "gone"),
        (["--prompt", "a", "--device", "cuda:99"], "is not on this machine"),
        (["--prompt", "a", "--dtype", "float7"], "dtype='float7' is none"),
        (["--prompt", "a", "--draft-quantization", "nf4"], "--draft-quantization is of a draft"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(pair, monkeypatch, arguments, said):
    monkeypatch.setattr("hf_specgen.cli.writer.load", None)
    result = run(pair / "target", *(argument.format(pair) for argument in arguments), prompt=None, stdin="")
    assert result.exit_code == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("generate: ") and said in result.stderr


def test_on_a_terminal_a_missing_prompt_is_not_waited_for(pair, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    from hf_specgen.cli import generate

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(ValueError, match="There is no prompt"):
        generate._prompt(None, None)

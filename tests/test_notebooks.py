"""The committed notebooks are from one run each, from top to bottom, and show what a reader should see.

`make notebooks` runs all but the real pair's anew; here nothing is run.
"""

import ast
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
WANTED = {
    "quick_start",
    "choosing_a_pair",
    "temperature_prompts_and_draft_length",
    "batches",
    "quantized_drafts",
    "real_pair",
}
PATHS = re.compile(r"(?<![\w<])/(root|home|tmp|Users|work|opt|usr)/")
MOST_BYTES = 500_000


def code_of(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs_of(path: Path) -> list[dict]:
    return [output for cell in code_of(json.loads(path.read_text())) for output in cell["outputs"]]


def test_all_are_there():
    assert {path.stem for path in NOTEBOOKS} == WANTED


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_it_was_run_from_top_to_bottom(self, path):
        cells = code_of(json.loads(path.read_text()))
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))

    def test_nothing_failed_and_nobody_was_warned(self, path):
        for output in outputs_of(path):
            assert output["output_type"] != "error", output.get("evalue")
            assert output.get("name") != "stderr", output.get("text")

    def test_it_shows_rich_output(self, path):
        kinds = {kind for output in outputs_of(path) for kind in output.get("data", {})}
        assert kinds & {"text/html", "image/png"}

    def test_it_says_nothing_of_somebodys_machine(self, path):
        shown = [{k: v for k, v in output.get("data", {}).items() if k != "image/png"} for output in outputs_of(path)]
        shown += [output.get("text") for output in outputs_of(path)]
        assert not PATHS.search(json.dumps(shown))
        assert not any("execution" in cell["metadata"] for cell in code_of(json.loads(path.read_text()))), "times"

    def test_it_is_small_enough_to_be_reviewed(self, path):
        assert path.stat().st_size < MOST_BYTES


def test_ids_are_plain_decodings_own_wherever_they_were_compared():
    """Greedy decoding in float32, as the notebooks say themselves."""
    for path in NOTEBOOKS:
        shown = json.dumps(outputs_of(path))
        assert "OTHER IDS" not in shown and "ids: False" not in shown and "batch: False" not in shown
        assert "FAULT" not in shown


def test_the_measured_table_is_that_of_the_documentation():
    """quantized_drafts plots it; the figures are written down in docs/pairs.md."""
    cells = code_of(json.loads((NOTEBOOKS[0].parent / "quantized_drafts.ipynb").read_text(encoding="utf-8")))
    (source,) = ("".join(cell["source"]) for cell in cells if "MEASURED = {" in "".join(cell["source"]))
    told = ast.literal_eval(source[source.index("{") : source.index("}") + 1])
    rows = re.findall(
        r"^\| ([^|]+?) \| (\d+) MB \| (\d+) ms \| [^|]+ \| ([\d.]+)×, ([\d.]+)× \|",
        (NOTEBOOKS[0].parents[1] / "docs" / "pairs.md").read_text(encoding="utf-8"),
        re.M,
    )
    measured = {name: tuple(map(float, figures)) for name, *figures in rows}
    assert len(told) > 3 and told == {name: measured[name] for name in told}


def test_a_difference_in_the_real_pair_is_not_explained_before_it_is_verified():
    cells = code_of(json.loads((NOTEBOOKS[0].parent / "real_pair.ipynb").read_text(encoding="utf-8")))
    assert "near tie" not in "".join("".join(cell["source"]) for cell in cells)

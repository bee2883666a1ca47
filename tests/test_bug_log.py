"""`tests/bug_log.md`: every report has a row, every row has a test that exists or an issue that will bring it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ISSUES = ("Options", "Pairs", "Speed", "First contact", "later")
GAPS = {2, 6, 15, 28, 36, 41, 44, 53, 57, 61, 65, 77}  # numbers that the log does not have
ENTRIES = [number for number in range(1, 103) if number not in GAPS]
ROWS = [
    (int(cells[0]), cells[1].strip(), cells[2].strip())
    for line in (ROOT / "tests" / "bug_log.md").read_text(encoding="utf-8").splitlines()
    if len(cells := line.strip("| ").split(" | ")) == 3 and cells[0].isdigit()
]


def names_in(path: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }


def test_every_entry_has_one_row_in_order():
    assert [number for number, _, _ in ROWS] == ENTRIES


@pytest.mark.parametrize("number, title, coverage", ROWS, ids=[str(row[0]) for row in ROWS])
def test_row_names_tests_that_exist_or_an_issue(number, title, coverage):
    named = re.findall(r"`([^`]+)`", coverage)
    issues = re.sub(r"`[^`]+`", "", coverage)
    assert title
    assert named or issues.strip()
    for test in named:
        path, name = test.split("::")
        assert name.startswith("test_") and name in names_in(ROOT / path), test
    for issue in filter(None, (part.strip() for part in issues.split(","))):
        assert issue in ISSUES


def test_the_log_itself_has_no_other_entries():
    log = ROOT.parent / "shared" / "reference" / "bug-log.md"
    if not log.exists():
        pytest.skip("the log of reports is not part of the repository")
    numbers = re.findall(r"^\*\*(\d+)\. ", log.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert list(map(int, numbers)) == ENTRIES

"""Programs that each rule must and must not report, in `tests/data/lint_rules`; reported lines are marked `# here`."""

import pytest
from lint_cases import check_marks, findings, marked_lines, snippets

REPORTED, NOT_REPORTED = snippets("lint_rules/reported"), snippets("lint_rules/not_reported")


@pytest.mark.parametrize("title", REPORTED)
def test_rule_reports_marked_lines(title: str) -> None:
    check_marks(REPORTED[title], title[:5])
    assert marked_lines(REPORTED[title])


@pytest.mark.parametrize("title", NOT_REPORTED)
def test_rule_reports_nothing(title: str) -> None:
    assert findings(NOT_REPORTED[title], title[:5]) == []

"""What each rule tells and what it leaves alone: programs in `tests/data/lint_rules`, marked `# here` where a rule speaks."""

import pytest
from lint_cases import check_marks, findings, snippets

TOLD, SILENT = snippets("lint_rules/reported"), snippets("lint_rules/not_reported")


@pytest.mark.parametrize("title", TOLD)
def test_is_told(title: str) -> None:
    check_marks(TOLD[title], title[:5])
    assert findings(TOLD[title], title[:5])


@pytest.mark.parametrize("title", SILENT)
def test_is_not_told(title: str) -> None:
    assert findings(SILENT[title], title[:5]) == []

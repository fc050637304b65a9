"""Every guarantee that a document states has a test, every mark a document, and docs/guarantees.md lists both."""

from guarantees import HOUSE, findings


def test_documents_marks_and_the_list_agree() -> None:
    assert findings(HOUSE) == []

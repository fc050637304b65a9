"""Text: found on this machine, split so that nothing leaks, the same every time."""

import ast

import pytest
from paceline.buffer.errors import ConfigError
from paceline.rig.models.corpus import CERTAIN_DOMAINS, Document, docstrings, load_corpus, split, without_docstrings

MODULE = '''"""Says what it is."""
import os


class Rider:
    """Keeps
    the pace."""

    def draft(self):
        """One line."""
        return os.sep
'''


@pytest.fixture(scope="module")
def corpus():
    return load_corpus()


def test_every_cpython_has_code_and_prose_on_both_sides(corpus) -> None:
    assert tuple(corpus.domains) == CERTAIN_DOMAINS
    for domain in CERTAIN_DOMAINS:
        held_out, training = (sum(map(len, side)) for side in (corpus[domain].held_out, corpus[domain].training))
        assert 0.05 < held_out / (held_out + training) < 0.3


def test_no_text_is_on_both_sides(corpus) -> None:
    for domain in CERTAIN_DOMAINS:
        assert not set(corpus[domain].training) & set(corpus[domain].held_out)


def test_docstrings_of_held_out_code_are_not_in_the_training_prose(corpus) -> None:
    in_training = {piece for text in corpus["prose"].training for piece in text.split("\n\n") if len(piece) > 200}
    in_held_out_code = [text for text in corpus["py"].held_out if any(piece in text for piece in in_training)]
    assert not in_held_out_code


def test_the_same_machine_gives_the_same_fingerprint_and_other_domains_another(corpus) -> None:
    assert load_corpus().fingerprint == corpus.fingerprint
    assert load_corpus(["prose"]).fingerprint != corpus.fingerprint


def test_a_source_is_on_one_side_whatever_its_domain() -> None:
    for number in range(50):
        sides = {Document(f"file{number}.py", text).is_held_out for text in ("code", "prose", "")}
        assert len(sides) == 1


def test_a_split_keeps_each_text_once_and_all_of_them() -> None:
    documents = [Document(f"file{number}.py", f"text {number % 30}") for number in range(60)]
    parted = split(documents)
    assert sorted(parted.training + parted.held_out) == sorted(f"text {number}" for number in range(30))


def test_code_loses_its_docstrings_and_nothing_else() -> None:
    tree = ast.parse(MODULE)
    assert docstrings(tree) == ["Says what it is.", "Keeps\nthe pace.", "One line."]
    assert without_docstrings(tree, MODULE) == (
        "import os\n\n\nclass Rider:\n\n    def draft(self):\n        return os.sep\n"
    )


def test_an_unknown_domain_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"got 'latin', expected one of \['c', 'html', 'prose', 'py'\]"):
        load_corpus(["latin"])


def test_a_domain_that_was_not_loaded_is_refused(corpus) -> None:
    with pytest.raises(ConfigError, match=r"got 'c', expected one of \['prose', 'py'\]"):
        corpus["c"]

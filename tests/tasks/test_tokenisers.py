"""Text to ids and back."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semfocus.errors import MissingExtra, UsageError
from semfocus.tasks.tokenisers import BytePairs, Ids, Pieces, fit_tokeniser
from tests.tasks.helpers import descriptions

SENTENCES = [sentence for sentence, _ in descriptions()]


@pytest.fixture(scope="module")
def pairs() -> BytePairs:
    return BytePairs.fit(SENTENCES, 500)


def test_characters_are_numbered_in_order_and_unknown_is_last():
    pieces = Pieces.fit("char", ["ba b", "c"], 100)
    assert pieces.symbols == (" ", "a", "b", "c", "\N{REPLACEMENT CHARACTER}")
    assert pieces.encode("abz") == [1, 2, 4]
    assert pieces.decode([1, 2, 4]) == "ab\N{REPLACEMENT CHARACTER}"
    assert pieces.parse("a b") == [1, 0, 2]


def test_words_are_cut_at_any_white_space():
    pieces = Pieces.fit("whitespace", ["the\tcat  the\nmat"], 100)
    assert pieces.symbols == ("cat", "mat", "the", "<unk>")
    assert pieces.encode(" the dog\u00a0cat ") == [2, 3, 0]
    assert pieces.decode([2, 3, 0]) == "the <unk> cat"


def test_a_full_vocabulary_keeps_the_most_frequent_and_breaks_ties_by_text():
    pieces = Pieces.fit("whitespace", ["z z c b a"], 3)
    assert pieces.symbols == ("a", "b", "z", "<unk>")
    assert pieces.encode("c z") == [3, 2]


@pytest.mark.parametrize("name", ["char", "whitespace", "tokens"])
def test_the_unknown_symbol_never_becomes_a_known_one(name):
    mark = "\N{REPLACEMENT CHARACTER}" if name == "char" else "<unk>"
    content = [mark, "a", mark] if name == "tokens" else f"{mark} a {mark}"
    pieces = Pieces.fit(name, [content], 10)
    assert pieces.symbols.count(mark) == 1
    assert pieces.encode([mark] if name == "tokens" else mark) == [pieces.unknown_id]


def test_whole_numbers_are_numbered_by_value_and_parsed_from_text():
    pieces = Pieces.fit("tokens", [[10, 9], [9, -1]], 100)
    assert pieces.symbols == ("-1", "9", "10", "<unk>")
    assert pieces.encode([9, 10, 11]) == [1, 2, 3]
    assert pieces.parse(pieces.decode([1, 2, 3])) == [1, 2, 3]


@given(st.lists(st.integers(0, 20)))
def test_pieces_read_back_what_they_write(ids):
    pieces = fit_tokeniser("whitespace", ["a b c d e f g h i j k l m n o p q r s t"], 100)
    assert pieces.parse(pieces.decode(ids)) == ids


def test_byte_pairs_reach_the_wanted_size_and_shorten_real_text(pairs):
    assert len(pairs.symbols) == 500
    assert len(set(pairs.symbols)) == 500
    ids = [pairs.encode(sentence) for sentence in SENTENCES]
    assert all(0 <= i < 500 for row in ids for i in row)
    assert sum(map(len, ids)) < 0.6 * sum(len(sentence.encode()) for sentence in SENTENCES)


def test_byte_pairs_give_every_real_sentence_back(pairs):
    for sentence in SENTENCES:
        assert pairs.decode(pairs.encode(sentence)) == sentence


@given(st.text())
def test_byte_pairs_know_any_text_and_give_it_back(pairs, text):
    assert pairs.decode(pairs.parse(text)) == text


def test_byte_pairs_are_the_same_when_trained_again(pairs):
    again = BytePairs.fit(SENTENCES, 500)
    assert again.symbols == pairs.symbols
    assert [again.encode(s) for s in SENTENCES] == [pairs.encode(s) for s in SENTENCES]


def test_byte_pairs_without_tokenizers_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"'bpe' needs the package tokenizers: pip install 'semfocus\[hf\]'"):
        fit_tokeniser("bpe", ["text"], 300)


def test_ids_are_written_as_numbers_and_others_refused():
    ids = Ids(3)
    assert ids.decode([2, 0]) == "2 0"
    assert ids.parse("2 0") == [2, 0]
    with pytest.raises(UsageError, match=r"'3' at place 1 is not one of the ids 0 .. 2"):
        ids.parse("0 3")

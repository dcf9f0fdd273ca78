"""profile's advice where a job does not fit: the largest smaller one that fits."""

from __future__ import annotations

import pytest

from domino_tune.verbs.profile import _largest_that_fits, _smaller, _words_of
from simulator.specs import Workload

ASKED = Workload(seq_length=4096, micro_batch_size=64)


def tokens(one: Workload) -> int:
    return one.micro_batch_size * one.seq_length


@pytest.mark.parametrize("fits", list(_smaller(ASKED)), ids=tokens)
def test_the_largest_that_fits_is_found(fits: Workload) -> None:
    found = _largest_that_fits(ASKED, lambda one: tokens(one) <= tokens(fits))
    assert found == fits
    assert "it fits" in _words_of(ASKED, found)


def test_a_smaller_model_is_advised_where_nothing_fits() -> None:
    assert _largest_that_fits(ASKED, lambda one: False) is None
    assert _words_of(ASKED, None) == "; measure a smaller model"


def test_words_name_what_to_change() -> None:
    fits = Workload(seq_length=1024, micro_batch_size=1)
    assert _words_of(ASKED, fits) == "; with --seq-length 1024 --micro-batch-size 1 it fits"

"""What an audit of a sample excludes, against the definitions and another library."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.stats.estimates import chance_of_detection, excluded_count, excluded_share

sizes = st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n)))


@pytest.mark.parametrize(("n_audited", "n_false"), [(0, 2), (2, 0), (2, 1), (3, 2), (4, 2), (5, 5)])
def test_the_chance_is_that_of_all_samples(n_audited: int, n_false: int) -> None:
    samples = list(itertools.combinations(range(5), n_audited))
    detecting = sum(min(sample, default=5) < n_false for sample in samples)
    assert chance_of_detection(5, n_audited, n_false) == pytest.approx(detecting / len(samples))


@given(sizes)
def test_the_chance_is_hypergeometric(numbers: tuple[int, int, int]) -> None:
    n, audited, false = numbers
    assert chance_of_detection(n, audited, false) == pytest.approx(stats.hypergeom(n, false, audited).sf(0), abs=1e-9)


@given(sizes, st.sampled_from([0.01, 0.05]))
def test_an_audit_excludes_a_count_and_not_one_less(numbers: tuple[int, int, int], alpha: float) -> None:
    n, audited, _ = numbers
    count = excluded_count(n, audited, alpha)
    assert 1 <= count <= n + 1
    of_none = [Fraction(math.comb(n - m, audited), math.comb(n, audited)) for m in range(n + 1)]
    assert all(chance > Fraction(str(alpha)) for chance in of_none[:count])
    assert all(chance <= Fraction(str(alpha)) for chance in of_none[count:])


def test_a_chance_of_exactly_alpha_excludes() -> None:
    """Three runs of six miss three false ones in 1 of 20 samples."""
    assert excluded_count(6, 3, 0.05) == 3


def test_a_complete_audit_excludes_a_false_run_and_none_nothing() -> None:
    assert excluded_count(12, 12, 0.01) == 1
    assert excluded_count(12, 0, 0.01) == 13
    assert excluded_share(0, 0.01) == 1.0


@pytest.mark.parametrize(("audited", "share"), [(44, 0.1), (90, 0.05), (459, 0.01)])
def test_shares_that_audits_exclude_at_99_percent(audited: int, share: float) -> None:
    """k runs find a share f of false ones with probability 1 - (1 - f)^k."""
    assert excluded_share(audited, 0.01) <= share < excluded_share(audited - 1, 0.01)


@given(sizes)
def test_a_known_number_of_runs_is_never_less_sharp(numbers: tuple[int, int, int]) -> None:
    n, audited, _ = numbers
    assert excluded_count(n, audited, 0.01) - 1 <= excluded_share(audited, 0.01) * n

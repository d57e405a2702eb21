"""Shares of the Dirichlet distribution: each sample's depend on its own key alone."""

from __future__ import annotations

import numpy as np
import pytest
from references import assert_same_distribution

from fastload.transforms.draws import Draws

KEY = bytes(range(16))


def numpys(alpha, count):
    generator = np.random.default_rng(0)
    if alpha > 0.1:
        return generator.dirichlet([alpha] * count, size=20_000)
    # NumPy's shares of so small an alpha are often 0 where they should be 1e-50.
    logs = np.log(generator.gamma(alpha + 1, size=(20_000, count)))
    logs += np.log(generator.random((20_000, count))) / alpha
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.9, 1.0, 1.5, 8.0])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_shares_have_numpys_distribution(alpha, count):
    shares = Draws(KEY, np.arange(20_000)).stream("mix").dirichlet(alpha, count)
    assert shares.shape == (20_000, count)
    assert np.isfinite(shares).all()
    assert shares.min() >= 0
    assert np.allclose(shares.sum(axis=1), 1)
    expected = numpys(alpha, count)
    for column in range(count):
        assert_same_distribution(shares[:, column], expected[:, 0])
    assert_same_distribution(shares.max(axis=1), expected.max(axis=1))
    assert_same_distribution(shares[:, 0] * shares[:, 1], expected[:, 0] * expected[:, 1])


def test_one_share_is_everything():
    assert (Draws(KEY, np.arange(5)).stream("mix").dirichlet(0.5, 1) == 1).all()


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_a_samples_shares_and_what_is_drawn_next_do_not_depend_on_the_others(alpha):
    ids = np.array([3, 2**40, 17, 4, 1000])
    stream = Draws(KEY, ids).stream("mix")
    shares, after = stream.dirichlet(alpha, 3), stream.uniform()
    for row in range(5):
        alone = Draws(KEY, ids[[row]]).stream("mix")
        assert alone.dirichlet(alpha, 3)[0].tolist() == shares[row].tolist()
        assert alone.uniform()[0] == after[row]
    assert len(np.unique(shares)) == 15

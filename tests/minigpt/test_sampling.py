"""Sampling: distributions that fit on paper, compared whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.sampling import (
    apply_repetition_penalty,
    next_token_probabilities,
    repetition_rate,
)

HALVES = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()  # logits whose softmax is exact


def close(actual: Tensor, expected: list[float] | list[list[float]]) -> None:
    """Compare whole tensors, to float precision."""
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype))


class TestNextTokenProbabilities:
    def test_plain_is_softmax(self) -> None:
        """Without settings the result is the softmax: the probabilities that made the logits."""
        close(next_token_probabilities(HALVES), [0.5, 0.25, 0.125, 0.125])

    def test_temperature_is_a_power(self) -> None:
        """Temperature 1/2 squares the odds: 16 : 4 : 1 : 1 of 22."""
        close(next_token_probabilities(HALVES, 0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22])

    def test_temperature_zero_is_one_hot(self) -> None:
        """Temperature 0 puts everything on the most probable token of each row."""
        logits = torch.stack([HALVES, HALVES.flip(0)])
        close(next_token_probabilities(logits, 0.0), [[1, 0, 0, 0], [0, 0, 0, 1]])

    @pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
    def test_tiny_temperature_is_almost_argmax(self, temperature: float) -> None:
        """However small the temperature, nothing overflows and the best token gets everything."""
        logits = torch.tensor([3.0, 1e4, -1e4, 9e3])
        close(next_token_probabilities(logits, temperature), [0, 1, 0, 0])

    def test_top_k_rescales(self) -> None:
        """Of 0.5 and 0.25 alone remain 2/3 and 1/3."""
        close(next_token_probabilities(HALVES, top_k=2), [2 / 3, 1 / 3, 0, 0])

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_top_k_with_ties_keeps_exactly_k(self, k: int) -> None:
        """Four equal logits and top-k = k leave k tokens of 1/k each."""
        probabilities = next_token_probabilities(torch.zeros(2, 4), top_k=k)
        assert (probabilities > 0).sum(dim=-1).tolist() == [k, k]
        close(probabilities.sort(dim=-1, descending=True).values[:, :k], [[1 / k] * k] * 2)

    def test_top_k_1_with_ties_is_argmax(self) -> None:
        """Of equal logits the first in the vocabulary wins, by top-k 1 and by temperature 0."""
        logits = torch.tensor([1.0, 2.0, 2.0, 2.0])
        close(next_token_probabilities(logits, top_k=1), [0, 1, 0, 0])
        close(next_token_probabilities(logits, 0.0), [0, 1, 0, 0])

    @pytest.mark.parametrize(
        ("top_p", "expected"),
        [
            (1e-9, [1.0, 0, 0, 0]),
            (0.5, [1.0, 0, 0, 0]),
            (0.51, [2 / 3, 1 / 3, 0, 0]),
            (0.75, [2 / 3, 1 / 3, 0, 0]),
            (1.0, [0.5, 0.25, 0.125, 0.125]),
        ],
    )
    def test_nucleus_keeps_the_crossing_token(self, top_p: float, expected: list[float]) -> None:
        """The token that brings the mass to top_p stays; one is always left."""
        close(next_token_probabilities(HALVES, top_p=top_p), expected)

    def test_nucleus_is_in_the_order_of_the_vocabulary(self) -> None:
        """Sorting is undone: each probability is at its own token's place."""
        logits = HALVES[[2, 0, 3, 1]]
        close(next_token_probabilities(logits, top_p=0.75), [0, 2 / 3, 0, 1 / 3])

    def test_nucleus_is_measured_after_top_k(self) -> None:
        """After top-k 2 the first token has 2/3, which reaches 0.6 alone (0.5 would not)."""
        close(next_token_probabilities(HALVES, top_k=2, top_p=0.6), [1.0, 0, 0, 0])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype: torch.dtype) -> None:
        """Half logits give the float32 softmax of their values."""
        logits = torch.linspace(-4, 4, 300).to(dtype)
        probabilities = next_token_probabilities(logits)
        assert probabilities.dtype == torch.float32
        torch.testing.assert_close(probabilities, logits.float().softmax(dim=0))

    def test_masked_tokens_stay_impossible(self) -> None:
        """A logit of -inf is a token with probability 0, not an error."""
        close(next_token_probabilities(torch.tensor([0.0, -math.inf, 0.0]), top_k=3), [0.5, 0, 0.5])

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_non_finite_logits_are_refused(self, bad: float, temperature: float) -> None:
        """NaN in one row of two is an error, also where argmax would hide it."""
        logits = torch.tensor([[0.0, 1.0], [bad, 0.0]])
        with pytest.raises(FloatingPointError, match="finite maximum"):
            next_token_probabilities(logits, temperature)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"temperature": -0.1}, "temperature must be a finite number >= 0, got -0.1"),
            ({"temperature": math.nan}, "temperature"),
            ({"temperature": math.inf}, "temperature"),
            ({"top_k": 0}, r"top_k must be in 1..4, the vocabulary size, got 0"),
            ({"top_k": 5}, r"top_k must be in 1..4, the vocabulary size, got 5"),
            ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
            ({"top_p": 1.1}, "top_p"),
            ({"top_p": math.nan}, "top_p"),
        ],
    )
    def test_settings_out_of_range(self, settings: dict[str, float], message: str) -> None:
        """Each setting out of range is refused by name, with the value that came."""
        with pytest.raises(ValueError, match=message):
            next_token_probabilities(HALVES, **settings)  # type: ignore[arg-type]

    def test_shape_is_checked(self) -> None:
        """Logits of all positions are refused: only one distribution per row is meant."""
        with pytest.raises(ValueError, match=r"\(V,\) or \(B, V\), got \(1, 2, 3\)"):
            next_token_probabilities(torch.zeros(1, 2, 3))

    @settings(max_examples=60, deadline=None)
    @given(
        logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12),
        temperature=st.floats(0.01, 10),
        top_k=st.integers(1, 12),
        top_p=st.floats(0.001, 1.0),
    )
    def test_always_a_distribution(
        self, logits: list[float], temperature: float, top_k: int, top_p: float
    ) -> None:
        """Whatever the settings: sums to 1, at most k tokens, and no kept token below a cut one."""
        row = torch.tensor(logits)
        top_k = min(top_k, len(logits))
        probabilities = next_token_probabilities(row, temperature, top_k, top_p)
        torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
        kept = probabilities > 0
        assert 1 <= int(kept.sum()) <= top_k
        assert row[kept].max() == row.max()
        if bool((~kept).any()):
            # logits that differ by less than a float's rounding are equally probable
            probable = (row / temperature).softmax(-1)
            assert probable[kept].min() >= probable[~kept].max()


class TestRepetitionPenalty:
    def test_positive_divided_negative_multiplied(self) -> None:
        """With penalty 2, 4 becomes 2 and -4 becomes -8: both less likely; the rest stays."""
        logits = torch.tensor([4.0, -4.0, 1.0, 0.0])
        penalised = apply_repetition_penalty(logits, torch.tensor([0, 1, 3, 0]), 2.0)
        close(penalised, [2.0, -8.0, 1.0, 0.0])

    def test_rows_have_their_own_history(self) -> None:
        """Each row is penalised for its own tokens only, once however often they occurred."""
        logits = torch.full((2, 3), 6.0)
        penalised = apply_repetition_penalty(logits, torch.tensor([[0, 0], [2, 1]]), 3.0)
        close(penalised, [[2.0, 6.0, 6.0], [6.0, 2.0, 2.0]])

    def test_the_input_is_not_changed(self) -> None:
        """Applying it twice to the same logits gives the same result: nothing is done in place."""
        logits = torch.tensor([4.0, -4.0])
        before = logits.clone()
        first = apply_repetition_penalty(logits, torch.tensor([0, 1]), 2.0)
        second = apply_repetition_penalty(logits, torch.tensor([0, 1]), 2.0)
        assert torch.equal(logits, before)
        assert torch.equal(first, second)

    @pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
    def test_penalty_must_be_positive(self, penalty: float) -> None:
        """A penalty of 0 would divide by zero; it is refused by name."""
        with pytest.raises(ValueError, match="repetition_penalty must be a finite number > 0"):
            apply_repetition_penalty(HALVES, torch.tensor([0]), penalty)

    def test_shapes_must_fit(self) -> None:
        """A flat history for a batch of logits is refused."""
        with pytest.raises(ValueError, match=r"got \(2,\) for \(1, 4\)"):
            apply_repetition_penalty(HALVES[None], torch.tensor([0, 1]), 2.0)


class TestRepetitionRate:
    def test_by_hand(self) -> None:
        """'abab' has the pairs ab, ba, ab: one of three came before."""
        assert repetition_rate("abab", n=2) == pytest.approx(1 / 3)

    def test_no_repetition(self) -> None:
        """All different: 0; too short to hold one n-gram: 0."""
        assert repetition_rate("abcdefgh") == 0.0
        assert repetition_rate("abc") == 0.0

    def test_one_token_for_ever(self) -> None:
        """13 equal ids hold 10 equal 4-grams, of which 9 are repeats."""
        assert repetition_rate([7] * 13) == pytest.approx(0.9)

    def test_text_ids_and_tensor_agree(self) -> None:
        """The same sequence as text, list and tensor has the same rate."""
        ids = [1, 2, 1, 2, 1, 2, 3]
        text = "".join(map(str, ids))
        assert repetition_rate(ids, 2) == repetition_rate(text, 2)
        assert repetition_rate(torch.tensor(ids), 2) == repetition_rate(text, 2)

    def test_n_must_be_positive(self) -> None:
        """An n of 0 has no meaning and is refused."""
        with pytest.raises(ValueError, match="n must be >= 1, got 0"):
            repetition_rate("abc", n=0)

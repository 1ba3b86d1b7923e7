"""The append-only token record."""

import numpy as np
import pytest

from rw.protocol.context import Context
from rw.types import Segment


def test_every_token_has_segment_and_logprob_from_birth():
    context = Context(np.array([7, 8, 9]))
    context.append_sampled([1, 2], [-0.5, -1.5], Segment.MODE)
    context.append_inserted([(np.array([3]), Segment.INJECTED), (np.array([4, 5]), Segment.OBSERVATION)])
    context.append_sampled(np.array([6]), np.array([-2.0]), Segment.INNER)
    assert context.tokens.tolist() == [7, 8, 9, 1, 2, 3, 4, 5, 6]
    assert context.segments.tolist() == [1, 1, 1, 4, 4, 2, 3, 3, 5]
    assert context.logprobs.tolist() == [0, 0, 0, -0.5, -1.5, 0, 0, 0, -2]
    assert (context.tokens.dtype, context.segments.dtype, context.logprobs.dtype) == (np.int32, np.uint8, np.float32)
    assert (len(context), context.prompt_length, context.response_length) == (9, 3, 6)


def test_views_are_read_only_and_outlive_growth():
    context = Context(np.arange(3))
    early = context.tokens
    with pytest.raises(ValueError, match="read-only"):
        early[0] = 1
    for start in range(0, 5000, 500):
        context.append_sampled(np.arange(start, start + 500), np.zeros(500), Segment.INNER)
    assert early.tolist() == [0, 1, 2]
    assert context.tokens.tolist() == [0, 1, 2, *range(5000)]
    assert len(context.tokens) == len(context.segments) == len(context.logprobs) == 5003


def test_wrong_labels_and_lengths_are_refused_and_nothing_is_written():
    context = Context(np.arange(2))
    for segment in (Segment.INJECTED, Segment.OBSERVATION, Segment.PROMPT, Segment.PAD):
        with pytest.raises(ValueError, match="sampled tokens are MODE or INNER"):
            context.append_sampled([1], [0.0], segment)
    for segment in (Segment.MODE, Segment.INNER, Segment.PROMPT):
        with pytest.raises(ValueError, match="inserted tokens are INJECTED or OBSERVATION"):
            context.append_inserted([(np.array([1]), segment)])
    with pytest.raises(ValueError, match="equally long"):
        context.append_sampled([1, 2], [0.0], Segment.MODE)
    with pytest.raises(ValueError, match="equally long"):
        context.append_sampled([[1]], [[0.0]], Segment.MODE)
    with pytest.raises(ValueError, match="integers"):
        context.append_sampled([1.5], [0.0], Segment.MODE)
    assert len(context) == 2

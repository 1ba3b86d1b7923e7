"""What a script writes arrives as the tokens a model would have sampled for it."""

import numpy as np
import pytest

from rw.sampler.interface import EpisodeId, StopReason, TurnRequest
from rw.sampler.scripted import ScriptedSampler

ROUTE_TAGS = ("</route>", "</answer>", "<observation")


def request(tokens=(1, 2, 3), prompt_length=2, max_tokens=64, stop_tags=ROUTE_TAGS):
    return TurnRequest(EpisodeId(0, "q", 0), 1, np.array(tokens, np.int32), prompt_length, max_tokens, stop_tags)


async def write(codec, written, **kwargs):
    return await ScriptedSampler(codec, lambda *_: written).generate(request(**kwargs))


async def test_text_is_cut_at_the_token_that_completes_a_tag(codec):
    turn = await write(codec, '<route model="worker_1">add 2 and 3</route> and more')
    assert codec.decode(turn.tokens).startswith('<route model="worker_1">add 2 and 3</route>')
    assert "more" not in codec.decode(turn.tokens)
    assert turn.stop is StopReason.TAG
    assert turn.logprobs.dtype == np.float32 and turn.logprobs.tolist() == [0.0] * len(turn.tokens)


@pytest.mark.parametrize("literal, name", [("<|im_end|>", "im_end"), ("<|endoftext|>", "endoftext")])
async def test_literal_at_the_end_becomes_the_end_token(codec, literal, name):
    turn = await write(codec, "hello" + literal)
    assert turn.tokens.tolist() == [*codec.encode_text("hello"), getattr(codec, name)]
    assert turn.stop is StopReason.END_TOKEN


async def test_literal_inside_the_text_stays_text(codec):
    turn = await write(codec, "a<|im_end|>b")
    assert codec.im_end not in turn.tokens[:-1].tolist()
    assert codec.decode(turn.tokens) == "a<|im_end|>b<|im_end|>"


async def test_text_that_runs_out_ends_its_turn(codec):
    turn = await write(codec, "hello")
    assert turn.tokens[-1] == codec.im_end and turn.stop is StopReason.END_TOKEN


async def test_text_over_the_limit_is_cut(codec):
    turn = await write(codec, "one two three four five", max_tokens=3)
    assert turn.tokens.tolist() == codec.encode_text("one two three four five")[:3].tolist()
    assert turn.stop is StopReason.LENGTH


async def test_tag_completed_by_the_last_allowed_token_counts_as_tag(codec):
    count = len(codec.encode_text("<answer>5</answer>"))
    turn = await write(codec, "<answer>5</answer>", max_tokens=count)
    assert turn.stop is StopReason.TAG and len(turn.tokens) == count


async def test_exact_ids_are_kept_even_where_no_encoder_would_write_them(codec):
    pair = [393, 30002]  # decodes to the text that the encoder writes as 53122, 316
    assert codec.decode(pair) == codec.decode([53122, 316])
    turn = await write(codec, np.array(pair))
    assert turn.tokens.tolist() == pair and turn.stop is StopReason.LENGTH
    ended = await write(codec, np.array([*pair, codec.im_end, 5]))
    assert ended.tokens.tolist() == [*pair, codec.im_end] and ended.stop is StopReason.END_TOKEN


async def test_script_reads_prompt_and_response_apart(codec):
    tokens = np.concatenate([[codec.im_start], codec.encode_text("ask"), codec.encode_text(" reply")])
    seen = []
    sampler = ScriptedSampler(codec, lambda r, view: seen.append((view.prompt, view.response, view.text)) or "x")
    await sampler.generate(request(tokens, prompt_length=2))
    assert seen == [("<|im_start|>ask", " reply", "<|im_start|>ask reply")]


async def test_forgets_and_switches_without_complaint(codec):
    sampler = ScriptedSampler(codec, lambda *_: "x")
    await sampler.release(EpisodeId(0, "unknown", 0))
    await sampler.publish(None)
    with pytest.raises(ValueError, match="max_tokens=0"):
        await sampler.generate(request(max_tokens=0))

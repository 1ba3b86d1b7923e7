"""A tiny router and made-up groups of trajectories, in every status, mode and length that the learner may meet."""

import dataclasses
import zlib

import jax
import numpy as np
import pytest

from rw.model.config import ModelConfig
from rw.model.qwen3 import init_params
from rw.types import (
    CallStatus,
    Group,
    Mode,
    Query,
    ScoredTrajectory,
    Segment,
    Status,
    Trajectory,
    Verdict,
    WorkerCall,
)

VOCAB = 300
MODEL = ModelConfig(
    vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=64, rope_theta=1e4, remat="none"
)


def make_call(cost_usd=1e-3):
    return WorkerCall(
        "n1", "worker_1", None, (), "sub", "out", 10, None if cost_usd is None else 5, cost_usd, 0.1, 1, CallStatus.OK
    )


def make_trajectory(rng, query_id, rollout_index, mode, *, forced=False, length=24, **fields):
    """Prompt, mode turn, then inner tokens and observations in turns; about `length` tokens.

    Rollouts of a query begin alike, for as many tokens as the shorter of their prompts has.
    """
    segments = [Segment.PROMPT] * int(rng.integers(5, 9))
    prompt_length = len(segments)
    segments += [Segment.INJECTED if forced else Segment.MODE] * 3 + [Segment.INJECTED] * 2
    while len(segments) < length:
        segments += [Segment.INNER] * int(rng.integers(1, 6)) + [Segment.OBSERVATION] * int(rng.integers(1, 5))
    segments += [Segment.INNER] * 2
    segments = np.array([int(s) for s in segments], np.uint8)
    sampled = np.isin(segments, [int(Segment.MODE), int(Segment.INNER)])
    tokens = rng.integers(0, VOCAB, len(segments)).astype(np.int32)
    tokens[:prompt_length] = np.random.default_rng(zlib.crc32(query_id.encode())).integers(0, VOCAB, prompt_length)
    values = {
        "query_id": query_id,
        "rollout_index": rollout_index,
        "mode": mode,
        "forced": forced,
        "tokens": tokens,
        "segments": segments,
        "sampled_logprobs": np.where(sampled, -rng.random(len(segments)), 0).astype(np.float32),
        "prompt_length": prompt_length,
        "calls": (make_call(float(rng.uniform(1e-4, 5e-3))),),
        "answer": "a",
        "status": Status.ANSWERED,
        **fields,
    }
    return Trajectory(**values)


def score(trajectory, correct):
    return ScoredTrajectory(trajectory, Verdict(correct) if trajectory.status is Status.ANSWERED else None)


def make_query(index):
    return Query(f"q{index}", "simulated", "math", "?", "a")


def make_groups(seed=0, count=6, rollouts=4, forced=lambda index: index % 3 == 0, lengths=(18, 48)):
    """`count` groups of ragged lengths; every third forced; rewards and modes mixed within a group."""
    rng = np.random.default_rng(seed)
    groups = []
    for index in range(count):
        query = make_query(index)
        forced_mode = Mode(index % 3) if forced(index) else None
        scored = []
        for k in range(rollouts):
            mode = forced_mode if forced_mode is not None else Mode(int(rng.integers(0, 3)))
            status, answer = Status.ANSWERED, "a"
            if rng.random() < 0.15:
                status, answer = Status.TERMINAL_INVALID, None
            trajectory = make_trajectory(
                rng,
                query.id,
                k,
                mode,
                forced=forced_mode is not None,
                length=int(rng.integers(*lengths)),
                status=status,
                answer=answer,
            )
            scored.append(score(trajectory, bool(rng.random() < 0.5)))
        groups.append(Group(index, query, forced_mode, tuple(scored)))
    return groups


def replace_rollout(groups, g, k, **fields):
    """The same groups with fields of one trajectory replaced; a status other than ANSWERED loses its verdict."""
    scored = groups[g].rollouts[k]
    changed = score(dataclasses.replace(scored.trajectory, **fields), scored.correct)
    rollouts = groups[g].rollouts[:k] + (changed,) + groups[g].rollouts[k + 1 :]
    return [*groups[:g], dataclasses.replace(groups[g], rollouts=rollouts), *groups[g + 1 :]]


def mode_candidates(query):
    """A short prefix by query and one, one and two content tokens, so that the third mode is rare."""
    rng = np.random.default_rng(int(query.id[1:]))
    prefix = rng.integers(0, VOCAB, int(rng.integers(6, 12))).astype(np.int32)
    return prefix, (np.array([7], np.int32), np.array([8], np.int32), np.array([9, 10], np.int32))


def relative_difference(left, right):
    """Global norm of the difference over the global norm of `left`."""
    pairs = list(zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))
    difference = sum(float(np.sum(np.square(np.asarray(a, np.float64) - np.asarray(b, np.float64)))) for a, b in pairs)
    return np.sqrt(difference / sum(float(np.sum(np.square(np.asarray(a, np.float64)))) for a, _ in pairs))


@pytest.fixture(scope="session")
def params():
    return init_params(jax.random.key(0), MODEL)


@pytest.fixture(scope="session")
def reference_params(params):
    """Another router than `params`, so that the KL term has a gradient."""
    return jax.tree.map(lambda p, q: p + 0.05 * q, params, init_params(jax.random.key(1), MODEL))


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Most programs here run once or twice on a tiny model: compiling them takes longer than running them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)

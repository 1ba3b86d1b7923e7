"""Rollouts: episodes between the router and its Workers, many at a time, grouped by query and scored.

Coroutines only. Nothing here knows jax, weights, rewards or the loss: a trajectory leaves this room with its tokens,
their segments, its calls and its verdict.
"""

"""The router's language model: Qwen3 in Flax Linen behind plain functions of a flat dict of arrays.

The only room that imports flax. It knows tokens, positions and arrays; nothing of prompts, modes, rewards or sampling.
"""

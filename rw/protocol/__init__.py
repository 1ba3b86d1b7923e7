"""Text and tokens: the action grammar, the three mode machines, prompts, chat framing and the append-only context.

Knows no jax, no clock and no IO but its own templates and tokenizer file, each read once. `dialogue.py` is the facade.
"""

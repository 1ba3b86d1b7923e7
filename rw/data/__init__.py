"""Where queries come from: recorded question sets as `Query`s, their split, and the order of batches. Pure; no jax."""

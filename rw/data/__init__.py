"""Where queries come from: data sets in their own schemas, prepared files, recorded question sets, and what makes up a
batch. No jax; reads files, and asks nobody but the hub where it is told to."""

"""Where queries come from: data sets in their own schemas, files of prepared questions, recorded question sets, and which
queries make up a batch. No jax; reads files, and asks nobody but the hub where it is told to."""

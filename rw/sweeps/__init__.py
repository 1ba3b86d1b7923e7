"""Many runs of one config: their points, what became of each, and who runs them. The entry is rw/sweep.py."""

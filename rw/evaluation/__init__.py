"""Evaluation: what becomes of test questions under a trained router and its baselines, and what a run's report says."""

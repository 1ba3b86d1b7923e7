"""Benchmarks are scripts, which find each other in the folder of the one that is run: tests of them look there too."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

"""Variants of configs/quickstart.py for comparisons; configs/ablations/variants.py says what each of them is.

rw train --config configs/ablations/quickstart.py:no_comet
"""

import pathlib
import runpy

HERE = pathlib.Path(__file__).parent
_TABLE = runpy.run_path(str(HERE / "variants.py"))
VARIANTS = tuple(_TABLE["VARIANTS"])


def get_config(name):
    base = runpy.run_path(str(HERE.parent / "quickstart.py"))["get_config"]()
    return _TABLE["vary"](base, name)

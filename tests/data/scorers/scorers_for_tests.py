"""Scorers that behave and misbehave, loaded by scorer processes under test."""

import os
import sys
import time

from rw.types import Verdict


def exact(answer, query):
    return Verdict(correct=answer == query.reference, detail="exact")


def noisy(answer, query):
    print("a scorer that prints")
    return Verdict(correct=True)


def raising(answer, query):
    raise ArithmeticError(f"cannot weigh {answer}")


def hanging(answer, query):
    time.sleep(60)


def dying(answer, query):
    os._exit(3)


def loaded_modules(answer, query):
    return Verdict(correct="jax" not in sys.modules, detail=" ".join(sorted(sys.modules)))


def process_id(answer, query):
    return Verdict(correct=True, detail=str(os.getpid()))


SCORERS = {
    "exact": exact,
    "noisy": noisy,
    "raising": raising,
    "hanging": hanging,
    "dying": dying,
    "loaded_modules": loaded_modules,
    "process_id": process_id,
}

"""Scorers that behave and misbehave, loaded by scorer processes under test."""

import os
import signal
import subprocess
import sys
import time

from rw.types import Verdict, VerdictKind


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


def faulty_sandbox(answer, query):
    return Verdict(correct=False, detail="no sandbox here", kind=VerdictKind.SANDBOX_FAULT)


def environment(answer, query):
    return Verdict(correct=True, detail=" ".join(sorted(os.environ)))


def slow(answer, query):
    time.sleep(float(answer))
    return Verdict(correct=True)


def signals_of_a_child(answer, query):
    program = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    return Verdict(correct=done.stdout.strip() == "True" and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)


def of_config(config):
    return {"limits": lambda answer, query: Verdict(correct=True, detail=f"{config.test_s:g}")}


SCORERS = {
    "exact": exact,
    "noisy": noisy,
    "raising": raising,
    "hanging": hanging,
    "dying": dying,
    "loaded_modules": loaded_modules,
    "process_id": process_id,
    "faulty_sandbox": faulty_sandbox,
    "environment": environment,
    "slow": slow,
    "signals_of_a_child": signals_of_a_child,
}


def slow_math(answer, query):
    time.sleep(0.05)
    return Verdict(correct=False, kind=VerdictKind.WRONG, scorer="math/1")


SLOW = {"math": slow_math}

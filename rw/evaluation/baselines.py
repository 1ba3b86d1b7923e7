"""The single-call baselines by name, and their outcomes on a matrix of test questions.

Names are those of arms without their first word: `baseline_knn` is `knn` here. Learned ones need a matrix of training
questions; one of your own is named `package.module:function`, a Fit (learned_routers.py), and its arm after the
function. Nothing here calls, samples or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rw.errors import ConfigError
from rw.evaluation.learned_routers import FITS, LearnedRouter
from rw.evaluation.outcomes import Outcome
from rw.evaluation.response_matrix import ResponseMatrix
from rw.evaluation.selection import NEED_ANSWERS, RULES, always
from rw.imported import imported_function
from rw.typed_values import did_you_mean
from rw.types import Mode

PREFIX = "baseline_"
ALWAYS = "always"  # one arm a Worker
PROMPTED: dict[str, Mode | None] = {  # the router before any training, its mode free or forced
    "prompt_llm": None,
    **{f"prompt_{mode.word}": mode for mode in Mode},
}
EPISODES = ("knn_multi", *PROMPTED)  # make calls of their own
NAMES = (ALWAYS, *RULES, *FITS, *EPISODES)


def choose_names(only: Sequence[str], without: Sequence[str], known: Sequence[str] = NAMES) -> tuple[str, ...]:
    """The baselines asked for, in the order of NAMES, then those of one's own; `only` empty stands for all of rw's.

    Raises:
        ConfigError: a name that is none, with the nearest one, or nothing is left.
    """
    own = tuple(dict.fromkeys(name for name in only if is_own(name)))
    only = [name for name in only if name not in own]
    _check_own(own)
    if own and not only and not without:
        return own
    for name in (name.removeprefix(PREFIX) for name in (*only, *without)):
        if name in NAMES and name not in known:
            raise ConfigError(f"baseline {name!r} cannot be had of these records; there are {', '.join(known)}")
        if name not in NAMES:
            hint = did_you_mean(name, known, cutoff=0.4) or f"; there are {', '.join(known)}"
            raise ConfigError(f"unknown baseline {name!r}{hint}")
    wanted = {name.removeprefix(PREFIX) for name in only} or set(known)
    left_out = {name.removeprefix(PREFIX) for name in without}
    found = tuple(name for name in known if name in wanted - left_out)
    if not found and not own:
        raise ConfigError("no baseline is left: --without names all that --only does")
    return (*found, *own)


def is_own(name: str) -> bool:
    """Whether a baseline is a function of the user's."""
    return ":" in name


def is_learned(name: str) -> bool:
    """Whether a baseline learns from a matrix of training questions."""
    return name in FITS or is_own(name)


def arm_of(name: str) -> str:
    """What the arm of a baseline is called."""
    return PREFIX + name.rpartition(":")[2]


def learned_arms(names: Sequence[str]) -> set[str]:
    """The arms of the learned ones among these baselines."""
    return {arm_of(name) for name in names if is_learned(name)}


def _check_own(own: Sequence[str]) -> None:
    """Loads them before anything is spent."""
    arms: dict[str, str] = {}
    for name in own:
        imported_function(name, "baseline")
        function = name.rpartition(":")[2]
        if function in NAMES or function.startswith(f"{ALWAYS}_"):
            raise ConfigError(f"baseline {name!r} has the name of one of rw's; call the function something else")
        if arms.setdefault(function, name) != name:
            raise ConfigError(f"baselines {arms[function]!r} and {name!r} would be one arm; call one something else")


def without_answers(names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Those of them that recorded scores alone suffice for."""
    return tuple(name for name in names if name not in (*NEED_ANSWERS, *EPISODES))


def single_call_arms(
    names: Sequence[str],
    test: ResponseMatrix,
    seed: int,
    learned: Callable[[str], LearnedRouter],
) -> Iterator[tuple[str, tuple[Outcome, ...]]]:
    """(arm, its outcomes in the order of the test questions), one after the other; names of EPISODES are passed over.

    Args:
        learned: gives the learned router of a name.
    """
    for name in names:
        if name == ALWAYS:
            for place, worker in enumerate(test.workers):
                yield f"{PREFIX}{ALWAYS}_{worker.id}", always(test, place)
        elif name in RULES:
            yield f"{PREFIX}{name}", RULES[name](test, seed)
        elif is_learned(name):
            yield arm_of(name), learned(name).outcomes(test)

"""Advantage functions of one's own: what is refused before a run, and how they are named in what it records."""

import functools

import jax
import numpy as np
import pytest

from rw.core.advantage_contract import TRIAL_GROUPS, check_advantage, check_advantages, recorded_name, trial_batch
from rw.core.advantages import ADVANTAGES, AdvantageConfig, comet, grpo
from rw.errors import ConfigError
from rw.types import Advantages

CONFIG = AdvantageConfig(efficiency_weight=0.3)
SHARE = 0.5


def halved(batch, config):
    credit = comet(batch, config)
    return credit._replace(mode=SHARE * credit.mode)


def scaled(weight, extra=0.0):
    def advantage(batch, config, offset=extra):
        credit = comet(batch, config)
        return credit._replace(mode=weight * credit.mode + offset)

    return advantage


def no_config(batch):
    return comet(batch, CONFIG)


def bare_tuple(batch, config):
    return tuple(comet(batch, config)[:3])


def one_a_group(batch, config):
    credit = comet(batch, config)
    return credit._replace(inner=credit.inner.mean(axis=1))


def nothing_for_the_mode(batch, config):
    return comet(batch, config)._replace(mode=None)


def words(batch, config):
    return comet(batch, config)._replace(mode=np.full(batch.mode.shape, "good"))


def ragged(batch, config):
    return comet(batch, config)._replace(mode=[[1.0], [2.0, 3.0]])


def nothing_left_in_v(batch, config):
    batch.retained[:] = False
    nowhere = np.full(batch.mode.shape, np.nan)
    return Advantages(grpo=nowhere, mode=nowhere, inner=nowhere)


def divided_by_the_range(batch, config):
    task = np.where(batch.retained, batch.rewards[..., 0], np.nan)
    low, high = np.nanmin(task, axis=1, keepdims=True), np.nanmax(task, axis=1, keepdims=True)
    advantage = (task - low) / (high - low)
    return Advantages(grpo=advantage, mode=advantage, inner=advantage)


def only_free(batch, config):
    if config.cold_start:
        raise ValueError("no mode\nin cold start")
    return comet(batch, config)


@pytest.mark.parametrize("function", [*ADVANTAGES.values(), halved, scaled(2.0), jax.jit(halved, static_argnums=1)])
def test_functions_that_can_be_learnt_from_pass(function):
    check_advantage(function, "mine", CONFIG)


@pytest.mark.parametrize(
    "function, says",
    [
        (
            no_config,
            "raised TypeError: no_config() takes 1 positional argument but 2 were given; it must be (GroupBatch",
        ),
        (only_free, "raised ValueError: no mode in cold start; it must be (GroupBatch, AdvantageConfig) -> Advantages"),
        (bare_tuple, "returned tuple; it must be (GroupBatch, AdvantageConfig) -> Advantages(grpo, mode, inner)"),
        (one_a_group, "returned inner of shape (6,); it must be [G, K] = (6, 5)"),
        (nothing_for_the_mode, "returned mode of shape (); it must be [G, K] = (6, 5)"),
        (words, "returned mode of dtype <U4; it must be real numbers"),
        (ragged, "returned mode that is no array: setting an array element with a sequence"),
        (nothing_left_in_v, "returned grpo that is not finite for a free group with all modes; every"),
        (divided_by_the_range, "returned grpo that is not finite for a group whose rewards are all equal; every"),
    ],
)
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_functions_that_cannot_be_learnt_from_are_refused_in_one_line(function, says):
    with pytest.raises(ConfigError) as error:
        check_advantage(function, "mine", CONFIG)
    assert f"advantage 'mine' {says}" in str(error.value) and "\n" not in str(error.value)


def test_numbers_outside_v_do_not_matter():
    def careless(batch, config):
        credit = comet(batch, config)
        return credit._replace(mode=np.where(batch.retained, credit.mode, np.nan))

    check_advantage(careless, "careless", CONFIG)


def test_the_trial_holds_the_groups_that_it_names():
    batch = trial_batch()
    assert len(TRIAL_GROUPS) == len(batch.mode)
    assert batch.forced.tolist() == [False, True, False, False, False, False]
    assert batch.retained.sum(axis=1).tolist() == [5, 5, 5, 4, 1, 0]
    assert [len(set(modes[kept])) for modes, kept in zip(batch.mode, batch.retained, strict=True)] == [4, 1, 3, 1, 1, 0]
    assert np.ptp(batch.rewards[2, :, 0]) == 0 and not np.isnan(batch.rewards[batch.retained]).any()
    check_advantages(grpo(batch, CONFIG), "grpo", batch)


def test_a_recorded_name_follows_the_source_and_the_values_around_it(monkeypatch):
    name = recorded_name(halved)
    module, _, rest = name.partition(":")
    assert module == __name__ and rest.startswith("halved@") and len(rest) == len("halved@") + 8
    assert recorded_name(halved) == name == recorded_name(jax.jit(halved, static_argnums=1))
    assert recorded_name(f"{__name__}:halved") == name and recorded_name("comet") == "comet"  # as a config names them
    assert recorded_name(scaled(1.0)) != recorded_name(scaled(2.0)) == recorded_name(scaled(2.0))
    assert recorded_name(scaled(1.0)) != recorded_name(scaled(1.0, extra=0.1))
    assert (
        recorded_name(scaled((1.0, 2.0))) != recorded_name(scaled((1.0, 3.0))) != recorded_name(scaled({"mode": 3.0}))
    )
    monkeypatch.setitem(globals(), "SHARE", 0.25)
    assert recorded_name(halved) != name and recorded_name(halved).startswith(f"{__name__}:halved@")


def test_what_has_no_source_is_refused():
    with pytest.raises(ConfigError, match="its source cannot be read"):
        recorded_name(functools.partial(halved))

    def unfinished(batch, config):
        return later

    with pytest.raises(ConfigError, match="its source cannot be read .Cell is empty"):
        recorded_name(unfinished)
    later = comet
    namespace = {}
    exec("def typed(batch, config):\n    return None", namespace)
    with pytest.raises(ConfigError, match="its source cannot be read"):
        recorded_name(namespace["typed"])

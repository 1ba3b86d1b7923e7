"""The config of the authors' terms: every switch where paper and released code differ, and nothing else."""

import ast
import pathlib

import pytest

from rw.config import as_dict, load_config
from rw.memory import GIB, device_memory
from rw.protocol.config import SWITCHES
from rw.rollout.credit import SWITCHES as CREDIT_SWITCHES

ROOT = pathlib.Path(__file__).parent.parent.parent
PAPER, RELEASED = "configs/qwen3_4b.py", "configs/qwen3_4b_released.py"
SWITCHED = {
    "protocol.outside_text": "ignored",
    "protocol.framing": "released",
    "protocol.multi_previous": "none",
    "protocol.observation_budget": "turn",
    "protocol.response_budget": 16384,
    "protocol.exhausted": "judged",
    "credit.code_credit": "union",
    "credit.answer_from": "either",
    "credit.execution_feedback": "hidden",
    "reward.retry_cost": "reported",
    "data.quota_knowledge_reason": "7/6",
    "scoring.math_equality": "released",
}
AS_BY_DEFAULT = {"protocol.agentic_rules": "released", "protocol.catalogue": "rules"}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the Workers' file is named from there


def values(path):
    sections = as_dict(load_config(path))
    return {
        f"{name}.{key}" if isinstance(section, dict) else name: value
        for name, section in sections.items()
        for key, value in (section.items() if isinstance(section, dict) else [("", section)])
    }


def test_every_switch_has_the_released_value_and_nothing_else_differs_but_lengths():
    paper, released = values(PAPER), values(RELEASED)
    changed = {key: value for key, value in released.items() if paper[key] != value}
    lengths = {key: changed.pop(key) for key in ("engine.lengths", "batch.length_buckets")}
    assert changed == SWITCHED and all(found == (2048, 4096, 8192, 22_528) for found in lengths.values())
    assert {key: released[key] for key in AS_BY_DEFAULT} == AS_BY_DEFAULT


def test_no_switch_of_protocol_or_credit_was_forgotten():
    known = {f"protocol.{name}" for name in SWITCHES} | {f"credit.{name}" for name in CREDIT_SWITCHES}
    assert known <= SWITCHED.keys() | AS_BY_DEFAULT.keys()


def test_batches_have_the_released_quotas():
    quotas = {quota.dataset: quota.counts for quota in load_config(RELEASED).data.mixture()}
    assert (quotas["super_gpqa"], quotas["sat_bench"], quotas["math"]) == ((7,), (6,), (4, 3))


def test_the_memory_that_is_said_is_what_is_computed():
    docstring = ast.get_docstring(ast.parse((ROOT / RELEASED).read_text()))
    assert f"{device_memory(load_config(RELEASED)).peak_bytes / GIB:.2f} GiB of 73.60" in docstring

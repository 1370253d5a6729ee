"""One options object for communicators, hooks, the backend and the benchmark."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest
from needs import has_extra

from topoplan.runtime.measuring.bench_options import BenchOptions
from topoplan.runtime.policy import Policy, make_policy
from topoplan.topo.errors import InputError

# What the extra has, or that it is not there.
COMPRESSED: list[tuple[dict[str, object], str]] = (
    [
        ({"compress": "fp6"}, "compress='fp6' (did you mean 'fp16'?): expected one of fp16, bf16"),
        ({"choose": "same-bits", "compress": "int8"}, "leave one of them out"),
    ]
    if has_extra("codecs")
    else [({"compress": "int8"}, "compress='int8': the extra 'codecs' is not in this copy")]
)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"choose": "fastest"}, "choose='fastest': expected one of race, model, plan, same-bits"),
        ({"executor": "mpi"}, "executor='mpi': expected one of auto, one-sided, point-to-point"),
        ({"on_fault": "retry"}, "on_fault='retry': expected one of raise, replan"),
        ({"on_slow": "stop"}, "on_slow='stop': expected one of warn, replan"),
        *COMPRESSED,
        ({"reduction": "never"}, "reduction='never': expected one of hops, once"),
        ({"reduction": "once"}, "reduction='once' without compress"),
        (
            {"choose": "same-bits", "on_slow": "replan"},
            "on_slow='replan' excludes choose='same-bits': a plan",
        ),
        (
            {"choose": lambda size, found: None, "on_slow": "replan"},
            "excludes a function for choose: it decides",
        ),
        ({"scratch": "much"}, "scratch='much': expected the bytes of scratch memory"),
        ({"least_bytes": -1}, "least_bytes=-1: expected 0 or more"),
        ({"time_limit_s": 0.0}, "time_limit_s=0: expected seconds above 0"),
        ({"helpers": "some"}, "helpers='some': expected rest, none, or a list of ranks"),
    ],
)
def test_an_error_names_the_rule_that_is_broken(options: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError) as raised:
        make_policy(None, **options)
    assert rule in str(raised.value) and "\n" not in str(raised.value)


def test_variables_decide_on_what_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "EXECUTOR": "one-sided",
        "ON_FAULT": "replan",
        "CACHE": str(tmp_path),
        "SCRATCH": "64M",
        "TIME_LIMIT": "7",
        "LEAST_BYTES": "512",
        "HELPERS": "2-3",
    }
    for name, value in told.items():
        monkeypatch.setenv(f"TOPOPLAN_{name}", value)
    policy = make_policy(None, executor=None, on_fault="")
    assert (policy.executor, policy.replans, policy.cache_folder) == ("one-sided", True, tmp_path)
    assert (policy.time_limit_s, policy.least_bytes, policy.helpers) == (7, 512, (2, 3))
    assert policy.scratch_bytes == 64 << 20
    given = make_policy(None, executor="auto", on_fault="raise", scratch=0, helpers="none")
    assert (given.executor, given.replans) == ("auto", False)
    assert (given.scratch_bytes, given.helpers) == (0, "none")
    monkeypatch.setenv("TOPOPLAN_EXECUTOR", "mpi")
    with pytest.raises(InputError, match="TOPOPLAN_EXECUTOR='mpi': expected one of auto"):
        Policy()


def test_options_are_given_in_one_place() -> None:
    policy = Policy(choose="model", timeout=timedelta(seconds=9))
    assert make_policy(policy, choose="race", executor=None, on_slow="warn") is policy
    with pytest.raises(InputError, match="policy and executor: options are given in one place"):
        make_policy(policy, executor="auto")
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_the_benchmark_makes_the_same_one() -> None:
    options = BenchOptions(choose="plan", timeout_s=9.0, executor="one-sided", on_slow="replan")
    assert options.policy == Policy(
        choose="plan",
        timeout=timedelta(seconds=9),
        executor="one-sided",
        on_slow="replan",
        on_fault="raise",
    )
    with pytest.raises(InputError, match="on_slow='replan' excludes choose='same-bits'"):
        BenchOptions(choose="same-bits", on_slow="replan")

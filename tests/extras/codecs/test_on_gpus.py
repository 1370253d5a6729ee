"""Encoded messages over NCCL, on the stand-in with NCCL's rules (nccl_standin.py)."""

from __future__ import annotations

import pytest
import torch
from nccl_standin import NcclStandIn
from unhurried import make_effort

from topoplan.runtime.candidates import Candidate
from topoplan.runtime.codec import find_codec
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.runners.programs import Messages
from topoplan.synth.ir.collective import Collective
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.topo.presets import preset


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_encoded_messages_keep_the_rules(codec: str) -> None:
    request = Request(Collective("allreduce", 4), preset("switch:4"), make_effort())
    schedule = STRATEGIES["one-shot"](request)[0]
    standin = NcclStandIn(4)
    given = torch.rand((4, 200), generator=torch.Generator().manual_seed(1))
    tensors, residuals = list(given.clone()), list(torch.zeros(4, 200))
    for rank in range(4):
        with standin.host_of(rank) as transport:
            sender = Messages(transport, None, find_codec(codec))
            buffers = Buffers(200, tensors[rank], tensors[rank], residual=residuals[rank])
            sender.run(Candidate(schedule), buffers)
    standin.play()
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    torch.testing.assert_close(tensors[0] + sum(residuals), given.sum(0))

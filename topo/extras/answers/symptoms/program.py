"""Symptoms of the program: ranks that call different things."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import NCCL

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "ranks-disagree",
        (
            When(
                (
                    r"Detected mismatch between collectives on ranks|Mismatched collective detected"
                    r"|collective mismatch error|Error type: (?:SIZE_OR_SYNTAX|COLLECTIVE_TYPE)_MIS"
                    r"|Communicator ranks have different \w+ operation counts"
                    r"|COLL_SIZE_MISMATCH",
                )
            ),
        ),
        "ranks call different collectives, in another order or with other sizes",
        "look for what differs by rank: branches, batches of different numbers, unused parameters, "
        "a rank that evaluates or saves alone; TORCH_DISTRIBUTED_DEBUG=DETAIL names the first call",
        "high",
        f"{NCCL}296",
    ),
    Symptom(
        "truncated",
        (When((r"message truncated ?: receiving \d+ bytes instead of \d+",)),),
        "two ranks expect messages of different sizes: they call with different sizes, or have "
        "other versions or settings of NCCL",
        "compare NCCL's version and NCCL_ variables of all hosts (BUFFSIZE, P2P_NET_CHUNKSIZE, "
        "ALGO), then the sizes of the call",
        "medium",
        f"{NCCL}1328",
    ),
    Symptom(
        "device-guessed",
        (
            When(
                (
                    r"devices? used by this process (?:are|is) currently unknown"
                    r"|Guessing device ID based on global rank",
                )
            ),
        ),
        "the program has not said which GPU a rank uses, and PyTorch guesses by its number; where "
        "that is another one, the barrier hangs",
        "call torch.cuda.set_device(LOCAL_RANK), and pass device_id to init_process_group",
        "low",
        "https://github.com/pytorch/pytorch/pull/134617",
    ),
    Symptom(
        "mnnvl-healthy",
        (
            When(
                (r"MNNVL (?:\S+ )?busId \S+ [^\n]{0,200}state 3 healthMask 0x(?:aa|0+)\b",),
                (r"Init COMPLETE", r"healthMask 0x(?!aa\b|0+\b)"),
            ),
        ),
        "the NVLink fabric of the GPUs is registered and well (state 3, all four faults false), so "
        "what stops the start is elsewhere",
        "see whether fewer ranks start (large NVLink domains crash in some versions), try "
        "NCCL_MNNVL_ENABLE=0, and look at IMEX and at the last line of each rank",
        "low",
        f"{NCCL}2186",
    ),
)

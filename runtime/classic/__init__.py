"""The classic systems for data-parallel training: each keeps the replicas of one model together in
its own way.

    from topoplan.runtime import classic

    system = classic.make("ring", model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for x, y in batches:
        loss(model(x), y).backward()
        system.step()                     # what the system does instead of optimizer.step(); it clears the gradients, too
    system.finish()                       # every worker ends with the same model
    print(system.bytes_sent, system.report())

With helpers, which are ranks that hold no model (`model` is None there):

    system = classic.make(name, None if rank in (2, 3) else model, optimizer, helpers=(2, 3))
    if system.is_helper:
        system.serve()                    # until all workers have called finish()
    else:
        ...                               # as above

`make(name, model, optimizer, *, group=None, plan=None, topology=None, helpers=(),
helper_devices=(), choose="race", timeout=...)` is collective: every rank of the default group calls
it, with the same arguments but for the model. `optimizer` is a function from parameters to a torch
optimizer, called where updates are made: on every worker, on the first one (gather), or, with flat
shards of the parameters, on the helpers (async-parameter-server; so only optimizers that treat
every element alike, such as SGD and Adam). Workers begin with the first worker's parameters and
buffers. Wrong use is one InputError, the same on every rank. `timeout` is the deadline of each
wait, also of a helper's for the next step.

A system has `name`, `promise` and `source` (one line each, for tables; `system_of(name)` is the
class), `is_helper`, `workers` and `helpers` (ranks of the group), `optimizer` (None where updates
are made elsewhere), `steps` (made here), `bytes_sent` (by this rank since `make` returned, payload
of messages to other ranks; None where it cannot be known) and `report()` (a flat dict of further
figures: shares, staleness ...). `finish` may send the model once more, which `bytes_sent` counts
from then on.

The names, in the order of `NAMES`:

- gather: gradients to the first worker, added there, updated parameters back (torch's DataParallel).
- ring: allreduce along weighted Hamiltonian cycles of `topology`, or of a plain ring (Baidu, Horovod).
- hierarchical: allreduce inside boxes, between them, inside; needs `topology` or `plan`.
- plan: allreduce by any `plan`.
- stock: the backend's own allreduce.
- parameter-server: synchronous; all workers and helpers add up a share each, which follows from a linear program (BytePS).
- async-parameter-server: helpers hold the parameters and apply each gradient as it comes (Downpour SGD).
- neighbours: parameters averaged with those of the neighbours on the topology's graph (D-PSGD).
- neighbours-8bit: the same, with 8-bit differences on the wire (DCD-PSGD, Bagua).
- bytegrad: allreduce of 8-bit gradients: scattered, added in full precision, gathered (Bagua's ByteGrad).
"""

from .base import Averaging, System
from .factory import NAMES, make, system_of

__all__ = ["NAMES", "Averaging", "System", "make", "system_of"]

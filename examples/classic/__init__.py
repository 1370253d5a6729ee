"""The classic systems for data-parallel training, which differ in how they synchronize replicas.

    from examples import classic    # from the root of topoplan's sources

    system = classic.make("ring", model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for x, y in batches:
        loss(model(x), y).backward()
        system.step()     # instead of optimizer.step(); it also clears the gradients
    system.finish()       # every worker ends with the same model
    print(system.bytes_sent, system.report())

With helpers, which are ranks that hold no model (`model` is None there):

    system = classic.make(name, None if rank in (2, 3) else model, optimizer, helpers=(2, 3))
    if system.is_helper:
        system.serve()    # until all workers have called finish()
    else:
        ...               # as above

`make(name, model, optimizer, *, group=None, plan=None, topology=None, helpers=(),
helper_devices=(), choose="race", timeout=...)` is collective: every rank of the default group calls
it, with the same arguments except for the model. `optimizer` is a function from parameters to a
torch optimizer. It is called where updates are made: on every worker, on the first one (gather), or
with flat shards of the parameters on the helpers (async-parameter-server, so only optimizers that
treat all elements equally work there, such as SGD and Adam). Workers start with the first worker's
parameters and buffers. Wrong use is one InputError, the same on every rank. `timeout` is the
deadline of each wait, including a helper's wait for the next step.

A system has `name`, `promise` and `source` (one line each, for tables; `system_of(name)` is the
class), `is_helper`, `workers` and `helpers` (ranks of the group), `optimizer` (None if updates are
made elsewhere), `steps` (made here), `bytes_sent` (payload of this rank's messages to others since
`make` returned; None if it cannot be known) and `report()` (a flat dict of further figures: shares,
staleness ...). `finish` may send the model once more, which counts in `bytes_sent`.

The names, in the order of `NAMES`:

- gather: gradients to the first worker, added there, updated parameters back (DataParallel).
- ring: allreduce along weighted Hamiltonian cycles of `topology`, or a plain ring (Baidu, Horovod).
- hierarchical: allreduce inside boxes, between them, inside; needs `topology` or `plan`.
- plan: allreduce by any `plan`.
- stock: the backend's own allreduce.
- parameter-server: synchronous; workers and helpers each add up a share, by a linear program
  (BytePS).
- async-parameter-server: helpers hold the parameters and apply gradients as they come (Downpour).
- neighbours: parameters averaged with the neighbours' on the topology's graph (D-PSGD).
- neighbours-8bit: the same, with 8-bit differences on the wire (DCD-PSGD, Bagua).
- bytegrad: allreduce of 8-bit gradients: scattered, added in full precision, gathered (Bagua).
"""

from .base import Averaging, System
from .factory import NAMES, make, system_of

__all__ = ["NAMES", "Averaging", "System", "make", "system_of"]

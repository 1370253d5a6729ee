"""The runner gathered: small allreduces by one allgather, whose rows each rank adds up in order."""

from torch.distributed import ReduceOp

from topoplan import Collective
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.runners.contract import Play, WholeCalls


class Gathered(WholeCalls):
    """It sends more bytes than schedules do, in fewer steps."""

    name, way, collectives, ops = "gathered", "gathered", ("allreduce",), (ReduceOp.SUM,)
    most_bytes = 1 << 16

    def make(self, buffers: Buffers) -> Play:
        """Return what carries out a call."""
        target, size, links = buffers.target, self.transport.size, self.transport.links
        rows = target.new_empty(size * target.numel())
        gather = links.make_stock(Collective("allgather", size), target, rows, ReduceOp.SUM)

        def add() -> None:
            target.zero_()
            for row in rows.view(size, -1):
                target.add_(row)
            self.sent_bytes += (size - 1) * target.nbytes

        return links.run_stock(gather, "an allreduce by gathering", add)

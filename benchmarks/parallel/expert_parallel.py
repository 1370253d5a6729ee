"""Expert parallelism: an expert on each rank, reached by alltoall; the router is replicated."""

import torch
import torch.distributed as dist
from loop import WIDTH, Block, Run
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

ROWS = 256


class Experts(nn.Module):
    """Send each row to the expert that the router chooses, up to an expert's capacity of rows."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.world, self.router, self.expert = world, nn.Linear(WIDTH, world), Block()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows' outputs; rows beyond an expert's capacity pass unchanged."""
        weight, chosen = self.router(rows).softmax(1).max(1)
        capacity = len(rows) // self.world
        place = (nn.functional.one_hot(chosen, self.world).cumsum(0) - 1).gather(1, chosen[:, None])
        fits = place[:, 0] < capacity
        slot = (chosen * capacity + place[:, 0])[fits]
        sent = rows.new_zeros(self.world * capacity, WIDTH).index_put((slot,), rows[fits])
        received = all_to_all_single(torch.empty_like(sent), sent)
        returned = all_to_all_single(torch.empty_like(sent), self.expert(received))
        added = rows.new_zeros(rows.shape)
        added[fits] = returned[slot] * weight[fits][:, None]
        return rows + added


run = Run()
model = Experts(run.world)
for parameter in model.router.parameters():
    dist.broadcast(parameter.detach(), 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def average_router() -> None:
    """Average the gradients of what is replicated."""
    for parameter in model.router.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(run.world)


run.train(lambda batch: model(batch).square().mean(), optimizer, rows=ROWS, average=average_router)
run.end(model.parameters())

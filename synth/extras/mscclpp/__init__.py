"""Execution plans of MSCCL++: schedules as the JSON that its executor runs.

The format is that of `src/core/executor/execution_plan.cc` of microsoft/mscclpp, which its DSL
writes too. Thread blocks of a GPU run their operations in order. A block puts data into a peer's
memory and signals over a channel, and a block of the peer waits for that. Blocks of one GPU that
depend on each other use semaphores. `nop` synchronizes the threads of a block.

Every message has a place of its own in the scratch buffer of its receiver, so nothing is
overwritten that is still to be read, and buffers may lie at different offsets on different GPUs.
Before its first operation a block tells its senders that it has begun, so that no data arrives
while the call before this one still reads scratch memory. A rank adds up what arrives in one step
in the order of ranks, so that all ranks end with the same bits.
"""

"""The lowering of a schedule to the instructions of one rank. Does not import torch.

A schedule says, for all ranks, which chunks of a buffer are sent when.
"""

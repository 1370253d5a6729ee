"""The lowering of a schedule to the instructions of one rank. Does not import torch."""

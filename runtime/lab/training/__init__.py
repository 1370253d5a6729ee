"""What the ranks of a run do: train one model on one dataset through each system, timing epochs and
counting bytes.
"""

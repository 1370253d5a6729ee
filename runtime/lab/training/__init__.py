"""What a rank of a run does: train the model through each system, timing epochs and counting
bytes.
"""

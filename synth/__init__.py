"""Which transfers, in which order: collectives, schedules, their verification, bounds, costs and
plans. No torch.
"""

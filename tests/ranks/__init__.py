"""What ranks do in tests, a subject a file: functions that `launch.run_ranks` calls once a rank, in
its process group.
"""

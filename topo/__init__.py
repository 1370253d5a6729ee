"""What the machine is: devices and links, presets, files of other tools, live probing. Never
imports torch.
"""

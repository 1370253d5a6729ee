"""Machine descriptions: devices, links, presets, other tools' file formats and live probing.

Nothing here imports torch.
"""

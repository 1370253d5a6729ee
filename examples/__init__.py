"""Programs that use topoplan as its users do; README.md lists them.

Those in folders are run from the root of the sources: `python -m examples.lab`.
"""

"""One of each that packages add to topoplan: see pyproject.toml, which names them."""

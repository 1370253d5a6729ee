"""The version of topoplan."""

VERSION = "0.1.0"

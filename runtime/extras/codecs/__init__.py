"""Compressed messages: fp16, bf16, fp8 and int8, for compress=NAME."""

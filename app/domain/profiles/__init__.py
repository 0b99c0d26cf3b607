"""Profiles of GPU work: where a training step goes, read from traces of PyTorch and Nsight Systems.

The contract (formats, classes, definitions) is docs/profiles.md.
"""

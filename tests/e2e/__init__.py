"""Tests of the whole: a real database, `penstock run` in a process of its own, real sinks."""

"""The embedded server and the sample workload behind `make demo` and the tests."""

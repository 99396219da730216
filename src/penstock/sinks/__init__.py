"""Where documents go: one module a kind of sink, each keeping the promises of `penstock.contracts.Sink`.

A sink knows its own settings and the values of the contract; it knows neither schemas nor deployments.
"""

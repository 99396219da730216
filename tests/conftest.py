"""Every test has the fixtures of tests/fixtures, one plugin a topic."""

pytest_plugins = [
    "tests.fixtures.strictness",
    "tests.fixtures.seeds",
    "tests.fixtures.servers",
    "tests.fixtures.spark",
    "tests.fixtures.opensearch",
    "tests.fixtures.opensearch_faults",
    "tests.fixtures.leftovers",
    "tests.fixtures.databases",
    "tests.fixtures.standins",
    "tests.fixtures.tls",
    "tests.fixtures.captures",
    "tests.fixtures.proxies",
    "tests.fixtures.standbys",
    "tests.fixtures.consumers",
    "tests.fixtures.trials",
    "tests.fixtures.commands",
    "tests.fixtures.streams",
    "tests.fixtures.followers",
    "tests.fixtures.documents.arena",
    "tests.fixtures.stories",
]

"""What spark-submit runs: the command line, with Spark's JVM there already."""

from penstock.cli.main import main

main()

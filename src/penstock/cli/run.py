"""`penstock run`: seed every index of a deployment, then keep it current.

Guarantees: what is wrong is one sentence before anything is changed; the first signal ends it after the batch under
way, and what stays behind is printed; a bar shows each seed and its time to go where a person looks, lines elsewhere.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import options
from penstock.cli.ending import Ending
from penstock.cli.options import SectionedCommand, logged, option
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.app.watching import Watching
    from penstock.config.deployment import Deployment
    from penstock.spark.pipeline import Pipeline
    from penstock.spark.spread import Session

log = logging.getLogger(__name__)


@click.command(cls=SectionedCommand, short_help="Seed the indexes, then keep them current.")
@options.config
@option("--locked", metavar="FILE", help="Run this lock file (made by penstock lock); any other file is refused.")
@option("--master", default="local[*]", show_default=True, help="The Spark master that does the work.")
@option(
    "--conf", multiple=True, metavar="NAME=VALUE", callback=options.settings, help="A Spark setting; may be repeated."
)
@option("--spread", is_flag=True, help="Run every batch as a Spark job; without it, small ones are done by the driver.")
@logged
def run(config: str | None, locked: str | None, master: str, conf: dict[str, str], spread: bool) -> int:
    """Fill every index of a deployment from the database, then follow each change, until a signal ends it.

    How far it is shows here, on the page whose address it prints, and to penstock status. When it is stopped its slot
    stays, and holds WAL on the server until the next run; penstock teardown removes it.

    What Spark itself has to say is in spark.log, in the state folder.
    """
    from penstock.app.allocation import share_memory
    from penstock.app.watching import Watching
    from penstock.spark.requirement import require_pyspark

    share_memory()  # before there are threads
    deployment = _read(config, locked)
    require_pyspark()  # before anything is asked of the server, or changed there
    with Watching(deployment) as watching:
        return _run(deployment, watching, (master, conf), spread)


def _run(deployment: Deployment, watching: Watching, spark: tuple[str, dict[str, str]], spread: bool) -> int:
    from penstock.app.running import prepare

    with Ending() as ending:
        try:
            with ending.interruptible():  # it may wait for long: for another process, for a sink
                prepared = prepare(deployment, watching.pause)
        except KeyboardInterrupt:
            _tell_it_never_began(deployment)
            return 0
        folder = tempfile.mkdtemp(prefix="penstock-run-")
        try:
            _work(prepared, watching, ending, _start(prepared, spark, os.path.join(folder, "batches.sock"), spread))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            watching.close()
            prepared.end()
    _tell_what_stays(deployment)
    return 0


def _work(prepared: Prepared, watching: Watching, ending: Ending, pipeline: Pipeline) -> None:
    """Until somebody ends it, in good order."""
    from penstock.app.commands import commands
    from penstock.app.heartbeat import beating
    from penstock.ops.control import Control

    ending.when_requested(pipeline.stop)
    deployment = prepared.deployment
    state = Path(deployment.locate(deployment.state))
    control = Control(state, watching.attach(prepared, pipeline, commands(prepared, pipeline)))
    _tell_where(state, watching.page)
    try:
        with beating(prepared.settings, deployment.source.heartbeat_s):
            _show(pipeline)
    except Exception as error:
        if isinstance(error, PenstockError) or not ending.requested.is_set():
            raise
        # A service manager signals every process of a service, and Spark's was quicker to end than the batch.
        log.debug("Spark ended before the batch under way", exc_info=error)
        click.echo("Spark was ended, too: the batch under way is done again by the next run.", err=True)
    finally:
        control.close()


def _read(config: str | None, locked: str | None) -> Deployment:
    """By either flag; the one that was typed wins over a variable that stands for the other."""
    if config and locked:
        if options.was_typed("config") == options.was_typed("locked"):
            raise ConfigError("--locked and --config both name the deployment", hint="Leave one of them out.")
        locked = locked if options.was_typed("locked") else None
    if locked:
        from penstock.config.lock import read_lock

        return read_lock(Path(locked))
    from penstock.config.file import read_deployment

    return read_deployment(config)


def _start(prepared: Prepared, where: tuple[str, dict[str, str]], socket: str, spread: bool) -> Pipeline:
    from penstock.app.running import pipeline
    from penstock.spark import session
    from penstock.spark.session import LOG_FILE
    from penstock.spark.settings import ENGINE_DRIVER

    master, conf = where
    log_file = Path(prepared.deployment.locate(prepared.deployment.state), LOG_FILE)

    def spark() -> Session:
        return session("penstock", master=master, conf={**ENGINE_DRIVER, **conf}, log_file=log_file)

    return pipeline(prepared, spark, socket, spread=spread, one_machine=master.startswith("local"))


def _show(pipeline: Pipeline) -> None:
    """Run it, and show how far it is."""
    from penstock.cli.run_display import Display

    done = threading.Event()
    display = threading.Thread(target=Display(pipeline.report).show, args=(done,), daemon=True)
    display.start()
    try:
        pipeline.run()
    finally:
        done.set()
        display.join(timeout=5)


def _tell_where(state: Path, page: str) -> None:
    """Where the page is; a link into it only where a person looks, since what is printed elsewhere is kept."""
    from penstock.app.watching import page_link

    if not page:
        return
    said = "penstock status prints a link into it"
    if sys.stderr.isatty():
        try:
            page, said = page_link(state, page), "this link lets one browser in, once"
        except PenstockError as error:  # which is no reason not to run
            said = f"no link into it: {error.message}"
    click.echo(f"The page: {page} ({said})", err=True)


def _tell_it_never_began(deployment: Deployment) -> None:
    click.echo(
        f"Stopped before it was at work. Slot {deployment.source.slot}, if there is one, holds WAL until the next run.",
        err=True,
    )


def _tell_what_stays(deployment: Deployment) -> None:
    source = deployment.source
    names = ", ".join(f"{deployment.prefix}{index.name}" for index in deployment.enabled)
    click.echo(
        f"Stopped. What stays: slot {source.slot} (it holds WAL until the next run), publication {source.publication},"
        f" indexes {names}, state in {deployment.locate(deployment.state)}.",
        err=True,
    )

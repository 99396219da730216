"""Penstock: Postgres row changes on Spark."""

from penstock.model import Lsn, ReplicationConfig, SslMode, TlsConfig

__version__ = "0.1.0"
__all__ = ["Lsn", "ReplicationConfig", "SslMode", "TlsConfig", "__version__"]

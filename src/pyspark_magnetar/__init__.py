"""Makes ``format("magnetar")`` known to Spark, which imports every ``pyspark_*`` module and takes
its ``DefaultSource``. Keep the import light: an error here would disable all such modules."""

from magnetar.pipeline.source import MagnetarDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""The metrics of one job as its log's records add up to them."""

from rca.ledger.ledger import Ledger, Options
from rca.ledger.values import Sample

__all__ = ["Ledger", "Options", "Sample"]

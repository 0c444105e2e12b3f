"""Rule-based anomaly and root-cause engine for large-scale model training."""

__version__ = "0.1.0"

"""What training logs and GPUs say, as metrics for Prometheus. Heavy modules are imported by who needs them."""

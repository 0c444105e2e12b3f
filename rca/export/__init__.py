"""What other systems read: rules for Prometheus, routes for Alertmanager, dashboards for Grafana."""

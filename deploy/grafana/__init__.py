"""Dashboards as typed code; the JSON that Grafana loads is made from it and kept beside it."""

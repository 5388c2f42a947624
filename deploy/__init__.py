"""What it takes to run the service beside others: configuration, rules, dashboards."""

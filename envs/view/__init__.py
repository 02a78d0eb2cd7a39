"""What a router may know: ledger, cache index, history, hash ring, telemetry."""

"""Programs as StableHLO for others."""

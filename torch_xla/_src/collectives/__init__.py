"""Exchanges among the replicas of a job, and what is built of them."""

"""Consumers: each performs one kind of effect for the jobs of an outbox."""

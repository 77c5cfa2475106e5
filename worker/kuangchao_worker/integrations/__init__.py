"""Adapters by which other trainers report: each module needs its trainer's package, and nothing else imports it."""

"""Plug-ins: their codecs and what puts them between layers."""

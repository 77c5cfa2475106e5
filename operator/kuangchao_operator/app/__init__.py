"""The operator's process: settings, composition, entry point. The only place that knows every part."""

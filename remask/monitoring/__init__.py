"""A stream of texts with times -> shares of classes by window, and an alarm where one of them shifts."""

"""fastload."""

"""Pictures of the page, as inline SVG."""

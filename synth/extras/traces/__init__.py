"""When the transfers of a schedule begin and end: Chrome traces, and timelines as SVG."""

"""Pictures of schedules and plans as text: SVG for pages, Chrome traces for Perfetto."""

"""Pages for people: server-made HTML and SVG, no script, nothing from other hosts."""

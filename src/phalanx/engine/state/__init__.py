"""Hold the engine's state as columns, tables and a journal. This package makes no decisions and knows no plugin."""

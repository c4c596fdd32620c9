"""What the engine knows, as columns, tables and a journal. Decides nothing and knows no plugin."""

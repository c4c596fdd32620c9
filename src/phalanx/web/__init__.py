"""The dashboard: one page that shows what the scheduler knows. Reads the engine and asks it; never writes anywhere."""

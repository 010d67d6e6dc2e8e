"""Pure functions from arrays and tables to plotly or matplotlib figures."""

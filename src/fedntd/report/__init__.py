"""From records to tables, figures and one HTML page."""

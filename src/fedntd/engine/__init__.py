"""How clients are trained and models tested: one by one, or all of a cohort in one compiled step."""

"""From one run to thousands: what a sweep asks for, how its runs are trained, and what is shown meanwhile."""

"""Jobs: what a data team runs, schedules and changes. Each is a function of typed options."""

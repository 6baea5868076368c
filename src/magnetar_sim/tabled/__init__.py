"""Ring 2: tables that take topics, the jobs that fill them, and brokers that read them back."""

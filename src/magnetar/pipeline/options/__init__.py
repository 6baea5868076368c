"""What a query says: the data source's options, parsed once, with clear refusals."""

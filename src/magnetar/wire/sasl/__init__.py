"""SASL: the server's side of PLAIN, SCRAM and OAUTHBEARER, whatever carries their messages."""

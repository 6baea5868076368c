"""The ``magnetar`` command: servers, and a client of REST and of the message protocol.

Exit codes: 0 well, 1 failed, 2 wrongly used, 130 interrupted. Results go to standard output,
everything else to standard error. An error is one clear line, never a traceback
(``MAGNETAR_DEBUG=1`` shows it).
"""

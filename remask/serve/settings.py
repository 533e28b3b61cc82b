"""What a server takes on and how long it waits, without torch. All of them are limits, none is a design decision."""

from __future__ import annotations

from remask.config import Config, setting


class ServeSettings(Config):
    """Limits of one server."""

    max_batch_tokens: int = setting(8_192, "tokens that go through a model at once, padding included", ge=64)
    max_batch_ms: float = setting(
        150.0, "a batch holds no more than takes about this long, so that none waits for long", gt=0
    )
    max_wait_ms: float = setting(2.0, "how long a request waits for others to share its batch", ge=0)
    max_queue_requests: int = setting(1_000, "requests that may wait; more are refused at once (429)", ge=1)
    max_queue_tokens: int = setting(262_144, "tokens that may wait, as estimated from the texts' lengths", ge=1)
    max_delay_s: float = setting(10.0, "a request that would wait longer than this is refused at once (429)", gt=0)
    max_request_tokens: int = setting(131_072, "tokens of one request, as estimated", ge=1)
    timeout_s: float = setting(60.0, "after this long a request that is not answered gets 504", gt=0)
    header_timeout_s: float = setting(10.0, "how long a client may take to send a request's head", gt=0)
    body_timeout_s: float = setting(20.0, "how long a client may take to send a request's body", gt=0)
    write_timeout_s: float = setting(30.0, "how long a client may take to read what was sent", gt=0)
    drain_s: float = setting(30.0, "how long requests that came before a signal may take to end", gt=0)
    stall_s: float = setting(4.0, "an engine that shows no sign of life for this long is ended and started again", gt=0)
    max_connections: int = setting(2_000, "open connections; more are closed at once", ge=1)
    max_loaded_steps: int = setting(2, "training steps kept in memory besides the models themselves", ge=1)
    threads: int = setting(0, "threads of the engine; 0: as many as torch takes", ge=0)
    hosts: tuple[str, ...] = setting((), "names besides the address itself by which the server may be asked (Host)")

"""Which addresses need a token."""

from __future__ import annotations

import pytest

from remask.errors import UnavailableError, UsageError
from remask.serve.server import Address, bind, check_address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    check_address(Address(host, 0, None))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_anything_else_does(host: str) -> None:
    with pytest.raises(UsageError, match="--token"):
        check_address(Address(host, 0, None))
    check_address(Address(host, 0, "secret"))


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak"])
def test_a_token_is_one_word(token: str) -> None:
    with pytest.raises(UsageError, match="one word"):
        check_address(Address("127.0.0.1", 0, token))


def test_a_port_in_use_is_said_at_once() -> None:
    first = bind(Address("127.0.0.1", 0, None))
    first.listen()
    try:
        with pytest.raises(UnavailableError, match="choose another --port"):
            bind(Address("127.0.0.1", first.getsockname()[1], None))
    finally:
        first.close()

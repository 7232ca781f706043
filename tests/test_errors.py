"""A refusal is one sentence behind one traceback, and the user's own error, where there is one."""

import pytest

from netsplit.errors import ConfigError, NetSplitError, plain_errors


def users() -> None:
    raise ValueError("of the user's")


@plain_errors
def refusing(function: object) -> None:
    try:
        try:
            function()  # type: ignore[operator]
        except Exception as error:
            raise NetSplitError("within") from error
    except NetSplitError as error:
        raise ConfigError("refused") from error


def test_only_the_users_own_error_is_told_too() -> None:
    with pytest.raises(ConfigError) as told:
        refusing(users)
    assert str(told.value.__cause__) == "of the user's"
    with pytest.raises(ConfigError) as told:
        refusing(lambda: exec("raise ValueError"))
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__

"""All that the doctor looks at, in the order in which one thing needs another."""

from __future__ import annotations

__all__ = ["examine"]

from collections.abc import Callable, Iterator

from tmifpe.doctor.devices import find_devices, find_python
from tmifpe.doctor.diagnosis import Diagnosis
from tmifpe.doctor.packages import find_packages
from tmifpe.doctor.self_test import self_test
from tmifpe.doctor.store_health import find_store


def examine(store: str = "tmifpe-runs") -> Iterator[Diagnosis]:
    """The diagnoses one after the other, as soon as each is known; nothing is changed by it.

    Without its packages tmifpe cannot look any further: then devices, store and self-test are `not tried`.

    >>> next(examine()).name
    'tmifpe'
    """
    yield from find_python()
    broken: list[str] = []
    for diagnosis in find_packages():
        yield diagnosis
        broken += [diagnosis.name] * (diagnosis.about == "package" and diagnosis.state == "broken")
    rest: dict[str, Callable[[], Iterator[Diagnosis]]] = {
        "device": find_devices,
        "store": lambda: find_store(store),
        "self-test": lambda: iter([self_test()]),
    }
    for about, look in rest.items():
        if broken:
            yield Diagnosis(about, "", "not tried", f"needs {', '.join(broken)}")
        else:
            yield from look()

"""A result as JUnit XML, which every CI can read."""

from __future__ import annotations

__all__ = ["junit_error", "junit_xml"]

import re
from xml.etree import ElementTree as ET

from tmifpe.report.broken import describe
from tmifpe.report.gates import Gates
from tmifpe.run.result import Result

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: Result, gates: Gates = Gates()) -> str:  # noqa: B008 - frozen
    """A test case per gate: the robust accuracy, with what was broken in its output, and those that were asked for."""
    spec, cases = result.spec, gates.cases(result) if result.complete else []
    lost = result.missing > 0  # no number, and so neither passed nor failed
    failures = sum(not case.passed for case in cases)
    suite = _suite(len(cases) + lost, failures, errors=int(lost), seconds=result.seconds)
    properties = ET.SubElement(suite, "properties")
    for name, value in result.to_json().items():
        ET.SubElement(properties, "property", {"name": name, "value": _legal(str(value))})
    if lost:
        suite.append(_case(spec.model, "robust accuracy", str(result), "error"))
    for number, case in enumerate(cases):
        title = f"{case.name} on {spec.data}, {spec.threat.norm} eps {spec.threat.eps:.6g}" if not number else case.name
        text = describe(result, gates.robust) if not number else case.said
        suite.append(_case(spec.model, title, text, "" if case.passed else "failure"))
    return _written(suite)


def junit_error(model: str, said: str) -> str:
    """For a run that ended without a result: one test case with an error."""
    suite = _suite(1, errors=1)
    suite.append(_case(model, "robust accuracy", said, "error"))
    return _written(suite)


def _suite(tests: int, failures: int = 0, errors: int = 0, seconds: float = 0.0) -> ET.Element:
    counts = {"tests": str(tests), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    return ET.Element("testsuite", {"name": "tmifpe", **counts, "time": f"{seconds:.3f}"})


def _case(model: str, name: str, text: str, ended: str) -> ET.Element:
    """`ended`: failure, error, or nothing if it passed."""
    case = ET.Element("testcase", {"classname": _legal(f"tmifpe.{model}"), "name": _legal(name)})
    text = _legal(text)
    if ended:
        ET.SubElement(case, ended, {"type": "tmifpe", "message": text.partition("\n")[0]}).text = text
    else:
        ET.SubElement(case, "system-out").text = text
    return case


def _written(suite: ET.Element) -> str:
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _legal(text: str) -> str:
    """XML has no way at all to write most control characters, escaped or not."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)

"""A result as JUnit XML, which every CI can read."""

from __future__ import annotations

__all__ = ["junit_xml"]

import re
from xml.etree import ElementTree as ET

from tmifpe.report.broken import describe
from tmifpe.run.result import Result

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: Result, at_least: float | None = None, strict: bool = False) -> str:
    """A test case for the robust accuracy, failed if it is below `at_least`, with what was broken in its output;
    if `strict`, another one for the flags, failed if there are any."""
    failed = at_least is not None and not result.missing and result.robust_accuracy < at_least
    flagged = strict and bool(result.flags)
    spec, seconds = result.spec, f"{result.seconds:.3f}"
    counts = {"tests": str(1 + strict), "failures": str(failed + flagged), "skipped": "0"}
    counts["errors"] = str(int(result.missing > 0))
    suite = ET.Element("testsuite", {"name": "tmifpe", **counts, "time": seconds})
    properties = ET.SubElement(suite, "properties")
    for name, value in result.to_json().items():
        ET.SubElement(properties, "property", {"name": name, "value": _legal(str(value))})
    title = f"robust accuracy on {spec.data}, {spec.threat.norm} eps {spec.threat.eps:.6g}"
    if result.missing:  # no number, and so neither passed nor failed
        suite.append(_case(spec.model, title, str(result), kind="error"))
    else:
        suite.append(_case(spec.model, title, describe(result, at_least), "failure" if failed else ""))
    if strict:
        lines = [f"{flag.name}: {flag.seen} {flag.advice}" for flag in result.flags]
        suite.append(
            _case(spec.model, "no flags", "\n".join(lines) or "no flag was raised", "failure" if flagged else "")
        )
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _case(model: str, name: str, text: str, kind: str) -> ET.Element:
    """Passed, or of the kind `failure` or `error`."""
    case = ET.Element("testcase", {"classname": _legal(f"tmifpe.{model}"), "name": _legal(name)})
    text = _legal(text)
    if kind:
        ET.SubElement(case, kind, {"type": "tmifpe", "message": text.partition("\n")[0]}).text = text
    else:
        ET.SubElement(case, "system-out").text = text
    return case


def _legal(text: str) -> str:
    """XML has no way at all to write most control characters, escaped or not."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)

"""A result as JUnit XML, which every CI can read."""

from __future__ import annotations

__all__ = ["junit_xml"]

import re
from xml.etree import ElementTree as ET

from tmifpe.evaluation.result import Result
from tmifpe.report.broken import describe

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: Result, at_least: float | None = None) -> str:
    """One test case: the robust accuracy, failed if it is below `at_least`; what was broken is in its output."""
    failed = at_least is not None and result.robust_accuracy < at_least
    spec, seconds = result.spec, f"{result.seconds:.3f}"
    counts = {"tests": "1", "failures": str(int(failed)), "errors": "0", "skipped": "0", "time": seconds}
    suite = ET.Element("testsuite", {"name": "tmifpe", **counts})
    properties = ET.SubElement(suite, "properties")
    for name, value in result.to_json().items():
        ET.SubElement(properties, "property", {"name": name, "value": _legal(str(value))})
    title = f"robust accuracy on {spec.data}, {spec.threat.norm} eps {spec.threat.eps:.6g}"
    case = ET.SubElement(
        suite, "testcase", {"classname": _legal(f"tmifpe.{spec.model}"), "name": _legal(title), "time": seconds}
    )
    text = _legal(describe(result, at_least))
    if failed:
        failure = ET.SubElement(case, "failure", {"type": "RobustAccuracy", "message": text.partition("\n")[0]})
        failure.text = text
    else:
        ET.SubElement(case, "system-out").text = text
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _legal(text: str) -> str:
    """XML has no way at all to write most control characters, escaped or not."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)

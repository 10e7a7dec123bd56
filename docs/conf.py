"""The documentation site: `make docs`. Nothing is fetched, notebooks are executed, and every warning is an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]
# Kernels of notebooks are processes of their own.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(
    os.pathsep
)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models of the notebooks are tiny: threads would only wait

from tmifpe.version import __version__  # noqa: E402

project, author, release = "tmifpe", "the tmifpe authors", __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "tmifpe_site"]
exclude_patterns = ["_ext", "data"]
nitpicky = True
# Types of other packages, whose references this site does not have: it is built without a network.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|np|numpy|npt|collections|pathlib|typing|typing_extensions|enum|abc)\..*"),
    ("py:.*", r"(Tensor|Module|NDArray|Path|Any|Sequence|Mapping|Callable|Iterator|Iterable|Unpack)"),
    # Types of the package that are no part of its reference: what they stand for is said in words.
    ("py:.*", r"(Model|AnyColumn|AscentOptions|Recorder)"),
    ("py:.*", r"tmifpe\.(run|attacks|losses|core|engines|store|evaluation|audits|models|data|norms|compat)\..*"),
]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_default_options = {"undoc-members": True, "exclude-members": "__init__, __post_init__, __new__"}
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
default_role = "literal"

html_theme = "pydata_sphinx_theme"
html_title = "tmifpe"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_context = {"default_mode": "auto"}
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "header_links_before_dropdown": 5,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
    "show_toc_level": 2,
}

"""How Sphinx builds the site. It runs where stage.py has put all pages, build/site-source; paths are of that folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from oneclick import repository as known

project = "zerolab"
author = "zerolab contributors"
copyright = "zerolab contributors"
extensions = ["myst_nb", "sphinx_design", "sphinx_copybutton", "mathml", "terms", "social"]
exclude_patterns = ["_*", "**/.ipynb_checkpoints"]

myst_enable_extensions = ["dollarmath", "colon_fence", "html_image", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
nb_execution_mode = "off"
nb_code_prompt_show, nb_code_prompt_hide = "Show the {type}", "Hide the {type}"
nb_merge_streams = True
nb_render_markdown_format = "myst"
html_math_renderer = "mathml"

repository = known()
"""Where the sources lie, as OWNER/NAME on GitHub; without it the site links to its own copies."""
html_theme = "sphinx_book_theme"
html_title = "zerolab"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_extra_path = ["_extra"]
html_css_files = ["site.css", "living.css"]
html_js_files = [("living.js", {"type": "module"})]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "home_page_in_toc": True,
    "navbar_persistent": [],
    **({"repository_url": f"https://github.com/{repository}", "use_repository_button": True} if repository else {}),
}

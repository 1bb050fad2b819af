"""The site: what its pages are made of."""

import ast

import nbformat

import hetero_lab as hl
from docs.course import NOTEBOOKS, OUTPUTS, WIDGETS, figure_html, store_outputs, with_outputs
from docs.links import broken_links
from docs.pages import SPACES, TASKS, groups


def test_outputs_follow_the_text_of_a_cell(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.course.OUTPUTS", tmp_path)
    cells = [nbformat.v4.new_code_cell(source) for source in ("1 + 1", "2 + 2")]
    for cell, text in zip(cells, ("2", "4"), strict=True):
        cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": text})]
    store_outputs(nbformat.v4.new_notebook(cells=cells), "sum")
    changed = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in ("2 + 2", "1 + 2")]
    )
    nbformat.write(changed, tmp_path / "sum.ipynb")
    shown = with_outputs(tmp_path / "sum.ipynb").cells
    assert [[o.data["text/plain"] for o in cell.outputs] for cell in shown] == [["4"], []]


def test_every_figure_of_the_course_is_shown():
    recorded = {path.name.partition(".")[0] for path in OUTPUTS.glob("*.json.xz")}
    n_figures = 0
    for name in sorted(recorded):
        notebook = NOTEBOOKS / f"{name}.ipynb"
        for cell in with_outputs(notebook).cells:
            if cell.cell_type != "code" or cell.source.startswith("%%"):
                continue
            lines = ["" if x.startswith(("%", "!")) else x for x in cell.source.splitlines()]
            body = ast.parse("\n".join(lines)).body
            last = ast.unparse(body[-1]) if body else ""
            if not last.startswith("hl.views.") or last.startswith("hl.views.page"):
                continue
            n_figures += 1
            shown = [output.get("data", {}) for output in cell.outputs]
            drawn = ['class="figure"' in d.get("text/html", "") or "image/png" in d for d in shown]
            assert any(drawn), f"{name} shows no figure: python -m docs.record {name[:2]}"
    assert n_figures > 15
    assert recorded <= {path.stem for path in NOTEBOOKS.glob("*.ipynb")}


def test_only_a_widget_is_said_to_be_one():
    widgets = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in with_outputs(path).cells:
            shown = [output.get("data", {}) for output in cell.get("outputs", [])]
            if any(data.get("text/markdown") in WIDGETS.values() for data in shown):
                widgets.append(cell.source.splitlines()[0])
    assert widgets
    assert all("AffinityTweaker(" in line or "SweepExplorer(" in line for line in widgets)


def test_a_figure_cannot_end_its_script():
    assert figure_html('{"text": "</script><b>"}').count("</script>") == 1


def test_every_public_name_is_in_the_reference():
    documented = [name for names in groups().values() for name in names]
    assert sorted(documented) == sorted(set(hl.__all__) - set(SPACES))
    by_task = [page for pages in TASKS.values() for page in pages]
    assert sorted(by_task) == sorted([*groups(), *SPACES.values(), "Command line"])


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="c.html">c</a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="https://example.org">e</a>')
    assert sorted(broken_links(tmp_path)) == ["a.html: b.html#here", "a.html: c.html"]

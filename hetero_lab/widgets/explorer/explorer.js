// Loads Plotly for the figures, beside anywidget, which gives a script two seconds to start.
function load(source) {
  if (globalThis.Plotly?.react) return;
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  document.head.append(script);
}

// Shortcuts of JupyterLab and Notebook 7 take keys that lists need; the latter take them on their
// way down, unless their target is marked.
function mark(el, patience) {
  const box = el.closest(".hetero-lab-explorer");
  if (box) {
    box.addEventListener("focusin", ({ target }) => target.setAttribute("data-lm-suppress-shortcuts", ""));
    box.addEventListener("keydown", (event) => event.stopPropagation());
  } else if (patience > 0) setTimeout(() => mark(el, patience - 1), 50);
}

export default {
  initialize({ model }) { load(model.get("plotly")); },
  render({ el }) { el.style.display = "none"; mark(el, 100); },
};

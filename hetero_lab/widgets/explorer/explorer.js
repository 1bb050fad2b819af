// Loads Plotly for the figures, beside anywidget, which gives a script two seconds to start.
function load(source) {
  if (globalThis.Plotly?.react) return;
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  document.head.append(script);
}

// JupyterLab's shortcuts take the arrow keys, which lists need.
function mark(el, patience) {
  const box = el.closest(".hetero-lab-explorer");
  if (box) {
    box.setAttribute("data-lm-suppress-shortcuts", "true");
    box.addEventListener("keydown", (event) => event.stopPropagation());
  } else if (patience > 0) setTimeout(() => mark(el, patience - 1), 50);
}

export default {
  initialize({ model }) { load(model.get("plotly")); },
  render({ el }) { el.style.display = "none"; mark(el, 100); },
};

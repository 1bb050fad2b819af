// A plotly figure that is updated in place. Explorer.js brings Plotly.

async function plotly() {
  while (!globalThis.Plotly?.react) await new Promise((go) => setTimeout(go, 20));
  return globalThis.Plotly;
}

async function render({ model, el }) {
  const Plotly = await plotly();
  const place = el.appendChild(document.createElement("div"));
  let drawn = "", room = 0, timer;

  function draw() {
    const json = model.get("drawn"), width = el.clientWidth;
    place.hidden = !json;
    if (!width || drawn === width + json) return;  // text in a closed tab cannot be measured
    drawn = width + json;
    if (model.get("width") !== width) {
      model.set("width", width);
      model.save_changes();
    }
    if (!json) return;
    const { data, layout } = JSON.parse(json);
    layout.width ??= width;
    const isFirst = !place.on;
    Plotly.react(place, data, layout, { displaylogo: false });
    if (isFirst) place.on("plotly_click", ({ points: [point], event }) => {
      if (point.customdata !== undefined)
        model.send({ chosen: point.customdata, shift: event.shiftKey });
    });
  }

  const observer = new ResizeObserver(() => {
    clearTimeout(timer);
    timer = setTimeout(draw, room && el.clientWidth ? 120 : 0);  // a window is resized in steps
    room = el.clientWidth;
  });
  observer.observe(el);
  model.on("change:drawn", draw);
  return () => {
    observer.disconnect();
    model.off("change:drawn", draw);
    Plotly.purge(place);
  };
}
export default { render };

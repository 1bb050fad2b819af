// Draws each figure from the JSON beside it, once its page has its width.
function draw(place) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  const config = { responsive: true, displaylogo: false };
  return Plotly.newPlot(place, figure.data, figure.layout, config);
}

// An explorer shows what is for the choices made; a click on a point chooses the placement A.
function explore(explorer) {
  const choices = [...explorer.querySelectorAll("select")];
  const show = () => Promise.all([...explorer.querySelectorAll("[data-when]")].map(async (part) => {
    const when = JSON.parse(part.dataset.when);
    part.hidden = choices.some((c) => c.name in when && String(when[c.name]) !== c.value);
    if (part.hidden || part.dataset.drawn || !part.querySelector("script")) return;
    part.dataset.drawn = true;
    const plot = await draw(part);
    if (!("axes" in when)) return;
    plot.on("plotly_click", ({ points: [point] }) => {
      if (point.customdata === undefined) return;
      explorer.querySelector("select[name=A]").value = point.customdata;
      show();
    });
  }));
  choices.forEach((choice) => choice.addEventListener("change", show));
  return show();
}

// What scrolls can be reached with the keyboard.
function makeReachable() {
  const boxes = "pre, .table-wrapper, .output, .figure, table.hetero-lab";
  document.querySelectorAll(boxes).forEach((box) => {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
}

window.addEventListener("load", async () => {
  document.querySelectorAll("[role=heading]:not([aria-level])")
    .forEach((heading) => heading.setAttribute("aria-level", "2"));
  await Promise.all([
    ...[...document.querySelectorAll(".figure:not([data-when])")].map(draw),
    ...[...document.querySelectorAll(".explorer")].map(explore),
  ]);
  makeReachable();
  document.documentElement.dataset.drawn = true;
});
window.addEventListener("resize", makeReachable);

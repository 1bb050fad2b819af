// Draws each figure from the JSON beside it, once its page has its width.
window.addEventListener("load", () => {
  const config = { responsive: true, displaylogo: false };
  document.querySelectorAll(".figure > script").forEach((script) => {
    const figure = JSON.parse(script.textContent);
    Plotly.newPlot(script.parentElement, figure.data, figure.layout, config);
  });
});

// Numbers, findings, hotspots and history of the affinity tweaker. All texts are set as text.

const SVG = "http://www.w3.org/2000/svg";

function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const cell = (text, kind = "") => html("td", kind ? { class: kind } : {}, text);

function table(heads, rows, label) {
  const head = heads.map(([text, kind]) =>
    text ? html("th", { scope: "col", ...(kind ? { class: kind } : {}) }, text) : html("td"));
  return html("table", { "aria-label": label }, html("thead", {}, html("tr", {}, ...head)),
    html("tbody", {}, ...rows));
}

function numbers(model) {
  const rows = model.get("numbers").map(row => html("tr", { "data-hl": row.key },
    html("th", { scope: "row" }, row.name), cell(row.now, "hl-number hl-now"),
    cell(row.automatic, "hl-number")));
  const heads = [[""], ["now", "hl-number"], ["automatic", "hl-number"]];
  const notes = model.get("note") ? [html("p", { class: "hl-quiet" }, model.get("note"))] : [];
  return [html("h4", {}, "Without compiling"), table(heads, rows, "Numbers"), ...notes];
}

// Buttons of rows that are of the placement before do nothing.
const asking = (model, isOld) => (text, title, message) => {
  const button = html("button", { type: "button", title }, text);
  button.addEventListener("click", () => model.send(message));
  button.disabled = isOld;
  return button;
};

function findings(model) {
  const found = model.get("findings"), ask = asking(model, model.get("is_looking"));
  const row = (f, index, lead) => html("tr", {}, html("td", { class: "hl-buttons" },
    ask("Select", "Select the ops of this finding", { do: "show", index }),
    ...(f.fix ? [" ", ask("Apply", "Do what is advised", { do: "fix", index })] : [])),
  html("td", {}, ...lead, f.finding, html("div", { class: "hl-quiet" }, f.advice)));
  // One line for all findings of a rule and a cause: the worst; a button shows the others.
  const groups = Object.values(Object.groupBy(found.map((f, index) => ({ f, index })),
    ({ f }) => `${f.rule}\n${f.cause}`));
  const rowsOf = ([{ f, index }, ...others]) => {
    const more = others.map(other => row(other.f, other.index, []));
    const many = more.length ? ` × ${more.length + 1}` : "";
    const first = row(f, index, [html("strong", {}, `${f.severity}: ${f.rule}${many}`), " "]);
    if (!more.length) return [first];
    const button = html("button", { type: "button", "aria-expanded": "false" }, `${more.length} more like it`);
    for (const one of more) one.hidden = true;
    button.addEventListener("click", () => {
      for (const one of more) one.hidden = !one.hidden;
      button.setAttribute("aria-expanded", String(!more[0].hidden));
    });
    first.lastChild.append(html("div", {}, button, html("span", { class: "hl-quiet" }, ` ${f.cause}`)));
    return [first, ...more];
  };
  const n = model.get("n_findings"), unseen = n - found.length;
  const kinds = groups.length < found.length ? ` in ${groups.length} ${groups.length === 1 ? "group" : "groups"}` : "";
  const title = model.get("is_looking") ? "Findings: looking…" : `Findings: ${n}${kinds}`;
  const head = html("h4", { "data-hl": "findings" }, title);
  if (!n) return [head];
  return [head, html("div", { class: "hl-list", tabindex: "0",
    role: "region", "aria-label": "Findings" },
  table([["do"], ["finding, and what to do"]], groups.flatMap(rowsOf), "Findings"),
  ...(unseen > 0 && !model.get("is_looking")
    ? [html("p", { class: "hl-quiet" }, `and ${unseen} lesser ones: tweaker.findings`)] : []))];
}

function hotspots(model) {
  const { verdict, notes, n, best, devices, rows, is_old: isOld } = model.get("hotspots");
  if (!n) return [];
  const ask = asking(model, Boolean(isOld));
  const move = (text, index) => ask(text, "Move these ops there", { do: "move", index });
  const lines = rows.map((row, index) => html("tr", { "data-hl": "hotspot" },
    html("td", { class: "hl-buttons" },
      ask("Select", "Select these ops", { do: "hotspot", index }),
      ...(row.to ? [" ", move(`Move to ${row.to}`, index)] : [])),
    html("td", {}, row.name, html("span", { class: "hl-quiet" }, ` ${row.n}`)), cell(row.device),
    ...row.us.map(text => cell(text, "hl-number")), cell(row.share, "hl-number"),
    cell(row.gain, "hl-number")));
  const times = devices.map(device => [`on ${device}`, "hl-number"]);
  const heads = [["do"], ["ops that run as one"], ["device"], ...times,
    ["share, summed", "hl-number"], ["gain by moving", "hl-number"]];
  return [html("h4", {}, `Hotspots: ${n}`),
    html("p", {}, `${verdict} `, ...(best < 0 ? [] : [move("Move these", best)])),
    ...(notes ? [html("p", { class: "hl-quiet" }, notes)] : []),
    html("div", { class: "hl-list", tabindex: "0", role: "region", "aria-label": "Hotspots" },
      table(heads, lines, "Hotspots"))];
}

function interval(row, least, most) {
  const x = us => 4 + 132 * (most > least ? (us - least) / (most - least) : 0.5);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("width", 140);
  svg.setAttribute("height", 14);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", row.interval);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("class", "hl-range");
  line.setAttribute("d", `M${x(row.low)} 7H${x(row.high)}M${x(row.low)} 3V11M${x(row.high)} 3V11`);
  const dot = document.createElementNS(SVG, "circle");
  dot.setAttribute("class", "hl-median");
  for (const [key, value] of [["cx", x(row.median)], ["cy", 7], ["r", 3.5]]) {
    dot.setAttribute(key, value);
  }
  svg.append(line, dot);
  return svg;
}

function history(model) {
  const tried = model.get("tried");
  if (!tried.length) {
    return [html("h4", {}, "Measured"),
      html("p", { class: "hl-quiet" }, "Nothing yet. Measure compares with the automatic placement.")];
  }
  const good = tried.filter(row => row.status === "ok");
  const least = Math.min(...good.map(row => row.low));
  const most = Math.max(...good.map(row => row.high));
  const rows = tried.map((row, index) => {
    const button = html("button", { type: "button", title: "Return to this placement" }, "Return");
    button.addEventListener("click", () => model.send({ do: "return", index }));
    const result = row.status === "ok"
      ? [cell(row.ratio, "hl-number"), cell(row.latency, "hl-number"),
        html("td", { title: row.interval }, interval(row, least, most)),
        cell(row.subgraphs, "hl-number"), cell(row.predicted, "hl-number")]
      : [html("td", { colspan: "5", class: "hl-failed" }, `${row.status} ${row.detail}`)];
    const here = row.is_here ? { class: "hl-here", "aria-current": "true" } : {};
    return html("tr", { "data-hl": "tried", "data-status": row.status, ...here },
      html("td", { class: "hl-buttons" }, button),
      html("td", { class: "hl-name", title: row.label }, row.label + (row.is_here ? " (now)" : "")),
      ...result);
  });
  const heads = [["do"], ["placement"], ["× automatic", "hl-number"], ["median", "hl-number"],
    ["95 % interval"], ["subgraphs", "hl-number"], ["predicted for now", "hl-number"]];
  return [html("h4", {}, "Measured"), table(heads, rows, "Measured placements")];
}

export default {
  render({ model, el }) {
    const top = name => ({ class: "hl-top", tabindex: "0", "aria-label": name });
    const all = {
      numbers: [numbers, ["numbers", "note"], html("section", top("Numbers"))],
      history: [history, ["tried"], html("section", top("History"))],
      findings: [findings, ["findings", "is_looking", "n_findings"], html("section", { class: "hl-wide" })],
      hotspots: [hotspots, ["hotspots"], html("section", { class: "hl-wide" })],
    };
    const parts = model.get("parts").map(name => all[name]);
    const stops = parts.flatMap(([make, names, section]) => {
      const draw = () => {
        const rows = section.querySelectorAll("tr").length;
        section.replaceChildren(...make(model));
        // A new measurement is in view.
        if (make === history && section.querySelectorAll("tr").length > rows)
          section.scrollTop = section.scrollHeight;
      };
      draw();
      return names.map(name => {
        model.on(`change:${name}`, draw);
        return () => model.off(`change:${name}`, draw);
      });
    });
    el.append(html("div", { class: "hl-panel" }, ...parts.map(part => part[2])));
    return () => stops.forEach(stop => stop());
  },
};

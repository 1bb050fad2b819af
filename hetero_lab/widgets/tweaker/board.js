// Graph and table of the affinity tweaker, linked both ways. All names are set as text, never as
// markup. The picture is drawn once; afterwards only attributes change, so zoom and scroll stay.

const SVG = "http://www.w3.org/2000/svg";
function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function chip(look) {
  const shape = svg("path", { d: `M0 0${look.shape}`, fill: look.colour });
  if (look.dash === "dash") {
    shape.setAttribute("stroke", "currentColor");
    shape.setAttribute("stroke-dasharray", "2 1.4");
  }
  return svg("svg", { class: "hl-chip", viewBox: "-8.4 -8.4 16.8 16.8", "aria-hidden": "true" }, shape);
}

// A triangle beside a node whose numbers are wrong; hidden until they are.
function warning() {
  return svg("path", { class: "hl-warning", d: "M8 -13L13.5 -3.5H2.5ZM8 -10V-7M8 -5.8V-4.8" });
}

// A badge beside a node that is not on the device of its choice: a disc with a bar for a cause, an
// open diamond for a consequence. Hidden until it is so.
function badge() {
  return svg("path", { class: "hl-badge", "fill-rule": "evenodd" });
}
const BADGES = {
  cause: "M-12.5 -8A4.5 4.5 0 1 1 -3.5 -8A4.5 4.5 0 1 1 -12.5 -8ZM-11 -9V-7H-5V-9Z",
  consequence: "M-8 -13L-3 -8L-8 -3L-13 -8ZM-8 -10.6L-10.6 -8L-8 -5.4L-5.4 -8Z",
};

// The colour of a share of the longest time.
function timeColour(share, scale) {
  const at = Math.min(0.999, Math.max(0, share)) * (scale.length - 1), i = Math.floor(at);
  const [from, to] = [scale[i], scale[i + 1]].map(c => [1, 3, 5].map(k => parseInt(c.slice(k, k + 2), 16)));
  return `rgb(${from.map((v, k) => Math.round(v + (at - i) * (to[k] - v))).join(" ")})`;
}

// The last part of a name, which says most.
const brief = name => name.split("/").at(-1);

function microseconds(us) {
  if (us === null || us === undefined) return "–";
  if (us < 0.005) return "0";
  return us >= 100 ? us.toFixed(0) : us >= 1 ? us.toPrecision(3) : us.toFixed(2);
}

// What both panes share: the selection, and what a click on an op does to it. A click goes to the
// kernel as a message, since changes of a trait wait for each other while the kernel is slow and
// buttons would overtake them; and as a change, which marimo follows. Until the kernel has taken the
// last click, what it says is an answer to an earlier one.
function makeSelection(model) {
  const selected = () => {
    const { click, places } = model.get("clicked");
    return new Set(click && click !== model.get("taken") ? places : model.get("selected"));
  };
  const put = (chosen, from) => {
    const clicked = { click: `${Math.random()}`, places: [...chosen].sort((a, b) => a - b) };
    model._hlFrom = from;
    model.set("clicked", clicked);
    model.save_changes();
    try { model.send({ do: "select", ...clicked }); } catch { /* no kernel: it is only shown */ }
  };
  return {
    selected,
    put,
    click(place, event, from) {
      const now = selected();
      const many = event.shiftKey || event.ctrlKey || event.metaKey;
      if (!many) return put([place], from);
      now.has(place) ? now.delete(place) : now.add(place);
      put(now, from);
    },
    area(places, event, from) {
      put(event.shiftKey ? [...selected(), ...places] : places, from);
    },
  };
}

function makeGraph(model, selection) {
  const drawn = model.get("picture"), palette = model.get("palette");
  // Its own copy, since places are stretched to fill the pane.
  const picture = { ...drawn, nodes: drawn.nodes.map(n => ({ ...n })), wires: drawn.wires.map(w => ({ ...w })) };
  const ops = picture.nodes.map((n, i) => i).filter(i => picture.nodes[i].kind === "op");
  const view = { x: 0, y: 0, k: 1 };
  let mode = "pan", here = -1, fitted = null, lettered = 0, byTime = false, stretched = [1, 1];
  const longest = Math.max(0, ...picture.nodes.flatMap(n => n.able.map(d => n.us[d] ?? 0)));

  const wires = svg("path", { class: "hl-wire" });
  const crossing = svg("path", { class: "hl-cross", "data-hl": "boundaries" });
  const rope = svg("path", { class: "hl-rope" });
  const nodes = picture.nodes.map((node, place) => {
    const shape = svg("path", { d: "M-3.2 -3.2H3.2V3.2H-3.2Z", fill: "#7a7a7a" });
    const title = svg("title");
    const parts = [shape, title];
    if (node.kind === "op") parts.unshift(svg("circle", { class: "hl-halo", r: 11 }));
    if (node.kind === "op") parts.push(badge(), warning());
    if (node.label) {
      const beside = { input: ["end", -8, 3], output: ["start", 8, 3] }[node.kind]
        ?? ["middle", 0, 16];
      const text = svg("text", { "text-anchor": beside[0], x: beside[1], y: beside[2] });
      text.textContent = node.label.replaceAll("\n", " ");
      parts.push(text);
    }
    const group = svg("g", {
      class: "hl-node", transform: `translate(${node.x} ${node.y})`, "data-kind": node.kind,
    }, ...parts);
    if (node.kind === "op") {
      group.setAttribute("data-op", place);
      group.setAttribute("role", "option");
      group.setAttribute("id", `hl-${model._hlId}-op-${place}`);
    }
    return { group, shape, title, text: group.querySelector("text"),
      badge: group.querySelector(".hl-badge") };
  });
  const stage = svg("g", { "data-hl": "stage", role: "none" }, wires, crossing,
    svg("g", { role: "none" }, ...nodes.map(n => n.group)), rope);
  const element = svg("svg", {
    class: "hl-graph", tabindex: "0", role: "listbox", "aria-multiselectable": "true", "data-mode": mode,
    "aria-label": "Graph of the model. Arrow keys go from op to op, Enter selects, Shift+Enter "
      + "adds, plus and minus zoom, 0 shows everything, s the selection, Escape clears the selection.",
  }, stage);

  const place = () => {
    stage.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
    if (view.k !== lettered) letter();
  };
  // Letters keep a size that can be read; those that would lie on others are left out.
  function letter() {
    const size = Math.max(8.5, 10.5 / view.k), taken = [];
    lettered = view.k;
    picture.nodes.forEach((node, i) => {
      const { text } = nodes[i];
      if (!text) return;
      const side = node.kind === "input" ? -1 : node.kind === "output" ? 1 : 0;
      const wide = 0.64 * size * text.textContent.length;
      const x = node.x + (side ? side * 8 - (side < 0 ? wide : 0) : -wide / 2);
      const y = node.y + (side ? -size / 2 : 8);
      const clear = taken.every(([l, t, r, b]) => x > r || x + wide < l || y > b || y + size < t);
      text.style.display = clear ? "" : "none";
      if (!clear) return;
      taken.push([x - 2, y, x + wide + 2, y + size]);
      text.style.fontSize = `${size}px`;
      text.setAttribute("y", side ? 0.35 * size : 8 + 0.85 * size);
    });
  }
  const size = () => {
    const box = element.getBoundingClientRect();
    return [box.width || 600, box.height || 380];
  };
  // What is left of the pane beside the picture goes between the ops, up to a half more.
  function stretch(x, y) {
    const [sx, sy] = [x, y].map(s => Math.min(1.5, Math.max(1, s)));
    if (sx === stretched[0] && sy === stretched[1]) return;
    stretched = [sx, sy];
    Object.assign(picture, { width: sx * drawn.width, height: sy * drawn.height });
    drawn.nodes.forEach((node, i) => {
      Object.assign(picture.nodes[i], { x: sx * node.x, y: sy * node.y });
      nodes[i].group.setAttribute("transform", `translate(${sx * node.x} ${sy * node.y})`);
    });
    drawn.wires.forEach(({ path }, i) => {
      picture.wires[i].path = path.replace(/(-?[\d.]+) (-?[\d.]+)/g,
        (_, x, y) => `${(sx * x).toFixed(1)} ${(sy * y).toFixed(1)}`);
    });
    join();
    lettered = 0;
  }
  function fit(least = 0.02) {
    const [w, h] = size(), [wide, high] = [w - 2 * 22, h - 32];
    view.k = Math.max(least, Math.min(2, wide / drawn.width, high / drawn.height));
    stretch(wide / drawn.width / view.k, high / drawn.height / view.k);
    view.x = Math.max(12, (w - view.k * picture.width) / 2);
    view.y = Math.max(12, (h - view.k * picture.height) / 2);
    fitted = () => fit(least);
    place();
  }
  function fitSelection() {
    const chosen = [...selection.selected()].map(i => picture.nodes[i]);
    if (!chosen.length) return fit();
    const [w, h] = size(), margin = 60;
    const [xs, ys] = [chosen.map(n => n.x), chosen.map(n => n.y)];
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    const [top, bottom] = [Math.min(...ys), Math.max(...ys)];
    const fill = Math.min((w - 2 * margin) / (right - left || 1), (h - 2 * margin) / (bottom - top || 1));
    view.k = Math.min(3, Math.max(0.02, fill));
    view.x = w / 2 - view.k * (left + right) / 2;
    view.y = h / 2 - view.k * (top + bottom) / 2;
    fitted = fitSelection;
    place();
  }
  function zoom(factor, cx, cy) {
    const [w, h] = size();
    fitted = () => {};
    cx ??= w / 2; cy ??= h / 2;
    const k = Math.min(12, Math.max(0.02, view.k * factor));
    view.x = cx - (cx - view.x) * k / view.k;
    view.y = cy - (cy - view.y) * k / view.k;
    view.k = k;
    place();
  }
  const inside = event => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const onStage = ([x, y]) => [(x - view.x) / view.k, (y - view.y) / view.k];
  function show(index) {
    const node = picture.nodes[index], [w, h] = size();
    const x = view.x + view.k * node.x, y = view.y + view.k * node.y;
    if (x > 20 && x < w - 20 && y > 20 && y < h - 20) return;
    view.x = w / 2 - view.k * node.x;
    view.y = h / 2 - view.k * node.y;
    fitted = () => {};
    place();
  }

  element.addEventListener("wheel", event => {
    // Over a long notebook, scrolling must go on scrolling: only with a modifier it zooms.
    if (!event.ctrlKey && !event.metaKey && !event.altKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.002), ...inside(event));
  }, { passive: false });

  let drag = null;
  element.addEventListener("pointerdown", event => {
    if (event.button !== 0) return;
    drag = { at: inside(event), last: inside(event), moved: false, points: [inside(event)],
      op: event.target.closest("[data-op]") };
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", event => {
    if (!drag) return;
    const at = inside(event);
    drag.moved ||= Math.hypot(at[0] - drag.at[0], at[1] - drag.at[1]) > 3;
    if (!drag.moved) return;
    if (mode === "pan") {
      view.x += at[0] - drag.last[0];
      view.y += at[1] - drag.last[1];
      fitted = () => {};
      place();
    } else {
      drag.points.push(at);
      rope.setAttribute("d", area().map(
        (p, i) => (i ? "L" : "M") + onStage(p).map(v => v.toFixed(1)).join(" ")).join("") + "Z");
    }
    drag.last = at;
  });
  const area = () => {
    if (mode === "lasso") return drag.points;
    const [x0, y0] = drag.at, [x1, y1] = drag.points[drag.points.length - 1];
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
  };
  element.addEventListener("pointerup", event => {
    if (!drag) return;
    if (!drag.moved && drag.op) {
      go(Number(drag.op.dataset.op));
      selection.click(here, event, "graph");
    } else if (drag.moved && mode !== "pan") {
      const polygon = area().map(onStage);
      selection.area(ops.filter(i => within(picture.nodes[i], polygon)), event, "graph");
    }
    rope.removeAttribute("d");
    drag = null;
  });

  function go(index) {
    if (here >= 0) nodes[here].group.classList.remove("hl-here");
    here = index;
    nodes[here].group.classList.add("hl-here");
    element.setAttribute("aria-activedescendant", `hl-${model._hlId}-op-${here}`);
  }
  element.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step || event.key === "Home" || event.key === "End") {
      const at = ops.indexOf(here), last = ops.length - 1;
      const to = step ? (at < 0 ? 0 : at + step) : event.key === "Home" ? 0 : last;
      go(ops[Math.min(last, Math.max(0, to))]);
      show(here);
    } else if ((event.key === "Enter" || event.key === " ") && here >= 0) {
      selection.click(here, event, "graph");
    } else if (event.key === "Escape") {
      selection.put([], "graph");
    } else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "0") fit();
    else if (event.key === "s") fitSelection();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  const modes = ["pan", "box", "lasso"].map(name => {
    const title = { pan: "Drag to move the picture", box: "Drag a box around ops",
      lasso: "Draw around ops" }[name];
    const button = html("button", { type: "button", "data-mode": name, title,
      "aria-pressed": String(name === mode) }, name[0].toUpperCase() + name.slice(1));
    button.addEventListener("click", () => {
      mode = name;
      element.dataset.mode = name;
      for (const other of modes) other.setAttribute("aria-pressed", other === button);
    });
    return button;
  });
  const tool = (text, title, act) => {
    const button = html("button", { type: "button", title, "aria-label": title }, text);
    button.addEventListener("click", act);
    return button;
  };
  // Colours: the device's, or the time on the device that an op is on.
  const colours = [["Device", "Colour the ops by device", false], ["Time", picture.timed
    ? "Colour the ops by their time on their device"
    : "The times of the ops are not known: give costs= of hetero_lab.calibrate()", true]]
    .map(([text, title, isTime]) => {
      const button = html("button", { type: "button", title, "aria-pressed": String(!isTime) }, text);
      button.disabled = isTime && !picture.timed;
      button.addEventListener("click", () => {
        byTime = isTime;
        for (const other of colours) other.setAttribute("aria-pressed", other === button);
        colour();
      });
      return button;
    });
  const timeKey = html("span", { class: "hl-key" }, "0 ", html("span", { class: "hl-scale",
    style: `background: linear-gradient(to right, ${picture.timeScale.join(", ")})` }),
    ` ${microseconds(longest)} µs; hollow: fused`);
  const keys = palette.map(look => html("span", { class: "hl-key hl-device" }, chip(look), look.label));
  const line = svg("svg", { class: "hl-chip", viewBox: "0 0 14 14", "aria-hidden": "true" },
    svg("path", { class: "hl-cross", d: "M0 7H14" }));
  const bar = html("div", { class: "hl-bar" }, ...modes,
    tool("+", "Zoom in (also Ctrl and the wheel)", () => zoom(1.3)),
    tool("−", "Zoom out", () => zoom(1 / 1.3)), tool("Fit", "Show everything", () => fit()),
    tool("Fit selection", "Show the selected ops", fitSelection),
    html("span", { class: "hl-key", role: "group", "aria-label": "Colour" }, ...colours), timeKey,
    ...keys, html("span", { class: "hl-key" }, line, "boundary"));
  const wrongKey = html("span", { class: "hl-key hl-wrong" },
    svg("svg", { class: "hl-chip", viewBox: "1 -15 14 14", "aria-hidden": "true" }, warning()),
    "wrong numbers");
  const badgeKeys = [["cause", "cause: not supported where preferred"],
    ["consequence", "consequence: placed with a neighbouring cause"]].map(([kind, text]) => {
    const mark = badge();
    mark.setAttribute("d", BADGES[kind]);
    return html("span", { class: "hl-key", "data-badge": kind },
      svg("svg", { class: "hl-chip", viewBox: "-14 -14 12 12", "aria-hidden": "true" }, mark), text);
  });
  const selectedKey = html("span", { class: "hl-key" }, svg("svg", { class: "hl-chip",
    viewBox: "-13 -13 26 26", "aria-hidden": "true" }, svg("g", { class: "hl-node",
    "data-selected": "true" }, svg("circle", { class: "hl-halo", r: 11 }))), "selected");
  bar.append(selectedKey, ...badgeKeys, wrongKey);

  function colour() {
    const { devices: now, subgraphs } = model.get("placed");
    const wrong = new Map(model.get("placed").wrong);
    const displaced = new Map(model.get("placed").displaced.map(([i, kind, text]) => [i, { kind, text }]));
    wrongKey.hidden = !wrong.size;
    for (const key of badgeKeys)
      key.hidden = ![...displaced.values()].some(({ kind }) => kind === key.dataset.badge);
    timeKey.hidden = !byTime;
    element.closest(".hl-pane").classList.toggle("hl-by-time", byTime);
    picture.nodes.forEach((node, i) => {
      if (node.kind !== "op") {
        nodes[i].title.textContent = `${node.name}\nmodel ${node.kind}`;
        return;
      }
      const look = palette[now[i]];
      const us = node.us[now[i]] ?? null, isHollow = byTime && (us === null || node.fused);
      nodes[i].shape.setAttribute("d", `M0 0${look.shape}`);
      nodes[i].shape.setAttribute("fill", isHollow ? "transparent"
        : byTime ? timeColour(us / longest, picture.timeScale) : look.colour);
      nodes[i].group.classList.toggle("hl-hollow", isHollow);
      nodes[i].group.dataset.dash = look.dash;
      nodes[i].group.dataset.device = look.device;
      nodes[i].group.classList.toggle("hl-wrong", wrong.has(i));
      const { kind, text: why } = displaced.get(i) ?? { kind: "", text: "" };
      nodes[i].group.dataset.badge = kind;
      nodes[i].badge.setAttribute("d", BADGES[kind] ?? "");
      const time = node.us.length ? `\n${times(node, palette).join(", ")}` : "";
      const text = `${node.name}\n${node.type} on ${look.label}, subgraph ${subgraphs[i]}`
        + `\n→ ${node.outputs.join("; ")}${time}` + (wrong.has(i) ? `\n${wrong.get(i)}` : "")
        + (why ? `\n${why}` : "");
      nodes[i].title.textContent = text;
      nodes[i].group.setAttribute("aria-label", text);
    });
    join();
  }
  function join() {
    const { subgraphs } = model.get("placed"), inner = [], across = [];
    for (const wire of picture.wires) {
      const a = subgraphs[wire.from], b = subgraphs[wire.to];
      (a >= 0 && b >= 0 && a !== b ? across : inner).push(wire.path);
    }
    wires.setAttribute("d", inner.join(""));
    crossing.setAttribute("d", across.join(""));
    crossing.dataset.count = across.length;
  }
  function mark() {
    const selected = selection.selected();
    ops.forEach(i => {
      nodes[i].group.setAttribute("aria-selected", String(selected.has(i)));
      nodes[i].group.dataset.selected = String(selected.has(i));
    });
    const [first] = selected;
    if (first !== undefined && model._hlFrom !== "graph") show(first);
  }
  // It has no size before it is shown. A big graph begins readable, not whole; what was fitted
  // is fitted again, what was moved by hand stays.
  const resized = new ResizeObserver(() => {
    if (element.getBoundingClientRect().width) (fitted ?? (() => fit(0.45)))();
  });
  resized.observe(element);
  const pane = html("div", { class: "hl-pane" }, bar, element);
  return { pane, colour, mark,
    stop: () => resized.disconnect() };
}

// The time of an op on each device that can run it, or the op that has it.
function times(node, palette) {
  if (node.fused) return [`fused into ${node.fused}`];
  return node.able.filter(d => node.us.length && node.us[d] !== null)
    .map(d => `${microseconds(node.us[d])} µs on ${palette[d].device}`);
}

function within(point, polygon) {
  let odd = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
    const crosses = (yi > point.y) !== (yj > point.y);
    if (crosses && point.x < (xj - xi) * (point.y - yi) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

function makeTable(model, selection) {
  const picture = model.get("picture"), palette = model.get("palette");
  const rows = new Map();
  const timed = picture.timed ? palette.map(look => `${look.device} µs`) : [];
  const heads = ["op", "type", "device", "subgraph", ...timed].map((text, i) =>
    html("th", { scope: "col", ...(i >= 3 ? { class: "hl-number" } : {}) },
      html("button", { type: "button", title: "Sort: ascending, then descending, then unsorted" }, text)));
  const body = html("tbody");
  picture.nodes.forEach((node, place) => {
    if (node.kind !== "op") return;
    // Of a long name the end is shown, which says most.
    const name = html("td", { title: node.name }, html("bdi", {}, node.name));
    const device = html("td"), subgraph = html("td", { class: "hl-number" });
    const wide = node.fused && node.able.length === palette.length;  // one cell for all devices
    const times = timed.slice(0, wide ? 1 : undefined).map((_, d) => html("td",
      node.fused ? { class: "hl-number", title: `fused into ${node.fused}`, colspan: wide ? timed.length : 1 }
        : { class: "hl-number" },
      !node.able.includes(d) ? "no" : !node.fused ? microseconds(node.us[d])
        : wide ? `fused into ${brief(node.fused)}` : "fused"));
    const row = html("tr", { "data-op": place, tabindex: "-1", "aria-selected": "false" },
      name, html("td", { title: node.type }, node.type), device, subgraph, ...times);
    rows.set(place, { row, device, subgraph, was: -1 });
    body.append(row);
  });
  let order = [...rows.keys()], anchor = -1;
  // In the order of a column; without times and ops that cannot run there at the end.
  const sorted = { column: -1, clicks: 0 };
  function value(place, column) {
    const node = picture.nodes[place], { devices, subgraphs } = model.get("placed");
    if (column < 4)
      return [node.name, node.type, palette[devices[place]].device, subgraphs[place]][column];
    const d = column - 4;
    return !node.able.includes(d) || node.fused ? null : node.us[d];
  }
  function sortBy(column) {
    const clicks = sorted.column === column ? sorted.clicks + 1 : 1;
    Object.assign(sorted, clicks > 2 ? { column: -1, clicks: 0 } : { column, clicks });
    const sign = clicks > 1 ? -1 : 1;
    order = [...rows.keys()];
    if (sorted.column >= 0) order.sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
    });
    heads.forEach((head, i) => head.setAttribute("aria-sort",
      i !== sorted.column ? "none" : sign > 0 ? "ascending" : "descending"));
    body.append(...order.map(place => rows.get(place).row));
  }
  heads.forEach((head, i) => head.firstChild.addEventListener("click", () => sortBy(i)));
  // Shift takes all rows from the last one that was chosen without it.
  function choose(place, event) {
    const from = order.indexOf(anchor);
    if (!event.shiftKey || from < 0) {
      anchor = place;
      return selection.click(place, event, "table");
    }
    const [low, high] = [from, order.indexOf(place)].sort((a, b) => a - b);
    const kept = event.ctrlKey || event.metaKey ? selection.selected() : [];
    selection.put(new Set([...kept, ...order.slice(low, high + 1)]), "table");
  }
  if (order.length) rows.get(order[0]).row.tabIndex = 0;
  const scroll = html("div", { class: "hl-scroll" }, html("table",
    { role: "grid", "aria-multiselectable": "true", "aria-label": "Ops and their devices" },
    html("thead", {}, html("tr", {}, ...heads)), body));
  const focus = place => {
    for (const { row } of rows.values()) row.tabIndex = -1;
    rows.get(place).row.tabIndex = 0;
    rows.get(place).row.focus({ preventScroll: true });
    reveal(place);
  };
  function reveal(place) {
    const { row } = rows.get(place), head = 26;
    if (row.offsetTop - head < scroll.scrollTop) scroll.scrollTop = row.offsetTop - head;
    const below = row.offsetTop + row.offsetHeight - scroll.clientHeight;
    if (below > scroll.scrollTop) scroll.scrollTop = below;
  }
  body.addEventListener("click", event => {
    const row = event.target.closest("[data-op]");
    if (!row) return;
    focus(Number(row.dataset.op));
    choose(Number(row.dataset.op), event);
  });
  body.addEventListener("mousedown", event => { if (event.shiftKey) event.preventDefault(); });
  body.addEventListener("keydown", event => {
    const row = event.target.closest("[data-op]");
    if (!row) return;
    const place = Number(row.dataset.op), at = order.indexOf(place);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: order.length - 1,
      PageDown: at + 15, PageUp: at - 15 }[event.key];
    if (to !== undefined) focus(order[Math.min(order.length - 1, Math.max(0, to))]);
    else if (event.key === "Enter" || event.key === " ") choose(place, event);
    else if (event.key === "Escape") selection.put([], "table");
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  function colour() {
    const { devices: now, subgraphs } = model.get("placed");
    const wrong = new Map(model.get("placed").wrong);
    for (const [place, cells] of rows) {
      const look = palette[now[place]];
      cells.row.classList.toggle("hl-wrong", wrong.has(place));
      cells.row.title = wrong.get(place) ?? "";
      if (cells.was !== now[place]) {
        cells.device.replaceChildren(chip(look), " " + look.device);
        cells.device.title = look.label;
        cells.was = now[place];
      }
      const text = String(subgraphs[place]);
      if (cells.subgraph.textContent !== text) cells.subgraph.textContent = text;
    }
  }
  function mark() {
    const selected = selection.selected();
    for (const [place, { row }] of rows) {
      row.setAttribute("aria-selected", String(selected.has(place)));
    }
    const [first] = selected;
    if (first !== undefined && model._hlFrom !== "table") reveal(first);
  }
  // What is known about one op: shapes, times, attributes.
  const details = html("div",
    { class: "hl-details", tabindex: "0", role: "region", "aria-label": "The selected op" });
  function explain() {
    const [first, ...others] = selection.selected();
    if (first === undefined || others.length) {
      details.replaceChildren("Click an op for its shapes, times and attributes.");
      return;
    }
    const node = picture.nodes[first];
    const rows = [
      ...node.inputs.map(text => ["in", text]),
      ...node.outputs.map(text => ["out", text]),
      ...(times(node, palette).length ? [["time", times(node, palette).join(", ")]] : []),
      ...node.attributes,
    ];
    details.replaceChildren(html("strong", {}, node.name), ` ${node.type}`,
      html("dl", {}, ...rows.flatMap(([key, text]) => [html("dt", {}, key), html("dd", {}, text)])));
    details.scrollTop = 0;
  }
  return { pane: html("div", { class: "hl-pane" }, scroll, details), colour,
    mark: () => { mark(); explain(); } };
}

// Keys stay inside the widget: x would cut the notebook's cell. Only saving is passed on. Ctrl-Z
// works everywhere but in the fields, which have an undo of their own.
function keepKeys(model, board) {
  const root = board.closest(".widget-vbox") ?? board;
  const isCommand = event => event.ctrlKey || event.metaKey;
  const isSave = event => isCommand(event) && event.key.toLowerCase() === "s";
  // Notebook 7 takes keys on their way down, unless their target is marked.
  const mark = event => root.contains(event.target)
    && event.target.toggleAttribute("data-lm-suppress-shortcuts", !isSave(event));
  const press = event => {
    if (isSave(event)) return;
    const key = event.key.toLowerCase();
    event.stopPropagation();
    if (!isCommand(event) || !["z", "y"].includes(key)) return;
    if (event.target.matches("input[type=text], textarea")) return;
    model.send({ do: key === "y" || event.shiftKey ? "redo" : "undo" });
    event.preventDefault();
  };
  window.addEventListener("keydown", mark, true);
  root.addEventListener("keydown", press);
  for (const field of root.querySelectorAll("input[title], select[title]"))
    field.setAttribute("aria-label", field.title);
  for (const handle of root.querySelectorAll(".noUi-handle"))
    handle.setAttribute("aria-label", "Cut before op");
  return () => {
    window.removeEventListener("keydown", mark, true);
    root.removeEventListener("keydown", press);
  };
}

let boards = 0;

export default {
  render({ model, el }) {
    model._hlId = boards++;
    const selection = makeSelection(model);
    const graph = makeGraph(model, selection), table = makeTable(model, selection);
    const colour = () => { graph.colour(); table.colour(); };
    let marked;
    const mark = () => {
      const now = [...selection.selected()].join();
      if (now === marked) return;  // the kernel has taken a click that is shown
      marked = now;
      graph.mark();
      table.mark();
      model._hlFrom = "";
    };
    const told = ["change:clicked", "change:selected", "change:taken"];
    model.on("change:placed", colour);
    for (const change of told) model.on(change, mark);
    const board = html("div", { class: "hl-board" }, graph.pane, table.pane);
    el.append(board);
    colour();
    mark();
    // The other widgets around it are there a moment later.
    let forget = () => {};
    const shown = setTimeout(() => { forget = keepKeys(model, board); });
    return () => {
      model.off("change:placed", colour);
      for (const change of told) model.off(change, mark);
      graph.stop();
      clearTimeout(shown);
      forget();
    };
  },
};

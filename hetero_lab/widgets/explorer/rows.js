// The rows as a table: a heading sorts, a row or its first button chooses A, its second one B.

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// An interval may go below its value, where there is little room.
const parts = (text) => text.split(/(?=\[)/).flatMap((part) => [make("span", {}, part.trim()), " "]);

let views = 0;

function render({ model, el }) {
  const name = `hlx-${views++}`;
  const box = el.appendChild(make("div", { class: "hlx-table hlx-rows" }));
  let order = null, falling = false;

  function choose(letter, label) {
    const is = letter === "b" && model.get("b") === label;
    model.set(letter, is ? "" : label);
    model.save_changes();
    mark();
  }

  function sort(column) {
    falling = order === column && !falling;
    order = column;
    draw();
    box.querySelectorAll("th button")[column].focus();
  }

  function sorted() {
    const places = model.get("labels").map((_, place) => place);
    if (order === null) return places;
    const by = model.get("columns")[order][2], sign = falling ? -1 : 1;
    return places.sort((one, other) => {
      const [x, y] = [by[one], by[other]];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
    });
  }

  function pick(letter, label) {
    const radio = make("input", { type: "radio", name: `${name}-${letter}`,
      "aria-label": `${letter.toUpperCase()}: ${label}` });
    radio.addEventListener("click", (event) => {
      event.stopPropagation();
      choose(letter, label);
    });
    return make("td", {}, radio);
  }

  function draw() {
    const columns = model.get("columns");
    const heads = columns.map(([title], column) => {
      const button = make("button", { type: "button", title: `Sort by ${title}` }, title);
      button.addEventListener("click", () => sort(column));
      const way = order !== column ? "none" : falling ? "descending" : "ascending";
      return make("th", { scope: "col", "aria-sort": way }, button);
    });
    const body = sorted().map((place) => {
      const label = model.get("labels")[place];
      const row = make("tr", {}, pick("a", label), pick("b", label), ...columns.map(([, texts, by]) =>
        by[place] === label ? make("td", { class: "hlx-name" }, label)
          : make("td", { class: typeof by[place] }, ...parts(texts[place]))));
      row.dataset.label = label;
      row.addEventListener("click", (event) => choose(event.shiftKey ? "b" : "a", label));
      return row;
    });
    const letters = ["A", "B"].map((letter) => make("th", { scope: "col" }, letter));
    box.replaceChildren(make("table", { class: "hetero-lab", "aria-label": "Placements" },
      make("thead", {}, make("tr", {}, ...letters, ...heads)), make("tbody", {}, ...body)));
    mark();
  }

  function mark() {
    for (const row of box.querySelectorAll("tbody tr")) {
      const [a, b] = row.querySelectorAll("input");
      a.checked = row.dataset.label === model.get("a");
      b.checked = row.dataset.label === model.get("b");
      row.classList.toggle("hlx-chosen", a.checked || b.checked);
    }
  }

  model.on("change:columns", draw);
  model.on("change:a change:b", mark);
  draw();
}
export default { render };

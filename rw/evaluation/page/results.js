// Sorting of tables, and the browser of trajectories. Texts of routers and Workers only ever become text nodes.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 148, HEIGHT = 44, GAP_X = 54, GAP_Y = 16, MARGIN = 8;
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // --- tables ---------------------------------------------------------------------------------------------------
  function sortKey(cell) {
    const found = cell.textContent.replace(/[,\u2009]/g, "").match(/[-+]?\d+(\.\d+)?(e[-+]?\d+)?/i);
    return found ? Number(found[0]) : null;
  }

  function sortTable(table, column, header) {
    const ascending = header.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const compare = (one, other) => {
      const [a, b] = [one.cells[column], other.cells[column]];
      if (column === 0) return a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
      return sortKey(a) - sortKey(b);
    };
    const known = (row) => column === 0 || sortKey(row.cells[column]) !== null;
    const sorted = rows.filter(known).sort((one, other) => (ascending ? 1 : -1) * compare(one, other));
    table.tBodies[0].append(...sorted, ...rows.filter((row) => !known(row)));  // what is not known stays below
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => sortTable(table, column, header));
    });
  }

  // --- any two arms ---------------------------------------------------------------------------------------------
  const first = byId("first"), second = byId("second");

  function signed(values, digits) {
    const words = values.map((value) => (value === null ? null : (value < 0 ? "-" : "+") + digits(Math.abs(value))));
    return words[1] === null ? words[0] : `${words[0]} (${words[1]} to ${words[2]})`;
  }

  function compare() {
    const [one, other] = [Number(first.value), Number(second.value)];
    const straight = data.differences.find(([a, b]) => a === one && b === other);
    const found = straight ?? data.differences.find(([a, b]) => a === other && b === one);
    if (!found) return byId("difference").replaceChildren("Choose two arms.");
    const turn = (values) => (straight || !values ? values : [values[0], values[2], values[1]].map((v) => (v === null ? null : -v)));
    const [right, cost] = [turn(found[2]), turn(found[3])];
    byId("difference").replaceChildren(
      element("b", {}, right ? `${signed(right, (v) => v.toFixed(1))} points` : "no average"),
      cost ? `; cost ${signed(cost, (v) => String(Number(v.toPrecision(3))))} ${data.cost_unit}` : "; cost unknown",
      `; ${found[4]} questions, 95 %, paired`);
  }

  if (first) {
    data.titles.forEach((title, place) => [first, second].forEach((select) =>
      select.append(element("option", { value: String(place) }, title))));
    second.value = "1";
    [first, second].forEach((select) => select.addEventListener("change", compare));
    compare();
  }

  // --- the list of trajectories ---------------------------------------------------------------------------------
  const all = Object.entries(data.arms).flatMap(([arm, found]) =>
    found.trajectories.map((one) => ({ ...one, arm, title: found.title })));
  if (!all.length) return;
  for (const one of all) {
    one.outcome = one.status !== "answered" ? one.status : one.correct ? "right" : "wrong";
    one.words = [one.id, one.question, one.answer, ...one.calls.flatMap((call) => [call.worker, call.subquery, call.output])]
      .join("\n").toLowerCase();
  }
  const filters = { arm: byId("by-arm"), set: byId("by-set"), mode: byId("by-mode"), outcome: byId("by-outcome") };
  const search = byId("by-text"), list = byId("list"), shown = byId("shown"), count = byId("count");
  let fitting = [], chosen = null;

  for (const [name, select] of Object.entries(filters)) {
    const values = [...new Set(all.map((one) => one[name]))];
    if (name !== "arm") values.sort();
    const titles = name === "arm" ? Object.fromEntries(all.map((one) => [one.arm, one.title])) : {};
    if (name !== "arm") select.append(element("option", { value: "" }, "all"));
    for (const value of values) select.append(element("option", { value }, titles[value] ?? value.replaceAll("_", " ")));
    if (name === "arm") select.append(element("option", { value: "" }, "all arms"));
    select.addEventListener("change", refill);
  }
  search.addEventListener("input", refill);

  function refill() {
    const wanted = search.value.trim().toLowerCase();
    fitting = all.filter((one) => Object.entries(filters).every(([name, select]) => !select.value || one[name] === select.value)
      && (!wanted || one.words.includes(wanted)));
    const arm = data.arms[filters.arm.value];
    const embedded = arm ? arm.trajectories.length : all.length;
    count.textContent = `${fitting.length} of ${embedded} shown` + (arm ? `; the page holds ${embedded} of ${arm.of} of this arm` : "");
    list.replaceChildren(...fitting.map(item));
    choose(fitting.includes(chosen) ? chosen : fitting[0] ?? null);
  }

  function chips(one, withArm) {
    const verdict = one.status === "answered" ? (one.correct ? "right" : "wrong") : one.status.replaceAll("_", " ");
    return element("div", { class: "chips" },
      element("span", { class: `chip ${one.correct ? "right" : "wrong"}` }, (one.correct ? "✓ " : "✗ ") + verdict),
      element("span", { class: `chip ${one.mode}` }, one.mode + (one.forced ? " (forced)" : "")),
      element("span", { class: "chip" }, one.set),
      withArm ? element("span", { class: "chip" }, one.title) : null);
  }

  function item(one, place) {
    const made = element("li", { role: "option", id: `item-${place}`, "aria-selected": "false" },
      element("div", { class: "asked" }, one.question.slice(0, 200)), chips(one, !filters.arm.value));
    made.addEventListener("click", () => choose(one));
    return made;
  }

  function choose(one) {
    chosen = one;
    [...list.children].forEach((child, place) => child.setAttribute("aria-selected", String(fitting[place] === one)));
    const place = fitting.indexOf(one);
    if (place < 0) {
      list.removeAttribute("aria-activedescendant");
      shown.replaceChildren();
      return;
    }
    list.setAttribute("aria-activedescendant", `item-${place}`);
    const entry = list.children[place];  // scrolled by hand: scrollIntoView would move the page too
    if (entry.offsetTop < list.scrollTop) list.scrollTop = entry.offsetTop;
    const below = entry.offsetTop + entry.offsetHeight - list.clientHeight;
    if (below > list.scrollTop) list.scrollTop = below;
    show(one);
  }

  list.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !fitting.length) return;
    event.preventDefault();
    const place = fitting.indexOf(chosen) + steps[event.key];
    choose(fitting[Math.min(Math.max(place, 0), fitting.length - 1)]);
  });

  // --- one trajectory -------------------------------------------------------------------------------------------
  const known = (value, form) => (value === null || value === undefined ? "unknown" : form(value));
  const usd = (value) => known(value, (v) => (v === 0 ? "0 USD" : v >= 0.01 ? `${v.toFixed(4)} USD` : `${Number((v * 1e6).toPrecision(4))} µUSD`));
  const seconds = (value) => known(value, (v) => `${Number(v.toPrecision(3))} s`);
  const plain = (value) => known(value, (v) => String(v));

  function facts(pairs) {
    return element("dl", { class: "facts" }, ...pairs.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  }

  function text(heading, words) {
    return [element("h3", {}, heading), element("pre", { tabindex: "0" }, words === null || words === "" ? "(none)" : words)];
  }

  function show(one) {
    const detail = element("div", { id: "detail", "aria-live": "polite" });
    const turns = element("details", {}, element("summary", {}, `The router's turns, ${one.turns.length} segments`),
      ...one.turns.map(([segment, words]) => element("div", { class: `turn ${segment}` }, element("span", {}, segment),
        element("pre", { tabindex: "0" }, words))));
    shown.replaceChildren(
      element("h3", {}, `${one.title} · ${one.domain} · ${one.id}`), chips(one, false),
      facts([["Worker cost", usd(one.cost_usd)], ["Workers took", seconds(one.latency_s)],
        ["router tokens in/out", one.router_tokens.map(plain).join(" / ")], ["calls", String(one.calls.length)],
        ...(one.reason ? [["reason", one.reason]] : []), ...(one.score === null ? [] : [["score", String(one.score)]])]),
      graph(one, detail), detail, turns);
    open(one, one.calls.length ? one.calls[one.calls.length - 1].node : "question", detail);
  }

  function graph(one, detail) {
    const tall = {};
    for (const [, column] of one.nodes) tall[column] = (tall[column] ?? 0) + 1;
    const highest = Math.max(...Object.values(tall)), columns = Math.max(...Object.keys(tall).map(Number)) + 1;
    const width = 2 * MARGIN + columns * WIDTH + (columns - 1) * GAP_X;
    const height = 2 * MARGIN + highest * HEIGHT + (highest - 1) * GAP_Y;
    const place = Object.fromEntries(one.nodes.map(([id, column, row]) => [id, [
      MARGIN + column * (WIDTH + GAP_X),
      MARGIN + (row + (highest - tall[column]) / 2) * (HEIGHT + GAP_Y)]]));
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "calls as a graph" });
    const marker = shape("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" });
    marker.append(shape("path", { d: "M0 0 L8 4 L0 8 z" }));
    svg.append(marker);
    for (const [from, to] of one.edges) svg.append(edge(place, from, to));
    for (const [id] of one.nodes) svg.append(node(one, id, place[id], detail));
    return element("div", { class: "dag", tabindex: "-1" }, svg);
  }

  function shape(tag, attributes) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function edge(place, from, to) {
    const [x1, y1] = [place[from][0] + WIDTH, place[from][1] + HEIGHT / 2], [x2, y2] = [place[to][0] - 2, place[to][1] + HEIGHT / 2];
    const bend = Math.max(24, (x2 - x1) / 2);
    const made = shape("path", { class: "edge", d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#tip)" });
    [made.dataset.from, made.dataset.to] = [from, to];
    return made;
  }

  function node(one, id, [x, y], detail) {
    const call = one.calls.find((other) => other.node === id);
    const isEnd = id === "answer" || id === "stopped";
    const state = call ? (call.status === "ok" ? "" : "failed") : isEnd ? (one.correct ? "right" : "wrong") : "";
    const made = shape("g", { class: `node ${state}`, tabindex: "0", role: "button", transform: `translate(${x} ${y})` });
    made.dataset.node = id;
    const upper = call ? call.worker : id;
    const lower = call ? [call.node, call.role].filter(Boolean).join(" · ") : isEnd && id === "stopped" ? one.status.replaceAll("_", " ") : isEnd ? (one.correct ? "right" : "wrong") : one.set;
    made.setAttribute("aria-label", `${upper}, ${lower}`);
    made.append(shape("rect", { width: WIDTH, height: HEIGHT, rx: 7 }));
    for (const [words, top, kind] of [[upper, 19, ""], [lower, 34, "under"]]) {
      const line = shape("text", { x: 10, y: top, class: kind });
      line.textContent = words.length > 20 ? `${words.slice(0, 19)}…` : words;
      made.append(line);
    }
    made.addEventListener("click", () => open(one, id, detail));
    made.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        open(one, id, detail);
      }
    });
    return made;
  }

  function open(one, id, detail) {
    for (const other of shown.querySelectorAll(".node")) {
      other.classList.toggle("open", other.dataset.node === id);
      other.setAttribute("aria-pressed", String(other.dataset.node === id));
    }
    for (const line of shown.querySelectorAll(".edge"))
      line.classList.toggle("lit", line.dataset.from === id || line.dataset.to === id);
    const call = one.calls.find((other) => other.node === id);
    if (call) detail.replaceChildren(
      facts([["Worker", call.worker], ["role", call.role ?? "none"], ["tokens in/out", `${plain(call.input_tokens)} / ${plain(call.output_tokens)}`],
        ["cost", usd(call.cost_usd)], ["latency", seconds(call.latency_s)], ["attempts", plain(call.attempts)],
        ...(call.references.length ? [["builds on", call.references.join(", ")]] : []),
        ...(call.status === "ok" ? [] : [["status", [call.status, call.failure].filter(Boolean).join(": ")]])]),
      ...text("Sub-query", call.subquery), ...text("Reply", call.output));
    else if (id === "question") detail.replaceChildren(...text("Question", one.question), ...text("Reference", one.reference));
    else detail.replaceChildren(...text("Answer", one.answer), ...text("Verdict", one.verdict), ...text("Reference", one.reference));
  }

  refill();
})();

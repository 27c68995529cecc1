"use strict";
// Draws the charts as SVG from the data inside the page. The data- attributes of an element define its chart. All charts
// share the set of hidden runs.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set(); // indices of the curves that are switched off
  let smooth = false;

  const VIRIDIS = "440154 482475 414487 355f8d 2a788e 21918c 22a884 44bf70 7ad151 bddf26 fde725"
    .split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const svgNamespace = new DOMParser().parseFromString("<svg></svg>", "text/html").body.firstChild.namespaceURI;
  const ruler = document.createElement("canvas").getContext("2d");

  function add(parent, name, attributes = {}, text) {
    const node = document.createElementNS(svgNamespace, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return parent.appendChild(node);
  }

  function textWidth(text) {
    ruler.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    return ruler.measureText(text).width;
  }

  function shortened(text, width) {
    let shown = text;
    while (shown.length > 1 && textWidth(shown) > width) shown = shown.slice(0, -2) + "…";
    return shown;
  }

  const limit = (value, low, high) => Math.min(Math.max(value, low), high);

  // --- axes -------------------------------------------------------------------------------------------------------

  // Round tick values between low and high (with `around`, enclosing them), and how many decimals they need.
  function ticks(low, high, count, { whole = false, around = false } = {}) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    let step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
    if (whole) step = Math.max(1, Math.round(step));
    const [first, last] = [low / step, high / step].map((v) => Math.round(v * 1e6) / 1e6); // 0.3 / 0.1 is not quite 3
    const [from, to] = around ? [Math.floor(first), Math.ceil(last)] : [Math.ceil(first), Math.floor(last)];
    const at = Array.from({ length: to - from + 1 }, (_, i) => (from + i) * step);
    return { at, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  // An empty picture of the box's width, with a plot area inside it.
  function picture(box, margin, height, label) {
    const width = Math.max(box.clientWidth, 200);
    const svg = add(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": label });
    const area = { left: margin.left, top: margin.top, right: width - margin.right, bottom: height - margin.bottom };
    return { svg, area, width };
  }

  function xAxis(svg, area, x, low, high, label, whole) {
    const { at, decimals } = ticks(low, high, limit((area.right - area.left) / 75, 2, 10), { whole });
    for (const value of at) {
      add(svg, "text", { x: x(value), y: area.bottom + 17, "text-anchor": "middle" }, value.toFixed(decimals));
    }
    add(svg, "text", { x: (area.left + area.right) / 2, y: area.bottom + 34, "text-anchor": "middle" }, label);
  }

  // --- line charts ------------------------------------------------------------------------------------------------

  // The lines of a chart: one measure of every run, or (figure 4) the local and global models of one run.
  function linesOf(set) {
    const k = Number(set.scale);
    const line = (curve, measure, more) => {
      const c = data.curves[curve], [x, y, spread] = c[measure];
      return {
        curve, label: c.label, colour: c.colour, dash: c.dash, status: c.status, css: "", x,
        y: y.map((v) => k * v), spread: spread && spread.map((v) => k * v), ...more,
      };
    };
    if (set.facet) {
      const inside = data.curves.flatMap((c, i) => (c.facet === set.facet ? [i] : []));
      return inside.map((i) => line(i, set.measure, { label: data.curves[i].status === "finished" ? data.curves[i].method : data.curves[i].label }));
    }
    if (!set.side) return data.curves.map((_, i) => line(i, set.measure));
    const global = { css: "global", colour: "", status: "", spread: null };
    return [
      line(Number(set.curve), `${set.side}_local`, { label: "local models", dash: "" }),
      line(Number(set.curve), `global_${set.side}_before`, { ...global, label: "global, before", dash: "3 2" }),
      line(Number(set.curve), `global_${set.side}_after`, { ...global, label: "global, after", dash: "" }),
    ];
  }

  function valueRange(lines, set) {
    if (set.side || set.measure.endsWith("_local")) return [0, 100]; // one scale for all charts of figure 4
    let low = Infinity, high = -Infinity;
    for (const { y, spread } of lines) {
      y.forEach((v, i) => {
        low = Math.min(low, v - (spread ? spread[i] : 0));
        high = Math.max(high, v + (spread ? spread[i] : 0));
      });
    }
    return set.measure === "similarity" ? [Math.min(low, 0.99), 1] : low < high ? [low, high] : [low - 1, high + 1];
  }

  function movingAverage(values) {
    let average = values[0];
    return values.map((v, i) => (average = i ? 0.6 * average + 0.4 * v : v));
  }

  function drawLines(box) {
    const set = box.dataset, all = linesOf(set).filter((line) => line.x.length);
    const lines = all.filter((line) => !hidden.has(line.curve));
    if (!all.length) return empty(box, "Nothing was measured.");
    const show = (value) => value.toFixed(set.digits) + set.unit;
    const byRound = set.x === "round";

    // Ranges are those of all runs, so that nothing jumps when one is hidden.
    const xs = all.flatMap((line) => line.x);
    let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    if (byRound) x1 = Math.max(x1, ...data.curves.map((c) => c.accuracy[0].at(-1) || 1));
    else x0 = 0;
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    const [low, high] = valueRange(set.facet ? linesOf({ ...set, facet: "" }) : all, set); // one scale for all facets
    const yTicks = ticks(low, high, box.classList.contains("small") ? 4 : 5, { around: true });
    const [y0, y1] = [yTicks.at[0], yTicks.at.at(-1)];

    // Names at the ends of the lines where there is room, so that readers need not look at the legend.
    const widest = Math.max(...all.map((line) => textWidth(line.label)));
    const named = box.classList.contains("labelled") && box.clientWidth >= (set.facet ? 420 : 640) && all.length > 1 && widest < 170;
    const right = named ? widest + 18 : 12;
    const height = box.clientWidth < 560 ? 240 : box.classList.contains("large") ? 380 : 270;
    const left = Math.max(...yTicks.at.map((v) => textWidth(v.toFixed(yTicks.decimals)))) + 12;
    const ends = lines.map((line) => `${line.label} ends at ${show(line.y.at(-1))}`);
    const label = `${set.y} by ${set.x}: ${ends.join(", ")}`;
    const { svg, area } = picture(box, { left, right, top: 26, bottom: 42 }, height, label);
    const x = (v) => area.left + ((v - x0) / (x1 - x0)) * (area.right - area.left);
    const y = (v) => area.bottom - ((v - y0) / (y1 - y0)) * (area.bottom - area.top);
    const point = (line, values, i) => `${x(line.x[i]).toFixed(1)} ${y(values[i]).toFixed(1)}`;
    const dot = (parent, line, i) =>
      add(parent, "circle", { class: `dot ${line.css}`, cx: x(line.x[i]), cy: y(line.y[i]), r: 4, fill: line.colour });
    const path = (line, values) => "M" + values.map((_, i) => point(line, values, i)).join("L");

    add(svg, "text", { x: 0, y: 12 }, set.y);
    for (const v of yTicks.at) {
      add(svg, "path", { class: v === 0 ? "axis" : "grid", d: `M${area.left} ${y(v)}H${area.right}` });
      add(svg, "text", { x: area.left - 8, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(yTicks.decimals));
    }
    xAxis(svg, area, x, x0, x1, set.x, byRound);

    for (const line of lines.filter((one) => one.spread && !smooth)) {
      // Mean plus deviation may exceed an axis that ends at the maximum (similarity 1, accuracy 100 %).
      const inside = (v) => Math.min(y1, Math.max(y0, v));
      const [above, below] = [1, -1].map((sign) => line.y.map((v, i) => inside(v + sign * line.spread[i])));
      const back = below.map((_, i) => point(line, below, i)).reverse();
      add(svg, "path", { class: "band", d: `${path(line, above)}L${back.join("L")}Z`, fill: line.colour });
    }
    for (const line of lines) {
      const style = { stroke: line.colour, "stroke-dasharray": line.dash };
      if (smooth) add(svg, "path", { class: "raw", d: path(line, line.y), ...style });
      const drawn = smooth ? movingAverage(line.y) : line.y;
      add(svg, "path", { class: `line ${line.css}`, d: path(line, drawn), "data-curve": line.curve, ...style });
      if (line.x.length === 1) dot(svg, line, 0);
      if (line.status === "failed") {
        const [px, py] = [x(line.x.at(-1)), y(drawn.at(-1))];
        add(svg, "path", { class: "mark", d: `M${px - 4} ${py - 4}l8 8m0 -8l-8 8` });
      }
    }
    if (named) nameEnds(svg, lines, area, x, y);
    crosshair(svg, area, lines, { x, x0, x1, byRound, show, dot, unit: set.x });
  }

  // Beside the last point of each line that reaches the end, moved apart where they would overlap.
  function nameEnds(svg, lines, area, x, y) {
    const names = lines.filter((line) => x(line.x.at(-1)) > area.right - 1)
      .map((line) => ({ line, at: y((smooth ? movingAverage(line.y) : line.y).at(-1)) }));
    names.sort((a, b) => a.at - b.at);
    names.forEach((name, i) => { if (i) name.at = Math.max(name.at, names[i - 1].at + 15); });
    const over = names.length ? Math.max(0, names.at(-1).at - area.bottom) : 0;
    for (const { line, at } of names) add(svg, "text", { class: "end", x: area.right + 8, y: at - over + 4 }, line.label);
  }

  // The vertical line that follows the pointer (or the arrow keys) and shows the value of every run there.
  function crosshair(svg, area, lines, { x, x0, x1, byRound, show, dot, unit }) {
    const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const layer = add(svg, "g", { visibility: "hidden" });
    let current = places.length - 1;

    function tell(clientX, clientY) {
      const place = places[current], rows = [];
      layer.replaceChildren();
      layer.setAttribute("visibility", "visible");
      add(layer, "path", { class: "cross", d: `M${x(place)} ${area.top}V${area.bottom}` });
      for (const line of lines) {
        // By round, the value of that very round; by traffic or time, the last value up to there.
        const i = byRound ? line.x.indexOf(place) : line.x.findLastIndex((v) => v <= place);
        if (i < 0 || (!byRound && place > line.x.at(-1))) continue;
        dot(layer, line, i);
        const spread = line.spread ? ` ± ${show(line.spread[i]).replace(" %", "")}` : "";
        rows.push({ ...line, value: line.y[i], text: show(line.y[i]) + spread });
      }
      rows.sort((a, b) => b.value - a.value);
      tip(byRound ? `round ${place}` : `${place.toFixed(2)} ${unit}`, rows, clientX, clientY);
    }
    function away() {
      layer.setAttribute("visibility", "hidden");
      hideTip();
    }
    svg.addEventListener("pointermove", (event) => {
      if (!places.length) return;
      const frame = svg.getBoundingClientRect();
      const px = ((event.clientX - frame.left) / frame.width) * svg.viewBox.baseVal.width;
      const wanted = x0 + ((px - area.left) / (area.right - area.left)) * (x1 - x0);
      current = places.reduce((best, v, i) => (Math.abs(v - wanted) < Math.abs(places[best] - wanted) ? i : best), 0);
      tell(event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", away);
    svg.addEventListener("blur", away);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") away();
      if (!step || !places.length) return;
      event.preventDefault();
      current = limit(current + step, 0, places.length - 1);
      const frame = svg.getBoundingClientRect();
      tell(frame.left + (x(places[current]) / svg.viewBox.baseVal.width) * frame.width, frame.top + 40);
    });
  }

  // --- points -----------------------------------------------------------------------------------------------------

  // One point per group: its cost and its final accuracy.
  function drawPoints(box) {
    const set = box.dataset, all = data.points;
    if (!all.length) return empty(box, "No run has finished.");
    const xs = all.map((p) => p[set.points]), [x0, x1] = [0, Math.max(...xs) * 1.05 || 1];
    const lows = all.map((p) => 100 * (p.accuracy - (p.spread || 0)));
    const highs = all.map((p) => 100 * (p.accuracy + (p.spread || 0)));
    const [low, high] = [Math.min(...lows), Math.max(...highs)];
    const yTicks = ticks(low, high > low ? high : low + 1, 5, { around: true });
    const [y0, y1] = [yTicks.at[0], yTicks.at.at(-1)];
    const left = Math.max(...yTicks.at.map((v) => textWidth(v.toFixed(yTicks.decimals)))) + 12;
    const label = `${set.y} by ${set.x}`;
    const { svg, area } = picture(box, { left, right: 12, top: 26, bottom: 42 }, 270, label);
    const x = (v) => area.left + ((v - x0) / (x1 - x0)) * (area.right - area.left);
    const y = (v) => area.bottom - ((v - y0) / (y1 - y0)) * (area.bottom - area.top);
    add(svg, "text", { x: 0, y: 12 }, set.y);
    for (const v of yTicks.at) {
      add(svg, "path", { class: v === 0 ? "axis" : "grid", d: `M${area.left} ${y(v)}H${area.right}` });
      add(svg, "text", { x: area.left - 8, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(yTicks.decimals));
    }
    xAxis(svg, area, x, x0, x1, set.x, false);
    all.forEach((p, i) => {
      const [px, py] = [x(xs[i]), y(100 * p.accuracy)];
      if (p.spread) add(svg, "path", { class: "line", d: `M${px} ${y(lows[i])}V${y(highs[i])}`, stroke: p.colour, opacity: 0.4 });
      const dot = add(svg, "circle", { class: "dot", cx: px, cy: py, r: 5, fill: p.colour });
      if (p.hollow) dot.style.cssText = `fill:var(--page);stroke:${p.colour};stroke-width:2`;
      dot.addEventListener("pointerenter", (event) => {
        const spread = p.spread ? ` ± ${(100 * p.spread).toFixed(2)}` : "";
        const rows = [
          { label: "accuracy", text: `${(100 * p.accuracy).toFixed(2)}${spread} %` },
          { label: set.x, text: xs[i].toPrecision(3) },
        ];
        tip(p.label, rows, event.clientX, event.clientY);
      });
      dot.addEventListener("pointerleave", hideTip);
    });
  }

  // --- heat maps --------------------------------------------------------------------------------------------------

  // Class-wise accuracy by round, or samples by client: z[column][row]. One pixel per cell, stretched: 100 classes by
  // 200 rounds would be too many SVG elements.
  function drawHeat(box) {
    const set = box.dataset, isAccuracy = set.heat === "classAccuracy";
    const { z, rows } = data[set.heat][set.index];
    const first = isAccuracy ? 1 : 0;
    const columns = isAccuracy ? Math.max(...data.classAccuracy.map((panel) => panel.z.length)) : z.length;
    if (!z.length) return empty(box, "No round was finished.");
    const most = Math.max(...z.map((column) => Math.max(...column)));
    const sizes = isAccuracy ? [] : z.map((column) => column.reduce((a, b) => a + b, 0));

    const rowHeight = limit(300 / rows.length, 3, 18);
    const strip = isAccuracy ? 6 : 40; // above the rows: half a line of text, or the bars
    const left = Math.min(box.clientWidth < 560 ? 84 : 120, Math.max(...rows.map(textWidth)) + 10);
    const what = isAccuracy ? "accuracy of each class by round" : "samples of each class by client";
    const height = strip + rows.length * rowHeight + 42;
    const { svg, area } = picture(box, { left, right: 14, top: strip, bottom: 42 }, height, `${set.label}: ${what}`);
    const inside = { x: area.left, y: area.top, height: area.bottom - area.top };
    const cell = (area.right - area.left) / columns;

    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [z.length, rows.length];
    const context = canvas.getContext("2d"), image = context.createImageData(z.length, rows.length);
    z.forEach((column, i) => column.forEach((value, j) => {
      image.data.set(isAccuracy ? accuracyColour(value) : countColour(value / most), 4 * (j * z.length + i));
    }));
    context.putImageData(image, 0, 0);
    add(svg, "rect", { class: "blank", ...inside, width: cell * columns });
    add(svg, "image", { ...inside, width: cell * z.length, preserveAspectRatio: "none", href: canvas.toDataURL() });
    if (!isAccuracy && Math.min(cell, rowHeight) > 5) {
      const across = rows.map((_, j) => `M${area.left} ${area.top + j * rowHeight}H${area.right}`);
      const down = z.map((_, i) => `M${area.left + i * cell} ${area.top}V${area.bottom}`);
      add(svg, "path", { class: "mesh", d: across.concat(down).join("") });
    }
    sizes.forEach((size, i) => {
      const width = Math.max(cell - 1, cell * 0.7), tall = (size / Math.max(...sizes)) * (strip - 10);
      add(svg, "rect", { class: "bar", x: area.left + i * cell, y: strip - 6 - tall, width, height: tall });
    });

    const every = [1, 2, 5, 10, 20, 50, 100].find((n) => n * rowHeight >= 13) || 100;
    rows.forEach((name, j) => {
      if (j % every) return;
      const middle = area.top + (j + 0.5) * rowHeight + 4;
      add(svg, "text", { x: left - 8, y: middle, "text-anchor": "end" }, shortened(name, left - 10));
    });
    const x = (v) => area.left + (v - first + 0.5) * cell;
    xAxis(svg, area, x, first, first + columns - 1, isAccuracy ? "round" : "client", true);

    const frame = add(svg, "rect", { class: "mark", width: cell, height: rowHeight, visibility: "hidden" });
    function leave() {
      frame.setAttribute("visibility", "hidden");
      hideTip();
    }
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("pointermove", (event) => {
      const outer = svg.getBoundingClientRect(), zoom = svg.viewBox.baseVal.width / outer.width;
      const i = Math.floor(((event.clientX - outer.left) * zoom - area.left) / cell);
      const j = Math.floor(((event.clientY - outer.top) * zoom - area.top) / rowHeight);
      if (!z[i] || j >= rows.length || (j < 0 && isAccuracy)) return leave();
      const title = `${isAccuracy ? "round" : "client"} ${i + first}`;
      const text = (v) => (v === null ? "–" : isAccuracy ? `${(100 * v).toFixed(1)} %` : v.toLocaleString("en"));
      const told = j < 0 ? [] : [{ label: rows[j], text: text(z[i][j]) }];
      if (!isAccuracy) told.push({ label: "all classes", text: text(sizes[i]) });
      frame.setAttribute("visibility", j < 0 ? "hidden" : "visible");
      frame.setAttribute("x", area.left + i * cell);
      frame.setAttribute("y", area.top + j * rowHeight);
      tip(title, told, event.clientX, event.clientY);
    });
  }

  function accuracyColour(share) {
    if (share === null) return [0, 0, 0, 0];
    const place = limit(share, 0, 1) * (VIRIDIS.length - 1), i = Math.min(Math.floor(place), VIRIDIS.length - 2);
    return [...VIRIDIS[i].map((v, k) => v + (place - i) * (VIRIDIS[i + 1][k] - v)), 255];
  }

  // The square root makes small counts distinct from zero.
  const countColour = (share) => [0, 114, 178, share ? 255 * (0.12 + 0.88 * Math.sqrt(share)) : 0];

  // --- what all charts share --------------------------------------------------------------------------------------

  function empty(box, text) {
    const note = box.appendChild(document.createElement("p"));
    note.className = "empty";
    note.textContent = text;
  }

  const tipBox = document.getElementById("tip");

  function tip(title, rows, clientX, clientY) {
    const make = (parent, name, text = "") => {
      const node = parent.appendChild(document.createElement(name));
      node.textContent = text;
      return node;
    };
    tipBox.replaceChildren();
    make(tipBox, "b", title);
    for (const row of rows) {
      const item = make(tipBox, "div");
      if ("colour" in row) {
        const dot = make(item, "i");
        dot.className = "dot";
        dot.style.cssText = `flex:none;margin:0;background:${row.colour || "var(--global)"}`;
      }
      make(item, "em", row.label).style.fontStyle = "normal";
      make(item, "span", row.text);
    }
    tipBox.hidden = false;
    const { width, height } = tipBox.getBoundingClientRect();
    const roomRight = clientX + 16 + width <= innerWidth;
    const left = limit(roomRight ? clientX + 16 : clientX - 16 - width, 4, Math.max(4, innerWidth - width - 4));
    tipBox.style.transform = `translate(${left}px, ${limit(clientY - height - 12, 4, innerHeight - height - 4)}px)`;
  }

  function hideTip() {
    tipBox.hidden = true;
  }

  function draw() {
    hideTip();
    for (const figure of document.querySelectorAll("figure[data-curve]")) {
      figure.hidden = hidden.has(Number(figure.dataset.curve));
    }
    for (const box of document.querySelectorAll(".chart")) {
      box.replaceChildren();
      if (box.clientWidth) (box.dataset.heat ? drawHeat : box.dataset.points ? drawPoints : drawLines)(box);
    }
  }

  for (const cell of document.querySelectorAll("td[data-share]")) {
    const share = Number(cell.dataset.share), [r, g, b] = accuracyColour(share);
    cell.style.cssText = `background:rgb(${r},${g},${b});color:${share > 0.55 ? "#16191d" : "#ffffff"}`;
  }

  for (const key of document.querySelectorAll(".key")) {
    key.addEventListener("click", () => {
      const number = Number(key.dataset.curve), show = hidden.delete(number);
      if (!show) hidden.add(number);
      key.setAttribute("aria-pressed", show);
      draw();
    });
  }
  document.getElementById("smooth").addEventListener("change", (event) => {
    smooth = event.target.checked;
    draw();
  });

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.sort;
        const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
        const rows = [...body.rows].filter((row) => value(row) !== "");
        rows.sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
        body.prepend(...rows); // rows without a value stay last in both orders
      });
    });
  }

  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => { if (details.querySelector(".chart")) draw(); });
  }

  let drawnAt = 0;
  new ResizeObserver(() => {
    const width = document.querySelector("main").clientWidth;
    if (width !== drawnAt) draw();
    drawnAt = width;
  }).observe(document.querySelector("main"));
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); draw(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); draw(); });
  draw();
  drawnAt = document.querySelector("main").clientWidth;
})();

// The page around it: what is typed and dragged, the tables, and the curves.
(function () {
  const { analyse, formats, coefficient } = window.tmifpe, byId = (id) => document.getElementById(id);
  const names = Object.keys(formats), classes = { fp16: "c1", bf16: "c3", fp32: "c0", fp64: "c2" }, dashes = { fp16: "7 3", bf16: "9 3 2 3", fp32: "2 3", fp64: "5 2" };
  const meaning = { u_u: "untargeted, not yet successful", u_s: "untargeted, successful", t_u: "targeted, not yet successful", t_s: "targeted, successful" };
  const panels = JSON.parse(byId("panels").dataset.panels), MOST = 24;
  const six = (x) => !Number.isFinite(x) ? String(x) : x !== 0 && Math.abs(x) < 1e-4 ? x.toExponential(4) : Number(x.toPrecision(6)).toString();

  function node(kind, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function cell(kind, text) { const made = document.createElement(kind); made.textContent = text; if (kind === "th") made.scope = "row"; return made; }

  function fill(body, rows) {
    body.replaceChildren(...rows.map((row) => { const line = document.createElement("tr"); line.append(...row.map((text, k) => cell(k ? "td" : "th", text))); return line; }));
  }

  function grid(found) {
    const last = Math.max(...names.map((name) => found.bounds[name].t)), points = 240;
    if (found.first) return Array.from({ length: points }, (_, k) => Math.max(5, 2.5 * last) * (k + 1) / points);
    const high = Math.log10(Math.max(10, 2 * last));
    return Array.from({ length: points }, (_, k) => 10 ** (-1 + (high + 1) * k / (points - 1)));
  }

  function scale(low, high, start, end, log) {
    const f = log ? Math.log10 : (x) => x;
    return (x) => start + (f(x) - f(low)) / ((f(high) - f(low)) || 1) * (end - start);
  }

  function ticks(low, high, log) {
    if (log) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), every = Math.ceil((last - first + 1) / 5) || 1, made = [];
      for (let k = first; k <= last; k += every) made.push(10 ** k);
      return made.length > 1 ? made : [low, high];
    }
    const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((k) => k * power).find((x) => x >= raw), made = [];
    for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) made.push(x);
    return made;
  }

  function axes(svg, x, y, box, limits, title) {
    const [left, right, top, bottom] = box, [tl, th, tlog, vl, vh, vlog] = limits;
    for (const value of ticks(vl, vh, vlog)) {
      svg.append(node("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }), node("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end", class: "small" }, vlog ? value.toExponential(0) : six(value)));
    }
    for (const value of ticks(tl, th, tlog)) svg.append(node("text", { x: x(value), y: bottom + 15, "text-anchor": "middle", class: "small" }, six(value)));
    svg.append(node("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }), node("text", { x: left, y: top - 5, class: "title small" }, title));
  }

  // g above and delta_sup below over the same t; the stars are t*.
  function draw(svg, found, label) {
    svg.setAttribute("viewBox", "0 0 440 400"); svg.setAttribute("role", "img"); svg.setAttribute("aria-label", label);
    svg.replaceChildren();
    const t = grid(found), g = t.map((s) => coefficient(found, s)), log = !found.first, x = scale(log ? t[0] : 0, t[t.length - 1], 60, 428, log);
    const line = (values, y, kind, dash) => node("polyline", { points: values.map((v, k) => x(t[k]).toFixed(1) + "," + y(v).toFixed(1)).join(" "), class: "line " + kind, ...(dash ? { "stroke-dasharray": dash } : {}) });
    const positive = g.filter((v) => v > 0), low = Math.min(...positive), most = Math.max(...g), y = scale(log ? low : 0, most * 1.08, 170, 22, log);
    axes(svg, x, y, [60, 428, 22, 170], [log ? t[0] : 0, t[t.length - 1], log, log ? low : 0, most * 1.08, log], "g(t)");
    svg.append(line(g.map((v) => Math.max(v, low)), y, "ink"));
    const sups = names.flatMap((name) => [formats[name].eps / most, formats[name].eps / Math.max(low, log ? 0 : most * 1e-3)]), bottom = Math.min(...sups) / 2, high = Math.max(...sups) * 2, v = scale(bottom, high, 355, 205, true);
    axes(svg, x, v, [60, 428, 205, 355], [log ? t[0] : 0, t[t.length - 1], log, bottom, high, true], "delta_sup(t), by format");
    for (const name of names) {
      const bound = found.bounds[name];
      svg.append(line(g.map((one) => Math.min(Math.max(formats[name].eps / Math.max(one, 1e-300), bottom), high)), v, classes[name], dashes[name]));
      svg.append(node("circle", { cx: x(bound.t), cy: v(bound.delta_sup), r: 4.5, class: "fill ink" }), node("circle", { cx: x(bound.t), cy: y(bound.g), r: 4.5, class: "fill ink" }));
    }
    names.forEach((name, k) => svg.append(node("line", { x1: 62 + 92 * k, x2: 88 + 92 * k, y1: 388, y2: 388, class: "line " + classes[name], "stroke-dasharray": dashes[name] }), node("text", { x: 93 + 92 * k, y: 392 }, name)));
  }

  function read() {
    const z = byId("logits").value.split(/[\s,;[\]()]+/).filter((word) => word).map(Number), whole = (id) => byId(id).value === "" ? null : Number(byId(id).value);
    const label = whole("label"), target = whole("target"), problem = z.length < 2 ? "Write at least two logits." : z.some((x) => !Number.isFinite(x)) ? "Every logit must be a number, as in 2.5, -1.3, 0.8." : [label === null ? -1 : label, target === null ? 0 : target].some((k) => !Number.isInteger(k) || k < 0 || k >= z.length) ? "Label and target are classes from 0 to " + (z.length - 1) + "." : "";
    return { z, label, target, precision: byId("precision").value, problem };
  }

  function show(sliders) {
    const asked = read(), said = byId("said");
    said.textContent = asked.problem;
    if (asked.problem) return;
    if (sliders) slide(asked.z);
    const found = analyse(asked.z, asked.label, asked.target, asked.precision), facts = [["scenario", found.scenario + " (" + meaning[found.scenario] + ")"], ["rank of the class", String(found.rank)], ["Delta", six(found.delta)]];
    const body = (id) => byId(id).tBodies[0];
    if (found.tie) said.textContent = "The two largest logits are equal: Delta is 0, so t* and g do not exist.";
    else {
      facts.push(["t* (" + asked.precision + ")", found.t.toPrecision(12)], ["g(t*)", found.g.toPrecision(12)]);
      fill(body("bounds"), names.map((name) => [name, six(found.bounds[name].t), six(found.bounds[name].g), found.bounds[name].delta_sup.toExponential(3)]));
      fill(body("maxima"), found.first ? found.maxima.map((one) => [one.t.toPrecision(9), one.g.toPrecision(9)]) : [["none: g only increases", ""]]);
      draw(byId("curves"), found, "g and delta_sup over t for these logits");
    }
    fill(body("facts"), facts);
    const losses = Object.keys(found.gradients), head = byId("gradients").tHead.rows[0];
    head.replaceChildren(...["class", "logit", ...losses].map((text) => { const made = cell("th", text); made.scope = "col"; return made; }));
    fill(body("gradients"), asked.z.slice(0, 50).map((x, k) => [String(k), six(x), ...losses.map((loss) => six(found.gradients[loss][k]))]));
  }

  function slide(z) {
    const box = byId("sliders"), reach = Math.max(5, ...z.map(Math.abs)) * 1.5;
    byId("drag").hidden = z.length > MOST;
    if (z.length > MOST) return box.replaceChildren();
    box.replaceChildren(...z.map((x, k) => {
      const line = document.createElement("label"), input = document.createElement("input");
      input.type = "range"; input.min = -reach; input.max = reach; input.step = reach / 1000; input.value = x;
      input.addEventListener("input", () => { const now = read().z; now[k] = Number(input.value); byId("logits").value = now.map((v) => Number(v.toPrecision(5))).join(", "); show(false); });
      line.append("class " + k + " ", input);
      return line;
    }));
  }

  function choose(panel) {
    byId("logits").value = panel.logits.join(", "); byId("label").value = panel.label; byId("target").value = panel.target === null ? "" : panel.target;
    show(true);
  }

  for (const id of ["logits", "label", "target", "precision"]) byId(id).addEventListener("input", () => show(true));
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const panel of panels) {
    const figure = byId("panel-" + panel.letter);
    draw(figure.querySelector("svg"), analyse(panel.logits, panel.label, panel.target, "fp32"), "Figure 1 (" + panel.letter + "): " + panel.title);
    figure.querySelector("button").addEventListener("click", () => { choose(panel); byId("form").scrollIntoView(); });
  }
  choose(panels[0]);
})();

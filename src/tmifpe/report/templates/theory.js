"use strict";
// The paper's analysis of one row of logits, in the browser: the same formulas as tmifpe.theory, in float64, and every
// loss's gradient in the precision that is chosen, rounded after each operation.
(function () {
  const LN2 = Math.log(2);
  const bits = { fp16: [5, 10], bf16: [8, 7], fp32: [8, 23], fp64: [11, 52] };
  const formats = {};
  for (const [name, [exponent, mantissa]] of Object.entries(bits)) {
    const emin = 2 - 2 ** (exponent - 1);
    formats[name] = { name, emin, mantissa, lam: (mantissa - emin) * LN2, eps: 2 ** -mantissa, round: rounder(name, emin, mantissa) };
  }

  // To the nearest number of the format, ties to even; adding and subtracting a large number rounds.
  function rounder(name, emin, mantissa) {
    if (name === "fp64") return (x) => x;
    if (name === "fp32") return Math.fround;
    const largest = (2 - 2 ** -mantissa) * 2 ** (1 - emin);
    return (x) => {
      if (!Number.isFinite(x) || x === 0) return x;
      const exponent = Math.max(Math.floor(Math.log2(Math.abs(x))), emin), unit = 2 ** (exponent - mantissa);
      const whole = Math.abs(x) / unit, floor = Math.floor(whole), rest = whole - floor;
      const near = rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
      return near * unit > largest ? Math.sign(x) * Infinity : Math.sign(x) * near * unit;
    };
  }

  // Lambert's W for x > 0, by Newton's method.
  function lambert(x) {
    let w = Math.log1p(x);
    for (let k = 0; k < 40; k++) { const e = Math.exp(w); w -= (w * e - x) / (e * (w + 1)); }
    return w;
  }

  function moments(d, t) {
    let q = 0, s = 0;
    for (let k = 1; k < d.length; k++) { const e = Math.exp(-t * d[k]); q += e; s += d[k] * e; }
    return [q, s];
  }

  // Every maximum of G(t) = t q/(1+q), highest first: a grid over all critical points, then bisection on t m = 1 + q.
  function maxima(d) {
    const high = (1 + lambert((d.length - 1) / Math.E)) * (1 + 1e-6), low = Math.min(1 / d[d.length - 1], high / 2) * (1 - 1e-6);
    const points = 4096, at = (k) => low * (high / low) ** (k / (points - 1));
    const height = (t) => { const [q] = moments(d, t); return t * q / (1 + q); };
    const heights = Array.from({ length: points }, (_, k) => height(at(k))), found = [];
    for (let k = 0; k < points; k++) {
      if (!(heights[k] >= (k ? heights[k - 1] : -1) && heights[k] > (k + 1 < points ? heights[k + 1] : -1))) continue;
      let a = at(Math.max(k - 1, 0)), b = at(Math.min(k + 1, points - 1));
      for (let turn = 0; turn < 80; turn++) {
        const t = (a + b) / 2, [q, s] = moments(d, t);
        if (t * s / q < 1 + q) a = t; else b = t;
      }
      found.push({ t: (a + b) / 2, height: height((a + b) / 2) });
    }
    return found.sort((one, other) => other.height - one.height || one.t - other.t);
  }

  function rowOf(z, label, target) {
    const aim = target === null ? label : target, order = z.map((_, k) => k);
    order.sort((a, b) => z[b] - z[a] || (b === aim) - (a === aim) || a - b);
    const top = z[order[0]], delta = top - z[order[1]], rank = order.indexOf(aim) + 1;
    const scenario = (target === null ? "u_" : "t_") + ((rank === 1) === (target === null) ? "u" : "s");
    return { z, aim, label, target, order, delta, rank, scenario, first: rank === 1, d: order.map((k) => (top - z[k]) / delta) };
  }

  function coefficient(row, t) {
    const [q] = moments(row.d, t);
    return t / row.delta * (row.first ? q : 1) / (1 + q);
  }

  function analyse(z, label, target, precision) {
    const row = rowOf(z, label, target);
    if (row.delta === 0) return { ...row, tie: true, gradients: gradients(row, null, precision) };
    const tops = row.first ? maxima(row.d) : [];
    const tOf = (name) => row.first ? tops[0].t : Math.max(1, formats[name].lam / row.d[row.rank - 1]);
    const bounds = {};
    for (const name of Object.keys(formats)) { const t = tOf(name), g = coefficient(row, t); bounds[name] = { t, g, delta_sup: formats[name].eps / g }; }
    const t = tOf(precision);
    return { ...row, tie: false, t, g: coefficient(row, t), bounds, maxima: tops.map((one) => ({ t: one.t, g: one.height / row.delta })), gradients: gradients(row, t, precision) };
  }

  // d loss / d z of every loss. T-MIFPE and MIFPE without the factor t/Delta, which turns no direction.
  function gradients(row, t, precision) {
    const sign = row.target === null ? 1 : -1, wide = formats[precision === "fp64" ? "fp64" : "fp32"].round, r = formats[precision].round;
    const z = row.z.map(r), flip = (w) => w.map((x) => sign * x + 0), found = { ce: flip(ce(z, row.aim, r)), "ce-margin": flip(ceMargin(z, row.aim, wide)) };
    found.cw = flip(cw(z, row.aim));
    if (z.length >= (row.target === null ? 3 : 4)) found.dlr = dlr(z, row.label, row.target, wide);
    if (!row.tie && t !== null) { found.mifpe = flip(scaled(row, 1, wide)); found.tmifpe = flip(scaled(row, t, wide)); }
    return found;
  }

  function ce(z, y, r) {
    const top = Math.max(...z), shifted = z.map((x) => r(x - top)), total = shifted.reduce((sum, x) => r(sum + r(Math.exp(x))), 0);
    const p = shifted.map((x) => r(Math.exp(r(x - r(Math.log(total))))));
    return p.map((x, k) => k === y ? r(x - 1) : x);
  }

  function ceMargin(z, y, r) {
    const rival = Math.max(...z.filter((_, k) => k !== y)), e = z.map((x, k) => k === y ? 0 : r(Math.exp(r(x - rival))));
    const total = e.reduce((sum, x) => r(sum + x), 0), x = r(r(rival - z[y]) + r(Math.log(total)));
    const pull = r(r(Math.exp(Math.min(x, 0))) / r(1 + r(Math.exp(-Math.abs(x)))));
    return e.map((one, k) => k === y ? -pull : r(one * r(pull / Math.max(total, 1))));
  }

  function cw(z, y) {
    const rival = Math.max(...z.filter((_, k) => k !== y)), hit = z.filter((x, k) => k !== y && x === rival).length;
    return z.map((x, k) => k === y ? -1 : x === rival ? 1 / hit : 0);
  }

  function shares(z, value) { const hit = z.filter((x) => x === value).length; return z.map((x) => x === value ? 1 / hit : 0); }

  function dlr(z, y, target, r) {
    const sorted = z.slice().sort((a, b) => b - a), masked = z.map((x, k) => k === y ? -Infinity : x), other = target === null ? Math.max(...masked) : z[target];
    const toward = target === null ? shares(masked, other) : z.map((_, k) => k === target ? 1 : 0), ranks = target === null ? [2] : [2, 3];
    const low = ranks.reduce((sum, k) => sum + sorted[k], 0) / ranks.length, spread = r(sorted[0] - low);
    const top = shares(z, sorted[0]), lows = ranks.map((k) => shares(z, sorted[k])), ratio = spread ? r(r(other - z[y]) / spread) : 0;
    return z.map((_, k) => r(toward[k] - (k === y ? 1 : 0) - r(ratio * (top[k] - lows.reduce((sum, one) => sum + one[k], 0) / ranks.length))));
  }

  function scaled(row, t, r) {
    const top = row.z[row.order[0]], gap = r(row.delta), e = row.z.map((x) => r(Math.exp(r(r(r(x - top) / gap) * t))));
    const others = e.reduce((sum, x, k) => k === row.aim ? sum : r(sum + x), 0), total = r(others + e[row.aim]);
    return e.map((x, k) => k === row.aim ? -r(others / total) : r(x / total));
  }

  window.tmifpe = { analyse, formats, coefficient, rowOf };
})();

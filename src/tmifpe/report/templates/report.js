// The filters of the galleries, and folded parts that open for the printer. Charts need no script.
(function () {
  function gallery(section) {
    const form = section.querySelector("form"), list = section.querySelector(".cards");
    if (!form) return;
    const cards = Array.from(list.children), count = form.querySelector("output");
    const wanted = (card) => {
      const asked = form.elements, data = card.dataset;
      return (!asked.label.value || data.label === asked.label.value)
        && (!asked.stage.value || data.stage === asked.stage.value)
        && (asked.steps.value === "" || Number(data.steps) <= Number(asked.steps.value))
        && (!asked.fragile.checked || data.fragile === "1")
        && (!asked.nearest.checked || data.nearest === "1");
    };
    const show = () => {
      let shown = 0;
      for (const card of cards) { card.hidden = !wanted(card); shown += card.hidden ? 0 : 1; }
      const by = form.elements.order.value;
      const value = { "": (_, k) => k, margin: (card) => Math.abs(Number(card.dataset.margin)), steps: (card) => Number(card.dataset.steps) }[by];
      const placed = cards.map((card, k) => [value(card, k), k, card]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      list.append(...placed.map((one) => one[2]));
      count.textContent = shown + " of " + cards.length;
    };
    form.addEventListener("input", show);
    form.addEventListener("reset", () => setTimeout(show));
    form.addEventListener("submit", (event) => event.preventDefault());
  }
  document.querySelectorAll(".gallery").forEach(gallery);

  let opened = [];
  addEventListener("beforeprint", () => { opened = Array.from(document.querySelectorAll("details.run:not([open])")); opened.forEach((one) => { one.open = true; }); });
  addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
  const jump = () => { const one = location.hash && document.getElementById(location.hash.slice(1)); if (one && one.tagName === "DETAILS") one.open = true; };
  addEventListener("hashchange", jump);
  jump();
})();

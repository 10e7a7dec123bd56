"use strict";
// Light or dark: as the system has it, until the button is pressed.
(function () {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const said = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-pressed", String(dark())); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; said(); });
  said();
})();

// Dark or light: what the visitor chose before, else what the system prefers. Loaded before the first paint.
"use strict";
(function () {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = function () {
    try { return localStorage.getItem("paceline-theme"); } catch { return null; }
  };
  const apply = function (name) {
    root.dataset.theme = name;
    document.dispatchEvent(new CustomEvent("theme"));
  };
  apply(kept() || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", function () { if (!kept()) { apply(dark.matches ? "dark" : "light"); } });
  document.addEventListener("DOMContentLoaded", function () {
    document.getElementById("theme").addEventListener("click", function () {
      const name = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("paceline-theme", name); } catch { /* a browser that keeps nothing still switches */ }
      apply(name);
    });
  });
})();

// Before the first paint: the theme that was chosen, else the system's.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("shanty.theme");
  } catch (error) {
    /* no storage: the system's theme */
  }
  var system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen === "dark" || chosen === "light" ? chosen : system;
})();

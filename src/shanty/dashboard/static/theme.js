// Before the first paint: the theme that was chosen, else the system's.
(function () {
  try {
    var chosen = localStorage.getItem("shanty.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) {
    /* no storage: the system's theme */
  }
})();

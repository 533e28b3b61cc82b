// Light or dark before anything is drawn: what was chosen here, else what the system says. A classic script, so that
// it runs before the first paint.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("remask-theme");
  } catch {
    // a browser that keeps nothing: follow the system
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

// Runs before the first paint, so that a remembered theme never flashes the other one.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled: the system's theme applies */ }
document.documentElement.classList.add("js");

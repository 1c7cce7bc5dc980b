// The theme puts each button that copies a block into a nav element without a name; a screen reader lists landmarks by name.
new MutationObserver(() => {
  document
    .querySelectorAll("nav.md-code__nav:not([aria-label])")
    .forEach((each) => each.setAttribute("aria-label", `Copy ${each.closest("pre")?.id ?? ""}`));
}).observe(document.documentElement, { childList: true, subtree: true });

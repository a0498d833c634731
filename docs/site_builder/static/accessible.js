// Mends what the theme leaves out for readers who use a keyboard or a screen reader; tests/browser/test_site.py checks it.
document.addEventListener("DOMContentLoaded", () => {
  // Captions of the navigation are headings without a level.
  for (const caption of document.querySelectorAll("[role=heading]:not([aria-level])")) caption.setAttribute("aria-level", "2");
  // Of two complementary landmarks, each needs a name.
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "Sections of this page");
  // The page of the search has no title.
  const article = document.querySelector("article");
  if (article && !document.querySelector("h1")) {
    const title = document.createElement("h1");
    title.textContent = "Search";
    article.prepend(title);
  }
  // The corner of a table may be empty, but a heading may not.
  for (const corner of document.querySelectorAll("th")) {
    if (!corner.textContent.trim()) {
      const cell = document.createElement("td");
      cell.className = corner.className;
      corner.replaceWith(cell);
    }
  }
  // The lines of a long signature are no list of terms.
  for (const line of document.querySelectorAll("dt > dl > dd, dt > dl")) {
    const box = document.createElement("div");
    box.className = line.localName === "dd" ? "signature-line" : "";
    box.append(...line.childNodes);
    line.replaceWith(box);
  }
  // What scrolls sideways can be reached and scrolled by keys.
  const scrollable = () => {
    for (const box of document.querySelectorAll("pre, .table-wrapper, div.output, div.cell_output")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  scrollable();
  addEventListener("resize", scrollable);
});

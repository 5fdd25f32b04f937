// What the theme leaves inaccessible, mended after it has drawn the page.
document.addEventListener("DOMContentLoaded", () => {
  // A name that differs from the words on the button hides it from those who speak to their computer.
  const named = "summary[aria-label], .search-button-field[aria-label], .theme-switch-button[aria-label]";
  document.querySelectorAll(named).forEach((element) => element.removeAttribute("aria-label"));

  // Roles of the bibliography that its elements may not have.
  document
    .querySelectorAll(".citation-list[role], .citation[role]")
    .forEach((element) => element.removeAttribute("role"));

  // The empty corner of a table heads nothing.
  document.querySelectorAll(".bd-article th").forEach((head) => {
    if (head.textContent.trim() === "" && head.children.length === head.querySelectorAll("p").length) {
      head.replaceWith(document.createElement("td"));
    }
  });

  document.querySelectorAll(".bd-article .cell_output pre").forEach((output) => {
    output.classList.toggle("one-line", !output.textContent.trim().includes("\n"));
  });

  // A line never begins with the full stop after a formula, nor ends with the bracket before one.
  document.querySelectorAll(".bd-article span.math").forEach((formula) => {
    const { previousSibling: before, nextSibling: after } = formula;
    const opening = before instanceof Text ? before.data.match(/[([\u201c]+$/) : null;
    const closing = after instanceof Text ? after.data.match(/^[.,;:!?)\]\u201d\u2019]+/) : null;
    if (opening) formula.prepend(before.splitText(opening.index));
    if (closing) {
      after.splitText(closing[0].length);
      formula.append(after);
    }
  });

  const sidebar = document.getElementById("pst-primary-sidebar");
  if (sidebar) {
    sidebar.setAttribute("role", "region");
    sidebar.setAttribute("aria-label", "Chapters");
  }
});

// Previews of results and equations: over everything, for the keyboard too, closed with Escape. On a
// touch screen a long press shows one, since a tap follows the link.
document.addEventListener("DOMContentLoaded", () => {
  if (!window.tippy) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  tippy.setDefaultProps({
    appendTo: () => document.querySelector("main") ?? document.body,
    aria: { content: "describedby", expanded: false },
    duration: still ? 0 : [150, 100],
    touch: ["hold", 400],
    onCreate: ({ popper }) => {
      // What is shown stands on a page already, under the same names.
      popper.querySelectorAll("[id]").forEach((part) => part.removeAttribute("id"));
      popper.querySelectorAll("a.headerlink").forEach((link) => link.remove());
    },
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tippy.hideAll();
  });
});

// Once the mathematics has its size: a formula wider than the text gets its own scrollbar, and what
// scrolls sideways can be reached from the keyboard.
window.addEventListener("load", () => {
  const settle = () => {
    document.querySelectorAll(".bd-article mjx-container:not([display])").forEach((formula) => {
      formula.classList.remove("wide");
      const text = formula.closest("p, li, dd, td, h1, h2, h3, figcaption, summary");
      formula.classList.toggle("wide", text !== null && formula.scrollWidth > text.clientWidth);
    });
    const boxes = "pre, .cell_output, .pst-scrollable-table-container"; // formulas are reached anyway
    document.querySelectorAll(`.bd-article :is(${boxes})`).forEach((box) => {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
      } else {
        box.removeAttribute("tabindex");
      }
    });
  };
  (window.MathJax?.startup?.promise ?? Promise.resolve()).then(settle);
  window.addEventListener("resize", settle);
});

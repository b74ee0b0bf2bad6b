// Every mark of a chart has a text in its aria-label: shown on hover and by the arrow keys.
"use strict";
const tip = document.getElementById("tip");
let lit = null;

function show(mark, x, y) {
  hide();
  lit = mark;
  lit.classList.add("lit");
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + box.height + 24 > innerHeight ? y - box.height - 12 : y + 16) + "px";
}

function hide() {
  if (lit) lit.classList.remove("lit");
  lit = null;
  tip.hidden = true;
}

for (const drawing of document.querySelectorAll(".drawing")) {
  const marks = [...drawing.querySelectorAll("[role='graphics-symbol'][aria-label]")];
  let at = -1;
  drawing.addEventListener("mousemove", (event) => {
    const mark = event.target.closest("[role='graphics-symbol'][aria-label]");
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  });
  drawing.addEventListener("mouseleave", hide);
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !marks.length) return;
    event.preventDefault();
    at = (at + step + marks.length) % marks.length;
    const box = marks[at].getBoundingClientRect();
    show(marks[at], box.left + box.width / 2, box.top + box.height / 2);
  });
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = !navigator.clipboard; // there is none on a page from another machine without encryption
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

// Paper shows everything: what is folded is opened for printing, and a link into it opens it.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target && target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();

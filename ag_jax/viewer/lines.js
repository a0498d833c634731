// Draws lines between the words of an enlarged head, in place of its map. A part of the script with viewer.js.
"use strict";

const MOST_LINED = 128; // rows or columns, above which only the lines of the chosen row are drawn
const STRONG = 0.1, STRONGEST = 3; // lines of a row: of its largest weights, and of all from this one on

/** Returns the cells of a row that have lines: its largest weights, and all that are strong. */
function linked({ map }, q) {
  const weight = (k) => map.weights[q * map.keys + k];
  return largestFirst(map, q).filter((k, rank) => weight(k) > STRONG || (rank < STRONGEST && weight(k) >= 0.0005));
}

/** Returns lines from the words that look, on the left, to those at which they look, as opaque as the map is dark. */
function lines(panel) {
  const { view, map, shade } = panel, rows = view.rows.map(label), columns = view.columns.map(label);
  panel.isAll = map.queries <= MOST_LINED && map.keys <= MOST_LINED;
  const queries = panel.isAll ? [...rows.keys()] : [state.row];
  panel.row = state.row;
  const links = queries.flatMap((q) => linked(panel, q).map((k) => [q, k]));
  const keys = panel.isAll ? [...columns.keys()] : links.map(([, k]) => k).sort((a, b) => a - b);
  const count = Math.max(queries.length, keys.length), step = clamp((panel.high - 30) / count, 13, 22);
  const wide = Math.min(panel.wide, 560), edge = Math.min(130, wide * 0.34), high = count * step + 30;
  const place = (list, one) => 26 + (list.indexOf(one) + 0.5 + (count - list.length) / 2) * step;
  const word = (names, list, x, anchor, axis) => list.map((one) => svgText(panel.isAll ? names[one] : `${names[one]} ${one}`, {
    x, y: place(list, one) + 4, "text-anchor": anchor, [`data-${axis}`]: one }));
  const strokes = links.map(([q, k]) => svg("line", {
    x1: edge, y1: place(queries, q), x2: wide - edge, y2: place(keys, k), "data-q": q, "data-k": k,
    "stroke-opacity": (shade[q * map.keys + k] / 255).toFixed(3) }));
  const [looks, looked] = axesOf(view);
  const drawn = svg("svg", {
    viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", class: "lines",
    "aria-label": "Lines from each token to those at which it looks most" },
  svgText(looks, { x: edge - 6, y: 14, "text-anchor": "end", class: "axis" }), svgText(looked, { x: wide - edge + 6, y: 14, class: "axis" }),
  ...strokes, ...word(rows, queries, edge - 6, "end", "q"), ...word(columns, keys, wide - edge + 6, "start", "k"));
  drawn.addEventListener("pointermove", (event) => {
    const { q, k } = event.target.dataset;
    tip(event, q !== undefined && k !== undefined ? [Number(q), Number(k)] : null);
    if (!state.pinned && (q ?? k) !== undefined) chooseLinked(q, k);
  });
  drawn.addEventListener("pointerleave", () => tip(null, null));
  drawn.addEventListener("click", (event) => {
    const { q, k } = event.target.dataset;
    if ((q ?? k) === undefined) return;
    chooseLinked(q, k);
    setPinned(true);
  });
  return drawn;
}

/** Chooses the row and the column of what is under the pointer; a word alone leaves the other one open. */
function chooseLinked(q, k) {
  if (q !== undefined) choose(Number(q), k === undefined ? -1 : Number(k));
  else if (panels[0].isAll) choose(state.row, Number(k));
}

/** Marks the lines and words of the chosen row, or of the chosen column, of a panel with lines. */
function highlight(panel) {
  if (!panel.isAll && panel.row !== state.row) {
    const next = lines(panel);
    panel.svg.replaceWith(next);
    panel.svg = next;
  }
  const [axis, other, chosen] = state.byColumn ? ["k", "q", state.column] : ["q", "k", state.row];
  const ends = new Set(); // the words at the other ends of the chosen lines
  for (const one of panel.svg.querySelectorAll("line")) {
    const isChosen = one.dataset[axis] === String(chosen);
    one.classList.toggle("chosen", isChosen);
    if (isChosen) ends.add(one.dataset[other]);
  }
  for (const one of panel.svg.querySelectorAll("text:not(.axis)")) {
    one.classList.toggle("chosen", axis in one.dataset ? one.dataset[axis] === String(chosen) : ends.has(one.dataset[other]));
  }
}

// Saves maps as PNG and SVG, and the weights of a row as TSV. A part of the script with viewer.js.
"use strict";

const headName = () => [`layer${state.layer}`, state.head === views[state.view].heads ? "mean" : `head${state.head}`,
  ...(panels[0].view.tokens ? ["words"] : []), ...(panels[0].svg ? ["lines"] : [])].join("_");

/** Returns the name of a file: the models of views, their steps, and what the file shows. */
function fileName(suffix, shown = headName(), numbers = compared()) {
  const parts = numbers.map((at) => {
    const { model, kind, step } = views[at];
    return [model.split(/[/\\]/).at(-1), kind, step === null ? "" : `step${step}`].filter(Boolean).join("_");
  });
  return `${[parts.join("_and_"), shown].join("_").replace(/[^\p{L}\p{N}_.-]+/gu, "-")}.${suffix}`;
}

function save(name, blob) {
  const link = make("a", { download: name, href: URL.createObjectURL(blob) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

const SAVED_RATIO = 2; // pixels of a saved picture for each unit
const SAVED_SIDE = 920; // units: the most of a panel's sides, with its labels
const SAVED_CELL = 12.5; // units of a cell, in which a label has room
const SAVED_WIDE = 900; // units beside each other, so that letters are legible at the width of a page
const LINE = 15, GAP = 24; // height of a line of text, and space between panels

/** Draws an SVG by the methods of a canvas' context that this script uses. */
class SvgContext {
  constructor(wide, high) {
    this.place = svg("svg", { xmlns: SVG, width: wide, height: high, viewBox: `0 0 ${wide} ${high}` });
  }

  put(tag, attributes, ...children) {
    const element = svg(tag, attributes, ...children);
    this.place.append(element);
    return element;
  }

  save() { this.place = this.put("g", {}); }
  restore() { this.place = this.place.closest("g").parentElement; }
  move(by) { this.place.setAttribute("transform", (this.place.getAttribute("transform") ?? "") + by); }
  translate(x, y) { this.move(`translate(${x} ${y})`); }
  rotate(angle) { this.move(`rotate(${(angle * 180) / Math.PI})`); }
  beginPath() {}
  moveTo(x1, y1) { this.start = { x1, y1 }; }
  lineTo(x2, y2) { this.end = { x2, y2 }; }
  stroke() { this.put("line", { ...this.start, ...this.end, stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-opacity": this.globalAlpha }); }
  rect(...box) { this.box = box; }
  clip() { // an svg element shows nothing outside of its box
    const [x, y, width, height] = this.box;
    this.place = this.put("svg", { x, y, width, height, viewBox: this.box.join(" ") });
  }
  fillRect(x, y, width, height) { this.put("rect", { x, y, width, height, fill: this.fillStyle }); }
  strokeRect(x, y, width, height) { this.put("rect", { x, y, width, height, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth }); }
  fillText(text, x, y) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign];
    this.put("text", { x, y, dy: this.textBaseline === "middle" ? "0.35em" : 0, "text-anchor": anchor, fill: this.fillStyle, style: `font: ${this.font}` }, text);
  }

  /** Puts a picture with cells of several pixels, because some programs smooth what they enlarge. */
  drawImage(image, x, y, width, height) {
    const large = painted(image.width, image.height, Math.min(8, Math.ceil((width * SAVED_RATIO) / image.width)), (context) => {
      context.imageSmoothingEnabled = false;
      context.drawImage(image, 0, 0);
    });
    this.put("image", { href: large.toDataURL(), x, y, width, height, preserveAspectRatio: "none", style: "image-rendering: pixelated" });
  }
}

/** Writes texts as bold lines that are at most `wide`, if there is a context; returns how many units the lines are high. */
function writeLines(context, texts, x, y, wide) {
  const lines = texts.flatMap((text) => text.split(" ").reduce((found, word) => {
    const longer = `${found.at(-1) ?? ""} ${word}`.trim();
    return widthOf(longer, BOLD) > wide ? [...found, word] : [...found.slice(0, -1), longer];
  }, []));
  lines.forEach((line, at) => context && write(context, line, x, y + LINE * at + 11, "left", BOLD));
  return LINE * lines.length;
}

function write(context, text, x, y, textAlign, font = FONT) {
  Object.assign(context, { textAlign, font, textBaseline: "alphabetic", fillStyle: "#000" });
  context.fillText(text, x, y);
}

const savedAxes = (view) => axesOf(view, ["attending", "attended"].map((one) => `${one} ${view.tokens ? "word" : "token"}`));

/** Returns what is saved of the enlarged head, as width, height and a function that draws: each panel with its names and its bar. */
function headSheet() {
  const shown = panels.filter((panel) => panel.map).map((panel) => {
    const { width, height } = panel.svg?.viewBox.baseVal ?? {};
    const edge = panel.svg ? { x: 0, y: 0, width, height } : edgesOf({ ...panel, wide: SAVED_SIDE, high: SAVED_SIDE }, Math.max(SAVED_CELL, Math.min(40, 280 / Math.max(panel.map.keys, panel.map.queries))));
    const names = [panel.name, nameOf(panel.view, state.layer, headIn(panel.view)), ...notesOf(panel)];
    if (panel.view.tokens) names.push("words: attention to their pieces is summed, attention from them averaged");
    return { panel, edge, names, wide: LINE + edge.x + Math.max(BAR[0] - 12, edge.width) };
  });
  const above = GAP + 2 * LINE + Math.max(...shown.map(({ names, wide }) => writeLines(null, names, 0, 0, wide)));
  const high = above + Math.max(...shown.map(({ edge }) => edge.y + edge.height)) + BAR[1] + 2 * LINE;
  let x = GAP, y = 0;
  for (const one of shown) {
    if (x > GAP && x + one.wide > SAVED_WIDE) [x, y] = [GAP, y + high];
    Object.assign(one, { x, y });
    x += one.wide + GAP;
  }
  return [Math.max(...shown.map((one) => one.x + one.wide)) + GAP, y + high, (context) => {
    for (const { panel, edge, names, wide, x, y } of shown) {
      const [rows, columns] = savedAxes(panel.view), left = x + LINE, top = y + above, bottom = y + high - BAR[1] - LINE;
      writeLines(context, names, x, y + LINE, wide);
      context.save();
      context.translate(left, top);
      if (panel.svg) drawLines(context, panel.svg);
      else drawMap(context, panel, edge, SAVED_RATIO, "#000");
      context.restore();
      if (panel.svg) continue;
      write(context, columns, left + edge.x + edge.width / 2, top - 4, "center", BOLD);
      fillUpwards(context, rows, left - 4, top + edge.y + edge.height / 2);
      drawBar(context, left + edge.x - 12, bottom, panel.signed, "#000");
    }
  }];
}

/** Draws the words and the lines that the page shows, without what is chosen. */
function drawLines(context, drawn) {
  for (const one of drawn.children) {
    const [x, y, x1, y1, x2, y2, alpha] = ["x", "y", "x1", "y1", "x2", "y2", "stroke-opacity"].map((name) => Number(one.getAttribute(name)));
    if (one.tagName === "text") write(context, one.textContent, x, y, one.getAttribute("text-anchor") === "end" ? "right" : "left");
    else {
      Object.assign(context, { strokeStyle: css(TABLES.BuPu[255]), lineWidth: 2, globalAlpha: alpha });
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      context.stroke();
      context.globalAlpha = 1;
    }
  }
}

/** Returns what is saved of all heads, as `headSheet` does: the tiles of the grid, its legend and its bar. */
function gridSheet() {
  const view = views[state.view], list = ordered(view), columns = across(view), count = paired(0).length, left = 70;
  const side = clamp(1000 / columns / count, 36, 100), tall = (side * view.rows.length) / view.columns.length;
  const wide = Math.ceil(Math.max(BAR[0], columns * (count * side + 6))), [rows, keys] = savedAxes(view);
  const texts = view.texts.map((name, at) => `${name}: ${[view.columns, view.rows][at].join(" ").replace(/ ·/g, "·")}`);
  const names = [...texts, count > 1 ? `Left: ${view.name}. Right: ${views[state.other].name}.` : view.name, `In each map: row ${rows}; column ${keys}.`];
  for (const item of $("legend").children) if (item.id !== "pair") names.push(item.textContent);
  const top = LINE + writeLines(null, names, 0, 0, wide) + 30, bottom = top + (list.length / columns) * (tall + 6) + LINE;
  return [left + wide + GAP, Math.ceil(bottom) + BAR[1] + LINE, (context) => {
    writeLines(context, names, left, LINE, wide);
    list.forEach(([layer, head], at) => {
      const x = left + (at % columns) * (count * side + 6), y = top + Math.floor(at / columns) * (tall + 6);
      const byPosition = state.order === "position";
      if (at < columns && byPosition) write(context, head === view.heads ? "mean" : `head ${head}`, x + (count * side) / 2, y - 6, "center");
      if (at % columns === 0) write(context, byPosition ? `layer ${layer}` : `from ${at + 1}`, left - 8, y + tall / 2 + 4, "right");
      paired(head).forEach(([number, one, own], place) => {
        if (own >= 0 && layer < one.layers) drawTile(context, number, layer, own, x + place * side + 1, y + 1, side - 4, tall - 4);
      });
    });
    drawBar(context, left - 12, bottom, false, "#000");
  }];
}

function drawTile(context, number, layer, head, x, y, wide, high) {
  const { colour, letter } = tileLook(views[number], layer, head), room = widthOf(letter, BOLD) + 4;
  context.imageSmoothingEnabled = false;
  context.drawImage(tilePixels(number, layer, head, 1), x, y, wide, high);
  Object.assign(context, { strokeStyle: colour, lineWidth: 2, fillStyle: "#fff" });
  context.strokeRect(x, y, wide, high);
  if (letter) context.fillRect(x + wide - room - 1, y + 1, room, 13);
  write(context, letter, x + wide - 3, y + 11, "right", BOLD);
}

/** Saves a sheet, in black on white, as a PNG or as an SVG of the same content. */
function saveSheet(name, [wide, high, draw]) {
  const onWhite = (context) => {
    context.fillStyle = "#fff";
    context.fillRect(0, 0, wide, high);
    draw(context);
    return context;
  };
  if (name.endsWith(".png")) painted(wide, high, SAVED_RATIO, onWhite).toBlob((blob) => save(name, blob));
  else save(name, new Blob([new XMLSerializer().serializeToString(onWhite(new SvgContext(wide, high)).place)], { type: "image/svg+xml" }));
}

function saveTsv() {
  const panel = panels[0], view = panel.view, list = chosenWeights(panel);
  const others = state.byColumn ? view.rows : view.columns;
  const clean = (token) => token.replace(/[\t\r\n]/g, " ");
  const known = (at) => (panel.map.coarse || panel.map.shades?.[at] ? "shade" : panel.map.digits ? "two digits" : "");
  const lines = list.map(([place, weight, at]) => [place, clean(others[place]), weight.toPrecision(3), known(at)].join("\t"));
  const top = ["position", "token", "weight", "precision"].join("\t");
  save(fileName("tsv", `${headName()}_${state.byColumn ? `column${state.column}` : `row${state.row}`}`, [state.view]), new Blob([[top, ...lines].join("\n") + "\n"], { type: "text/tab-separated-values" }));
}

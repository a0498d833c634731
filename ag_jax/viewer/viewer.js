// Shows the attention maps of this page. It loads nothing: all data are in elements of the page (see page.py).
// lines.js and saved.js are parts of the same script, which come before this one.
// Views, layers, heads, rows and columns count from 0, also in what a reader sees.
// Behind the last head of a layer, lists by head and maps have the mean of the layer's heads.
"use strict";

// A view has the fields of `_describe` in page.py; one of words (`shownView`) has `tokens`, the view of their tokens.
// A map has `weights` by row, `queries` x `keys` of them; `blocks`: tokens on each side of a cell; `shades`: of which
// cells only a shade is known, or null; `coarse`: whether all are those of the overview; `digits`: known behind the point.

const $ = (id) => document.getElementById(id);
const meta = JSON.parse($("meta").textContent), { views } = meta;
for (const one of views.flatMap((view) => [view, view.words])) if (one) one.rows ??= one.columns;

const clamp = (value, least, most) => Math.max(least, Math.min(most, value));
const told = document.documentElement.dataset; // what a test waits for

/** Returns a new element with properties and children; text is never read as HTML. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// ---------------------------------------------------------------- data

async function bytesOf(id) {
  const text = $(id).textContent;
  let packed;
  if ("fromBase64" in Uint8Array) packed = Uint8Array.fromBase64(text);
  else packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Returns the weights of a map by rows, from the bytes of `encode_map` in encode.py. */
function decoded(bytes, queries, keys, sums) {
  const cells = queries * keys;
  const weights = new Float32Array(cells), levels = new Uint8Array(cells);
  const top = meta.levels - 1, first = meta.refinedFrom;
  let refined = 0;
  for (let k = 0, from = 0; k < keys; k++) {
    for (let q = 0; q < queries; q++, from++) {
      const level = bytes[from], to = q * keys + k;
      let root = level / top;
      if (first !== null && level >= first) {
        const pair = bytes[cells + (refined >> 1)];
        root = Math.min(1, (level - 0.5 + ((refined & 1 ? pair >> 4 : pair & 15) + 0.5) / 16) / top);
        refined++;
      }
      levels[to] = level;
      weights[to] = root * root;
    }
  }
  if (first === null) return { weights, shades: null, queries, keys, blocks: 1, coarse: false };
  for (let q = 0; sums && q < queries; q++) {
    let rest = 0, exact = 0;
    for (let at = q * keys; at < (q + 1) * keys; at++) {
      if (levels[at] >= first) exact += weights[at];
      else rest += weights[at];
    }
    if (rest <= 0) continue;
    const factor = Math.max(0, 1 - exact) / rest;
    for (let at = q * keys; at < (q + 1) * keys; at++) {
      if (levels[at] >= first) continue;
      const low = (Math.max(0, levels[at] - 0.5) / top) ** 2, high = ((levels[at] + 0.5) / top) ** 2;
      weights[at] = clamp(weights[at] * factor, low, high);
    }
  }
  return { weights, shades: levels.map((level) => Number(level < first)), queries, keys, blocks: 1, coarse: false };
}

const MOST_MAPS = 48; // decoded maps in memory, of 1 MB each at 512 tokens
const cache = new Map(); // of promises of maps, by the id of their element
const overviews = []; // bytes, by the number of the view

/** Returns the map of an element of the page, in memory in place of the oldest one; undefined without the element. */
function storedMap(id, view) {
  if (!cache.has(id) && $(id)) {
    cache.set(id, bytesOf(id).then((bytes) => decoded(bytes, view.rows.length, view.columns.length, view.sums)));
    if (cache.size > MOST_MAPS) cache.delete(cache.keys().next().value);
  }
  return cache.get(id);
}

function tileOf(number, layer, head) {
  const view = views[number];
  const queries = Math.ceil(view.rows.length / view.block), keys = Math.ceil(view.columns.length / view.block);
  const weights = new Float32Array(queries * keys), start = (layer * (view.heads + 1) + head) * queries * keys;
  for (let k = 0, from = start; k < keys; k++) {
    for (let q = 0; q < queries; q++, from++) weights[q * keys + k] = (overviews[number][from] / (meta.coarse - 1)) ** 2;
  }
  return { weights, shades: null, queries, keys, blocks: view.block, coarse: true };
}

/** Returns the view that is shown of a number: that of its tokens, or of words, each of several tokens. */
function shownView(number) {
  const view = views[number], words = views[state.view].words;
  if (!state.words || !words) return view;
  const special = view.special.map((token) => wordOf(words.columnStarts, token));
  return { ...view, columns: words.columns, rows: words.rows, words, special, tokens: view };
}

const wordOf = (starts, token) => starts.findLastIndex((first) => first <= token);

/** Returns weights between words from those between tokens: sums over a word's columns, means over its rows. */
function betweenWords({ words, tokens }, values) {
  const { rowStarts, columnStarts } = words, keys = tokens.columns.length, queries = tokens.rows.length;
  const weights = new Float32Array(rowStarts.length * columnStarts.length);
  rowStarts.forEach((first, row) => {
    const end = rowStarts[row + 1] ?? queries;
    for (let q = first; q < end; q++) {
      for (let k = 0, column = 0; k < keys; k++) {
        if (k === columnStarts[column + 1]) column++;
        weights[row * columnStarts.length + column] += values[q * keys + k] / (end - first);
      }
    }
  });
  return { weights, queries: rowStarts.length, keys: columnStarts.length };
}

/** Returns a head's map and its view, which is of tokens where words cannot be shown; without a map, the overview. */
async function shownMap(number, layer, head) {
  const view = shownView(number), key = `${number}-${layer}-${head}`;
  const found = await storedMap(`${view.tokens ? "words" : "map"}-${key}`, view);
  if (found) return { view, map: found };
  const map = (await storedMap(`map-${key}`, views[number])) ?? tileOf(number, layer, head);
  if (!view.tokens || map.blocks > 1) return { view: views[number], map };
  return { view, map: { ...map, ...betweenWords(view, map.weights), shades: null, digits: 2 } };
}

const WITHOUT_SPECIAL = "without special tokens, rows scaled to what they summed to";

/** Returns a map without the columns of special tokens, its rows scaled so that they sum to what they did. */
function withoutSpecial(view, map) {
  if (!state.special || !view.special.length || map.blocks > 1) return map;
  const weights = map.weights.slice(), special = new Set(view.special);
  for (let q = 0; q < map.queries; q++) {
    let all = 0, left = 0;
    for (let k = 0; k < map.keys; k++) {
      const at = q * map.keys + k;
      all += weights[at];
      if (special.has(k)) weights[at] = 0;
      left += weights[at];
    }
    if (left > 0) for (let k = 0; k < map.keys; k++) weights[q * map.keys + k] *= all / left;
  }
  return { ...map, weights };
}

/** Returns a function from a row and a column to whether an attack masked the cell. */
async function maskOf(number, layer, head) {
  const view = views[number];
  if (head === view.heads && view.hiddenHeads > 1) return null; // heads differ in what is masked
  const bytes = await bytesOf(`hidden-${number}-${layer}-${view.hiddenHeads === 1 ? 0 : head}`), queries = view.rows.length;
  return (q, k) => (bytes[(k * queries + q) >> 3] >> (7 - ((k * queries + q) & 7))) & 1;
}

/** Returns the first and the last column that a row of a layer sees. */
function bounds(view, layer, q) {
  const side = Math.floor((view.windows[layer] ?? Infinity) / 2), last = view.columns.length - 1;
  return [Math.max(0, q - side), Math.min(view.causal ? q : last, q + side, last)];
}

/** Returns a function from a row and a column to the weight there if each row looked equally at all that it sees. */
function evenOf(view, layer) {
  const of = view.tokens ?? view, keys = of.columns.length, seen = of.rows.map((_, q) => bounds(of, layer, q));
  if (!view.tokens) {
    const left = seen.map(([first, last]) => last + 1 - first - (state.special ? view.special.filter((k) => first <= k && k <= last).length : 0));
    return (q) => 1 / Math.max(1, left[q]);
  }
  const even = new Float32Array(seen.length * keys);
  seen.forEach(([first, last], q) => even.fill(1 / (last + 1 - first), q * keys + first, q * keys + last + 1));
  const { weights } = withoutSpecial(view, { ...betweenWords(view, even), blocks: 1 });
  return (q, k) => weights[q * view.columns.length + k];
}

/** Returns the target of a row as [column, weight] pairs; none where the pattern points at nothing. */
const entriesOf = (target, q) => (target.numbers[q] < 0 ? [] : target.distinct[target.numbers[q]]);

// ---------------------------------------------------------------- colours

const SCALES = {
  weight: { name: "attention weight", spacing: "square-root", ticks: [0, 0.05, 0.2, 0.5, 1], place: (w) => Math.sqrt(w) },
  ratio: { name: "multiple of even attention", spacing: "logarithmic", ticks: [0.25, 1, 4, 16, 64], place: (ratio) => (Math.log2(ratio) + 2) / 8 },
  own: { name: "share of this map's largest weight", spacing: "square-root", ticks: [0, 0.05, 0.2, 0.5, 1], place: (w) => Math.sqrt(w) },
};

const DIFFERENCE = { name: "difference of weights", spacing: "square-root", ticks: [-1, -0.25, 0, 0.25, 1], place: (w) => 0.5 + 0.5 * Math.sign(w) * Math.sqrt(Math.abs(w)) };

/** Returns 256 colours as numbers for an ImageData seen as Uint32Array. */
function table(anchors) {
  const stops = anchors.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Uint32Array.from({ length: 256 }, (_, at) => {
    const place = (at / 255) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = stops[low].map((one, channel) => Math.round(one + (stops[low + 1][channel] - one) * (place - low)));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}
const TABLES = Object.fromEntries(Object.entries(meta.palettes).map(([name, anchors]) => [name, table(anchors)]));
const SIGNED_TABLE = table(meta.differences);
const css = (number) => `rgb(${number & 255} ${(number >> 8) & 255} ${(number >> 16) & 255})`;

const LETTERS = { period: ".", same: "=", diagonal: "\\" };
/** Returns the relative luminance of a colour, from 0 to 1 (Web Content Accessibility Guidelines 2). */
function luminance(number) {
  const linear = [0, 8, 16].map((shift) => ((number >> shift) & 255) / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

/** Returns the title, the colour and the letter of a pattern. */
function patternLook(name) {
  const target = views.find((view) => name in view.targets)?.targets[name];
  const title = target?.title ?? name;
  return { title, colour: target?.colour ?? "#000000", letter: LETTERS[name] ?? (title.replace(/^\[/, "")[0] ?? "?").toUpperCase() };
}

/** Returns the colour (0 to 255 of a table) of each cell of a map of a layer. */
function shades(view, layer, map, signed) {
  const out = new Uint8Array(map.weights.length);
  let largest = 0;
  if (!signed && state.scale === "own") for (const weight of map.weights) largest = Math.max(largest, weight);
  const even = !signed && state.scale === "ratio" ? evenOf(view, layer) : null;
  for (let q = 0; q < map.queries; q++) {
    const row = Math.min(view.rows.length - 1, (q + 1) * map.blocks - 1);
    for (let k = 0; k < map.keys; k++) {
      const weight = map.weights[q * map.keys + k];
      let place;
      if (signed) place = DIFFERENCE.place(weight);
      else if (even) place = weight > 0 ? SCALES.ratio.place(weight / even(row, k)) : 0;
      else place = SCALES[state.scale].place(state.scale === "own" && largest > 0 ? weight / largest : weight);
      out[q * map.keys + k] = Math.round(255 * clamp(place, 0, 1));
    }
  }
  return out;
}

const tableOf = (signed) => (signed ? SIGNED_TABLE : TABLES[state.palette]);

/** Draws a map with one pixel for each cell, or for each block of `reduce` x `reduce` cells their strongest. */
function pixels({ map, shade, signed }, reduce = 1) {
  const colours = tableOf(signed);
  const wide = Math.ceil(map.keys / reduce), high = Math.ceil(map.queries / reduce);
  const strongest = reduce === 1 ? shade : new Uint8Array(wide * high).fill(signed ? 128 : 0);
  if (reduce > 1) {
    for (let q = 0; q < map.queries; q++) {
      for (let k = 0; k < map.keys; k++) {
        const at = Math.floor(q / reduce) * wide + Math.floor(k / reduce), one = shade[q * map.keys + k];
        if (signed ? Math.abs(one - 128) > Math.abs(strongest[at] - 128) : one > strongest[at]) strongest[at] = one;
      }
    }
  }
  const canvas = make("canvas", { width: wide, height: high });
  const image = new ImageData(wide, high), ink = new Uint32Array(image.data.buffer);
  for (let at = 0; at < strongest.length; at++) ink[at] = colours[strongest[at]];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// ---------------------------------------------------------------- state, kept in the address

const state = {
  view: 0, other: meta.other ?? -1, layer: -1, head: -1, row: -1, column: -1, byColumn: false, pinned: false,
  scale: "weight", palette: "BuPu", order: "position", pattern: "", target: false, difference: false,
  special: false, hidden: false, words: false, lines: false, zoom: 1, left: 0, top: 0,
};
const SHORT = {
  view: "v", other: "o", layer: "l", head: "h", row: "r", column: "c", byColumn: "b", scale: "s", palette: "p",
  order: "a", pattern: "n", target: "t", difference: "d", special: "x", hidden: "m",
  words: "w", lines: "i",
};
const FIRST = { ...state };

const ADDRESS_EVERY = 310; // milliseconds; Safari allows 100 changes of the address in 30 seconds
let addressTimer = 0;

/** Writes the state into the address soon, together with changes that follow until then. */
function writeAddress() {
  told.address = "old";
  addressTimer ||= setTimeout(() => {
    addressTimer = 0;
    told.address = "current";
    const changed = Object.entries(SHORT).filter(([name]) => state[name] !== FIRST[name]);
    const parts = changed.map(([name, short]) => `${short}=${encodeURIComponent(typeof state[name] === "boolean" ? Number(state[name]) : state[name])}`);
    try {
      history.replaceState(null, "", `#${parts.join("&")}`);
    } catch {
      // A page inside a notebook has no address of its own.
    }
  }, ADDRESS_EVERY);
}

/** Shows the state in the address; what does not exist in this page is left as it is. */
function followAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, FIRST);
  for (const [name, short] of Object.entries(SHORT)) {
    const text = parameters.get(short), first = FIRST[name];
    if (text === null) continue;
    if (typeof first === "boolean") state[name] = text === "1";
    else if (typeof first !== "number") state[name] = text;
    else if (Number.isInteger(Number(text))) state[name] = Number(text);
  }
  if (!views[state.view]) state.view = 0;
  if (!Object.hasOwn(SCALES, state.scale)) state.scale = FIRST.scale;
  if (!Object.hasOwn(meta.palettes, state.palette)) state.palette = FIRST.palette;
  show(state.view, state.other);
}

/** Shows a view, beside another one if they can be compared. */
function show(view, other) {
  const isOther = other !== view && Boolean(views[other]), problem = isOther ? refusal(views[view], views[other]) : "";
  state.head = headIn(views[view]);
  Object.assign(state, { view, other: isOther && !problem ? other : -1 });
  fit();
  update(problem);
}

/** Makes the state fit the view: heads, rows, columns and patterns that it does not have are no longer chosen. */
function fit() {
  state.words &&= Boolean(views[state.view].words);
  const view = shownView(state.view), queries = view.rows.length;
  const has = state.layer >= 0 && state.layer < view.layers && state.head >= 0 && state.head <= view.heads;
  if (!has) state.layer = state.head = state.row = -1;
  else if (state.row < 0 || state.row >= queries) state.row = Math.min(1, queries - 1);
  if (state.column >= view.columns.length || state.column < -1) state.column = -1;
  if (!Object.hasOwn(view.targets, state.pattern)) state.pattern = "";
  if (state.order !== "position" && state.order !== "entropy" && !Object.hasOwn(view.targets, state.order)) state.order = "position";
}

/** Returns why two views cannot be compared; "" if they can. */
function refusal(view, other) {
  for (const [words, mine, others] of [["columns", view.columns, other.columns], ["rows", view.rows, other.rows]]) {
    const at = mine.findIndex((token, place) => token !== others[place]);
    if (at < 0 && mine.length === others.length) continue;
    const place = at < 0 ? mine.length : at;
    return `“${view.name}” and “${other.name}” cannot be compared, because the tokens of their ${words} differ: `
      + `at position ${place} there is “${mine[place] ?? "nothing"}” in one and “${others[place] ?? "nothing"}” in the other.`;
  }
  return "";
}

// ---------------------------------------------------------------- all heads

const scaleOf = () => clamp(devicePixelRatio || 1, 1, 3);

const nameOf = (view, layer, head) => {
  const guided = view.guided[layer][head];
  return `layer ${layer}, ${head === view.heads ? "mean of heads" : `head ${head}`}${guided ? `, guided towards ${patternLook(guided).title}` : ""}`;
};

/** Returns the number that a head of the first view has in another view, -1 if that has no such head. */
const headIn = (view, head = state.head) => (head === views[state.view].heads ? view.heads : head < view.heads ? head : -1);

/** Returns how many heads are in a line of the grid: by layer and head, their mean follows. */
const across = (view) => view.heads + Number(state.order === "position");

/** Returns [layer, head] of the first heads of all layers, behind which is the mean. */
const everyHead = (view, heads) => Array.from({ length: view.layers * heads }, (_, at) => [Math.floor(at / heads), at % heads]);

function ordered(view) {
  const every = everyHead(view, across(view));
  if (state.order === "position") return every;
  const value = state.order === "entropy" ? ([n, h]) => -(view.entropy[n][h] ?? Infinity) : ([n, h]) => view.targets[state.order].mass[n][h] ?? 0;
  return every.sort((one, two) => value(two) - value(one));
}

const gridCells = () => [...$("grid").querySelectorAll(".head")];
let cursor = 0; // of the head that the tab key reaches
let tileReduce = 1; // cells of the overview on each side of a pixel of the grid's maps

/** Draws the maps of the grid anew if the grid has become so narrow or wide that they need another size. A browser
 * that shrinks a picture may leave thin lines out; the strongest cell of a block keeps them. */
function fitTiles() {
  const view = views[state.view], cells = gridCells();
  const [one, two] = cells[0].children, isBeside = one.offsetTop === two?.offsetTop;
  if (two) $("pair").textContent = `${isBeside ? "Left" : "Above"}: ${view.name}. ${isBeside ? "Right" : "Below"}: ${views[state.other].name}.`;
  const pixelsWide = one.clientWidth * scaleOf();
  const reduce = pixelsWide ? Math.max(1, Math.ceil(Math.ceil(view.columns.length / view.block) / pixelsWide)) : 1;
  if (reduce === tileReduce) return;
  tileReduce = reduce;
  ordered(view).forEach(([layer, head], at) => cells[at].replaceChildren(...tiles(layer, head)));
}

const compared = () => [state.view, state.other].filter((at) => at >= 0);

/** Returns the views in a cell of the grid, each with its number of the head: [number, view, head]. */
const paired = (head) => compared().map((at) => [at, views[at], headIn(views[at], head)]);

function tilePixels(number, layer, head, reduce) {
  const map = withoutSpecial(views[number], tileOf(number, layer, head));
  return pixels({ map, shade: shades(views[number], layer, map, false), signed: false }, reduce);
}

/** Returns what a cell of the grid shows: a head of each view, with the colour and the letter of the pattern that guides it. */
function tiles(layer, head) {
  return paired(head).map(([number, view, own]) => {
    const box = make("div", { className: "tile", "aria-hidden": "true" });
    if (own < 0 || layer >= view.layers) return box;
    const canvas = tilePixels(number, layer, own, tileReduce), { colour, letter } = tileLook(view, layer, own);
    canvas.style.aspectRatio = `${view.columns.length} / ${view.rows.length}`;
    box.append(canvas);
    box.style.borderColor = colour;
    if (letter) box.append(make("span", { className: "letter", textContent: letter }));
    return box;
  });
}

/** Returns the colour of a tile's frame, and what is written on it. */
function tileLook(view, layer, head) {
  const guided = view.guided[layer][head];
  return guided ? patternLook(guided) : { colour: "#999", letter: state.order === "position" ? "" : `${layer}.${head}` };
}

function drawGrid() {
  const view = views[state.view], grid = $("grid"), list = ordered(view), byPosition = state.order === "position";
  const hadFocus = grid.contains(document.activeElement);
  cursor = Math.min(cursor, list.length - 1);
  // As large as lets a window show all layers at once, unless they become too small to read.
  const tile = `clamp(6rem, (100vh - 21rem) * ${view.columns.length / view.rows.length / view.layers}, 11rem)`;
  grid.style.gridTemplateColumns = `max-content repeat(${across(view)}, minmax(1.3rem, calc(${compared().length} * ${tile})))`;
  grid.style.columnGap = state.other < 0 ? "" : "clamp(2px, 0.6%, 8px)"; // a pair is closer than its neighbours
  const cells = list.map(([layer, head], at) => {
    const names = paired(head).map(([, one, own]) => {
      if (own < 0 || layer >= one.layers) return `${one.name} has no such head`;
      const mass = one.targets[one.guided[layer][own]]?.mass[layer][own];
      return (state.other < 0 ? "" : `${one.name}: `) + nameOf(one, layer, own) + (mass == null ? "" : `, with ${mass.toFixed(2)} of its attention`);
    });
    const cell = make("div", {
      className: "head", role: "gridcell", tabIndex: at === cursor ? 0 : -1, title: names.join("\n"), "aria-label": names.join("; "),
    }, ...tiles(layer, head));
    cell.addEventListener("click", () => { cursor = at; open(layer, head); });
    cell.addEventListener("focus", () => { cursor = at; });
    return cell;
  });
  const lines = [], wide = across(view), header = (of, className, text) => make("span", { className, role: `${of}header` }, text);
  if (byPosition) {
    const top = Array.from({ length: wide }, (_, head) => header("column", "across", head === view.heads ? "mean" : head));
    lines.push(make("div", { role: "row" }, header("column", "corner", "head →\nlayer ↓"), ...top));
  }
  for (let at = 0; at < cells.length; at += wide) {
    const label = byPosition ? at / wide : `${at + 1}–${at + wide}`;
    lines.push(make("div", { role: "row" }, header("row", "down", label), ...cells.slice(at, at + wide)));
  }
  grid.replaceChildren(...lines);
  if (hadFocus) cells[cursor]?.focus();
  const used = [...new Set(paired(0).flatMap(([, one]) => one.guided.flat()).filter(Boolean))];
  const items = used.map((name) => {
    const { title, colour, letter } = patternLook(name), sign = make("i");
    sign.style.borderColor = colour;
    return make("span", {}, sign, `${letter}: guided towards ${title}`);
  });
  if (state.other >= 0) items.unshift(make("span", { id: "pair" }));
  const note = view.block > 1 ? `A pixel shows the largest weight of ${view.block} × ${view.block} tokens, special ones included.`
    : state.special && view.special.length ? `Maps are ${WITHOUT_SPECIAL}.` : "";
  $("legend").replaceChildren(...items, ...(note ? [make("span", {}, note)] : []));
}

function moveInGrid(right, down) {
  const view = views[state.view], cells = gridCells();
  const wide = across(view), row = Math.floor(cursor / wide), column = cursor % wide;
  const next = clamp(row + down, 0, view.layers - 1) * wide + clamp(column + right, 0, wide - 1);
  cells[cursor].tabIndex = -1;
  cells[next].tabIndex = 0;
  cells[next].focus();
}

// ---------------------------------------------------------------- one head

let panels = []; // what is shown of the open head: the map of each view, and their difference
let strips = []; // the elements of the words of the texts above the maps; axis: columns, rows or both
let drawing = 0; // number of the newest drawing, so that an older one stops

function open(layer, head) {
  Object.assign(state, { layer, head, zoom: 1, left: 0, top: 0, pinned: false });
  fit();
  update().then(() => $("maps").focus({ preventScroll: false }));
}

function close() {
  if (!isOpen()) return;
  cursor = Math.max(0, ordered(views[state.view]).findIndex(([n, h]) => n === state.layer && h === state.head));
  state.layer = state.head = -1;
  update().then(() => gridCells()[cursor]?.focus());
}

/** The pattern whose target is shown: the chosen one, else that which guides the head, else the strongest. */
function shownPattern() {
  const view = views[state.view];
  if (state.pattern) return state.pattern;
  const guided = view.guided[state.layer][state.head];
  if (guided && guided in view.targets) return guided;
  const names = Object.keys(view.targets).filter((name) => view.targets[name].chance[state.layer] !== null);
  const excess = (name) => { // rows without a target count as rows that do not exceed chance
    const { mass, chance, numbers } = view.targets[name];
    return (mass[state.layer][state.head] - chance[state.layer]) * numbers.filter((number) => number >= 0).length;
  };
  return names.sort((one, two) => excess(two) - excess(one))[0] ?? "";
}

/** Returns a map minus the values by row; of cells of which one side is only a shade, only a shade is known. */
function minus(map, values, other = map) {
  const weights = map.weights.map((weight, at) => weight - values[at]);
  const shades = map.shades || other.shades ? weights.map((_, at) => Number(Boolean(map.shades?.[at] || other.shades?.[at]))) : null;
  return { ...map, weights, shades, coarse: map.coarse || other.coarse, digits: map.digits ?? other.digits };
}

/** Returns H - P, with 0 in rows without a target. */
function minusTarget(view, map) {
  const target = view.targets[shownPattern()];
  const dense = new Float32Array(map.weights.length);
  for (let q = 0; q < map.queries; q++) {
    for (const [k, weight] of entriesOf(target, q)) dense[q * map.keys + k] = weight;
    if (target.numbers[q] < 0) dense.set(map.weights.subarray(q * map.keys, (q + 1) * map.keys), q * map.keys);
  }
  return minus(map, dense);
}

async function drawOne(mine) {
  const view = views[state.view], { layer, head } = state;
  $("one").hidden = !isOpen();
  for (const id of ["stage", "text"]) $(id).classList.toggle("open", isOpen());
  $("stage").classList.toggle("pair", isOpen() && state.other >= 0);
  $("grid-bar").replaceChildren(...(isOpen() ? [] : [bar(false)])); // an open head has its own
  const cells = gridCells();
  ordered(view).forEach(([n, h], at) => cells[at].setAttribute("aria-selected", String(n === layer && h === head)));
  if (!isOpen()) {
    panels = [];
    return;
  }
  $("one-title").textContent = nameOf(view, layer, head).replace("layer", "Layer");
  const shown = [];
  for (const [number, { name, layers }, own] of paired(head)) {
    if (layer >= layers || own < 0) {
      shown.push({ view: null, map: null, signed: false, name: `${name} has no ${layer < layers ? `head ${head} in ` : ""}layer ${layer}` });
      continue;
    }
    const { view: one, map: stored } = await shownMap(number, layer, own);
    const isHatched = state.hidden && one.hiddenHeads && !one.tokens && !state.lines && stored.blocks === 1;
    const mask = isHatched ? await maskOf(number, layer, own) : null;
    if (mine !== drawing) return;
    const whole = withoutSpecial(one, stored);
    const signed = state.difference && !state.lines && Object.hasOwn(one.targets, shownPattern()) && whole.blocks === 1 && !one.tokens;
    const map = signed ? minusTarget(one, whole) : whole;
    shown.push({ view: one, map, whole, signed, mask, name: one.name + (signed ? `, minus the pattern ${one.targets[shownPattern()].title}` : "") });
  }
  const [one, two] = shown;
  if (two?.map && one.map.blocks === two.map.blocks) {
    const map = minus(one.whole, two.whole.weights, two.whole);
    shown.push({ view: one.view, map, signed: true, isDifference: true, name: `Difference: ${one.view.name} minus ${two.view.name}` });
  }
  drawFacts(view);
  drawPanels(shown);
  drawRow();
  drawTwin();
}

function drawPanels(shown) {
  const box = $("maps"), gap = 16;
  $("look").classList.toggle("single", shown.length === 1);
  const areLines = state.lines && shown[0].map.blocks === 1;
  if (areLines) shown = shown.filter((one) => !one.isDifference);
  $("bar").replaceChildren(...[false, true].filter((signed) => shown.some((one) => one.map && one.signed === signed)).map(bar));
  for (const id of ["closer", "farther"]) $(id).disabled = areLines;
  const available = Math.max(220, box.clientWidth || box.parentElement.clientWidth);
  const abreast = clamp(Math.floor(available / 260), 1, shown.length);
  const wide = Math.floor((available - gap * (abreast - 1)) / abreast);
  const high = clamp(innerHeight * 0.55, 320, 900); // the texts, the controls and the number are above it
  panels = shown.map((one) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const panel = { ...one, canvas, wide, high, drawing };
    if (one.map) {
      panel.shade = shades(one.view, state.layer, one.map, one.signed); // of the map, and of the words above it
      panel.even = evenOf(one.view, state.layer);
      if (areLines && one.map.blocks === 1) panel.svg = lines(panel);
      else paint(panel);
    }
    return panel;
  });
  box.replaceChildren(...panels.map((panel) => {
    const figure = make("figure", {}, make("figcaption", {}, caption(panel)));
    if (panel.svg) figure.append(panel.svg);
    else if (panel.map) {
      figure.append(make("p", { className: "axes", textContent: axesOf(panel.view).map((axis, at) => `${["↓ row", "→ column"][at]}: ${axis}`).join("\u2003") }), panel.canvas);
      listen(panel);
    }
    return figure;
  }));
  if (areLines) repaint();
}

const caption = (panel) => (panel.map ? [...(panels.length > 1 || panel.signed || panel.svg ? [panel.name] : []), ...notesOf(panel)].join("; ") : `${panel.name}.`);

/** Returns the target of which a panel shows the outline. */
const outlined = ({ map, view, svg, isDifference }) =>
  (state.target && map.blocks === 1 && !svg && !isDifference && !view.tokens ? view.targets[shownPattern()] : null);

/** Returns what is special about the map of a panel. */
function notesOf(panel) {
  const notes = [];
  if (panel.map.blocks > 1) notes.push(`only the largest weights of ${panel.map.blocks} × ${panel.map.blocks} tokens are in this page`);
  else if (panel.map.coarse) notes.push("only a coarse overview of this head is in this page");
  if (panel.map.blocks === 1 && state.special && panel.view.special.length) notes.push(WITHOUT_SPECIAL);
  if (panel.map.digits) notes.push("summed from rounded weights");
  if (panel.svg) notes.push(`lines: the ${STRONGEST} largest weights of each row and all above ${STRONG}; the larger, the darker`);
  if (outlined(panel)) notes.push(`outlined: ${outlined(panel).title}`);
  if (panel.mask) notes.push("hatched: hidden by the attack");
  return notes;
}

const label = (token) => {
  const text = [...token];
  return isolated(text.length > 14 ? text.slice(0, 13).join("") + "…" : token);
};

/** Draws a panel: its picture, which is kept while the pointer moves, and the chosen row and column over it. */
function paint(panel) {
  const ratio = scaleOf(), key = [state.zoom, state.left, state.top, ratio].join();
  if (panel.key !== key) {
    const edge = edgesOf(panel);
    const still = painted(edge.x + edge.width + 2, edge.y + edge.height + 2, ratio, (context) => drawMap(context, panel, edge, ratio, pageInk()));
    Object.assign(panel, edge, { key, still });
    Object.assign(panel.canvas.dataset, { x: edge.x, y: edge.y, cell: edge.cell, ratio });
  }
  const { canvas, still } = panel;
  canvas.width = still.width; // clears it
  canvas.height = still.height;
  canvas.style.width = `${panel.x + panel.width + 2}px`;
  canvas.style.touchAction = state.zoom > 1 ? "none" : "auto"; // a finger moves the page, and an enlarged map
  const context = canvas.getContext("2d");
  context.drawImage(still, 0, 0);
  context.scale(ratio, ratio);
  outline(panel, context);
}

const FONT = "11px system-ui, Helvetica, Arial, sans-serif", BOLD = `bold ${FONT}`;
const pageInk = () => getComputedStyle(document.body).color;
const labelsOf = (view) => [view.rows.map(label), view.columns.map(label)];
/** Returns what the rows and the columns of a map are. */
const axesOf = (view, does = ["looks", "is looked at"]) => does.map((one, at) => one + (view.texts.length > 1 ? ` (${view.texts[1 - at]})` : ""));

const ruler = make("canvas").getContext("2d");
function widthOf(text, font = FONT) {
  ruler.font = font;
  return ruler.measureText(text).width;
}

/** Returns a canvas of `wide` x `high` units, of `ratio` pixels each, on which `draw` has drawn. */
function painted(wide, high, ratio, draw) {
  const canvas = make("canvas", { width: wide * ratio, height: high * ratio }), context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  draw(context);
  return canvas;
}

/** Returns where the map of a panel is: its left and upper edge, its size, and that of a cell (at most `most`), in pixels of the page. */
function edgesOf({ map, view, wide, high }, most = 40) {
  const [rows, columns] = labelsOf(view).map((names) => Math.ceil(Math.max(...names.map((name) => widthOf(name)))));
  let x, y, cell;
  for (const room of [8, 30]) { // for the positions of tokens, if not all of them have room
    if (room > 8 && cell / map.blocks >= 12) break;
    x = Math.min(130, rows) + room;
    y = Math.min(120, columns) + room;
    cell = Math.max(0.2, Math.min((wide - x - 4) / map.keys, (high - y - 4) / map.queries, most));
  }
  state.left = clamp(state.left, 0, map.keys - map.keys / state.zoom);
  state.top = clamp(state.top, 0, map.queries - map.queries / state.zoom);
  return { x, y, cell: cell * state.zoom, width: Math.floor(cell * map.keys), height: Math.floor(cell * map.queries) };
}

/** Writes a text upwards, from a place or around it. */
function fillUpwards(context, text, x, y, ...most) {
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  context.fillText(text, 0, 0, ...most);
  context.restore();
}

/** Draws what is seen of a map through its box. */
function clipped(context, { x, y, width, height }, draw) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  draw();
  context.restore();
}

/** Draws a panel's map, its mask, its target and its labels; `ratio` pixels are for each unit. */
function drawMap(context, panel, { x, y, cell, width, height }, ratio, ink) {
  const { map, view } = panel, blocks = map.blocks;
  const at = (q, k) => [x + (k - state.left) * cell, y + (q - state.top) * cell];
  clipped(context, { x, y, width, height }, () => {
    context.imageSmoothingEnabled = false;
    const reduce = Math.max(1, Math.ceil(1 / (cell * ratio) - 1e-6));
    const image = pixels(panel, reduce);
    context.drawImage(image, ...at(0, 0), image.width * reduce * cell, image.height * reduce * cell);
    if (panel.mask) {
      context.fillStyle = "rgb(0 0 0 / 0.55)";
      for (let q = 0; q < map.queries; q++) {
        for (let k = 0, first = 0; k < map.keys; first = ++k) { // neighbours at once
          while (k < map.keys && panel.mask(q, k)) k++;
          const [left, top] = at(q, first);
          if (k > first) context.fillRect(left, top + cell * 0.4, Math.max(1, (k - first) * cell), Math.max(0.5, cell * 0.2));
        }
      }
    }
    const target = outlined(panel);
    if (target) {
      context.strokeStyle = patternLook(shownPattern()).colour;
      context.lineWidth = clamp(cell / 6, 1, 2.5);
      const side = Math.max(cell, 3);
      for (let q = 0; q < map.queries; q++) {
        for (const [k] of entriesOf(target, q)) {
          const [left, top] = at(q + 0.5, k + 0.5);
          context.strokeRect(left - side / 2, top - side / 2, side, side);
        }
      }
    }
  });

  Object.assign(context, { strokeStyle: "#777", lineWidth: 1, font: FONT, fillStyle: ink, textBaseline: "middle" });
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  const [rows, columns] = labelsOf(view), step = Math.max(1, Math.ceil(12 / (cell / blocks)));
  const named = (names, one) => (step > 1 || blocks > 1 ? `${names[one]} ${one}` : names[one]);
  context.textAlign = "right";
  for (let q = 0; q < rows.length; q += step) {
    const middle = at((q + 0.5) / blocks, 0)[1];
    if (middle > y && middle < y + height) context.fillText(named(rows, q), x - 4, middle, x - 6);
  }
  context.textAlign = "left";
  for (let k = 0; k < columns.length; k += step) {
    const middle = at(0, (k + 0.5) / blocks)[0];
    if (middle > x && middle < x + width) fillUpwards(context, named(columns, k), middle, y - 4, y - 6);
  }
}

function outline(panel, context) {
  const { map, x, y, cell, width, height } = panel;
  if (map.blocks > 1 || cell <= 2) return;
  clipped(context, panel, () => {
    Object.assign(context, { strokeStyle: "#D00000", lineWidth: 1.5 });
    context.strokeRect(x, y + (state.row - state.top) * cell, width, cell);
    if (state.column >= 0) context.strokeRect(x + (state.column - state.left) * cell, y, cell, height);
  });
}

/** Returns [row, column] under a pointer, null outside of the map. */
function under(panel, event) {
  const box = panel.canvas.getBoundingClientRect(), shrunk = box.width / parseFloat(panel.canvas.style.width);
  const k = ((event.clientX - box.left) / shrunk - panel.x) / panel.cell + state.left;
  const q = ((event.clientY - box.top) / shrunk - panel.y) / panel.cell + state.top;
  const inside = q >= 0 && k >= 0 && q < panel.map.queries && k < panel.map.keys;
  if (!inside || panel.drawing !== drawing) return null; // a newer drawing is on its way
  const { words } = views[state.view], { blocks } = panel.map;
  const isOfTokens = state.words && !panel.view.tokens; // the overview has no words
  const place = (cell, starts) => (isOfTokens ? wordOf(starts, Math.floor(cell * blocks)) : Math.floor(cell * blocks));
  return [Math.min(panel.view.rows.length - 1, place(q, words?.rowStarts)), Math.min(panel.view.columns.length - 1, place(k, words?.columnStarts))];
}

function listen(panel) {
  const { canvas } = panel;
  let dragged = null;
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      state.left = dragged.left - (event.clientX - dragged.x) / panel.cell;
      state.top = dragged.top - (event.clientY - dragged.y) / panel.cell;
      repaint();
      return;
    }
    const cell = under(panel, event);
    if (cell && !state.pinned) choose(...cell);
    else if (cell) say(...cell);
    tip(event, cell);
  });
  canvas.addEventListener("pointerleave", () => tip(null, null));
  canvas.addEventListener("pointercancel", () => { dragged = null; });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragged = { x: event.clientX, y: event.clientY, left: state.left, top: state.top };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = under(panel, event);
    if (dragged && Math.hypot(event.clientX - dragged.x, event.clientY - dragged.y) < 4 && cell) {
      const same = state.pinned && cell[0] === state.row;
      choose(...cell);
      setPinned(!same);
    }
    dragged = null;
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && state.zoom === 1 && event.deltaY > 0) return; // the page scrolls
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 1.25 : 0.8, under(panel, event));
  }, { passive: false });
}

function zoomBy(factor, around) {
  const [panel] = panels;
  if (!panel || panel.svg) return;
  const before = state.zoom;
  state.zoom = clamp(state.zoom * factor, 1, 64);
  const [q, k] = around ?? [state.top + panel.map.queries / before / 2, state.left + panel.map.keys / before / 2];
  state.left = k - (k - state.left) * (before / state.zoom);
  state.top = q - (q - state.top) * (before / state.zoom);
  repaint();
}

function repaint() {
  for (const panel of panels) {
    if (panel.svg) highlight(panel);
    else if (panel.map) paint(panel);
  }
}

function setPinned(pinned) {
  state.pinned = pinned;
  $("pin").setAttribute("aria-pressed", String(pinned));
}

function choose(row, column) {
  if (row === state.row && column === state.column) return;
  Object.assign(state, { row, column });
  repaint();
  drawRow();
  writeAddress();
}

const short = (weight, digits) => weight.toFixed(digits).replace(/^(-?)0\./, "$1.");

/** Returns a weight as text, with as many digits as are known: the stored ones are right to their square root / 255. */
function number(panel, at) {
  const weight = panel.map.weights[at], known = !panel.map.coarse && !panel.map.shades?.[at];
  if (!known) return !panel.signed && weight < 0.02 ? "below .02" : `about ${short(weight, 2)}`;
  const digits = panel.map.digits ?? (Math.abs(weight) < 0.02 ? 3 : 2), least = 10 ** -digits;
  return Math.abs(weight) < least / 2 ? `below ${short(least, digits)}` : short(weight, digits);
}

/** The weights of the chosen row, or of the chosen column: [place, weight, place of the cell in the map]. */
function chosenWeights({ map }) {
  if (map.blocks > 1 || (state.byColumn && state.column < 0)) return [];
  return Array.from({ length: state.byColumn ? map.queries : map.keys }, (_, place) => {
    const at = state.byColumn ? place * map.keys + state.column : state.row * map.keys + place;
    return [place, map.weights[at], at];
  });
}

/** Returns the columns of a row, those of its largest weights first. */
const largestFirst = ({ weights, keys }, q) => Array.from({ length: keys }, (_, k) => k).sort((a, b) => weights[q * keys + b] - weights[q * keys + a]);

const IS_RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
/** Returns a token that does not turn the numbers beside it, if it is written from right to left. */
const isolated = (token) => (IS_RIGHT_TO_LEFT.test(token) ? `\u2068${token}\u2069` : token);
const quoted = (token) => `“${isolated(token)}”`;

const td = (content, more = {}) => make("td", more, content);
const NUMBER = { className: "number" };

const MOST_LISTED = 10;

/** Shows the weights of the chosen row or column: as a list, as the colours of the words, and in the line. */
function drawRow() {
  const [panel] = panels;
  if (!panel) return;
  const view = panel.view, list = chosenWeights(panel);
  const chosen = state.byColumn ? state.column : state.row;
  const others = state.byColumn ? view.rows : view.columns;
  const subject = list.length ? `${quoted((state.byColumn ? view.columns : view.rows)[chosen])} (${chosen})` : "";
  const sorted = [...list].sort((one, two) => Math.abs(two[1]) - Math.abs(one[1]));
  const top = sorted.filter(([, weight]) => Math.abs(weight) >= 0.0005).slice(0, MOST_LISTED), rest = list.length - top.length;
  $("largest").caption.textContent = panel.map.blocks > 1 ? "Single weights of this head are not in this page"
    : !subject ? "Choose a column" : state.byColumn ? `What looks at ${subject}` : `${subject} looks at`;
  const lines = top.map(([place, , at]) => make("tr", {}, td(place, NUMBER), td(others[place], { dir: "auto" }), td(number(panel, at), NUMBER),
    td(timesEven(panel, ...(state.byColumn ? [place, state.column] : [state.row, place])), NUMBER)));
  if (rest) {
    const most = number(panel, sorted[top.length][2]).replace("-", ""); // of differences, the largest size
    const less = /^[a-z]/.test(most) ? most : `at most ${panel.signed ? "±" : ""}${most}`;
    lines.push(make("tr", {}, td(""), td(rest > 1 ? `${rest} others` : "1 other"), td(less, NUMBER)));
  }
  $("largest").tBodies[0].replaceChildren(...lines);
  const [axis, other] = state.byColumn ? ["columns", "rows"] : ["rows", "columns"];
  for (const strip of strips) {
    const hasColours = list.length === strip.spans.length && strip.axis !== axis;
    strip.spans.forEach((span, place) => {
      const colour = hasColours ? tableOf(panel.signed)[panel.shade[list[place][2]]] : null;
      span.style.backgroundColor = colour === null ? "" : css(colour);
      // Black and white have equal contrast at this luminance.
      span.style.color = colour === null ? "" : luminance(colour) > 0.179 ? "#000" : "#fff";
      span.classList.toggle("chosen", strip.axis !== other && place === chosen);
    });
  }
  $("text-legend").textContent = subject && `The words of the text have the colours of ${axis.slice(0, -1)} ${subject}${panels.length > 1 ? ` of ${panel.name}` : ""}.`;
  say(state.row, state.column);
}

/** Returns how many times even attention a weight is; nothing for differences. */
function timesEven(panel, row, column) {
  const times = panel.map.weights[row * panel.map.keys + column] / panel.even(row, column);
  if (panel.signed || !Number.isFinite(times)) return "";
  return `${times >= 10 ? Math.round(times) : times < 0.05 ? "below 0.1" : times.toFixed(1)} × even`;
}

/** Returns a cell in words: the two tokens, and each panel's weight. */
function cellInWords(row, column) {
  const whole = panels.filter((panel) => panel.map?.blocks === 1);
  if (!whole.length) return null;
  const { view, map } = whole[0], isLargest = column < 0;
  if (isLargest) [column] = largestFirst(map, row);
  const values = whole.map((panel) => {
    const even = timesEven(panel, row, column);
    return `${panels.length > 1 ? `${panel.isDifference ? "difference" : panel.name}: ` : ""}${number(panel, row * map.keys + column)}${even && ` (${even})`}`;
  });
  return { words: `${quoted(view.rows[row])} (${row}) looks ${isLargest ? "most " : ""}at ${quoted(view.columns[column])} (${column})`, values };
}

function say(row, column) {
  const cell = cellInWords(row, column);
  $("line").textContent = cell ? `${cell.words}: ${cell.values.join("; ")}` : "";
}

/** Shows a cell beside the pointer; a finger would hide it. */
function tip(event, cell) {
  const box = $("tip"), said = cell && event.pointerType !== "touch" ? cellInWords(...cell) : null;
  box.hidden = !said;
  if (!said) return;
  box.replaceChildren(...[said.words, ...said.values].map((textContent) => make("div", {}, textContent)));
  const beside = (at, size, room) => `${at + 14 + size > room ? Math.max(0, at - 14 - size) : at + 14}px`;
  box.style.left = beside(event.clientX, box.offsetWidth, innerWidth);
  box.style.top = beside(event.clientY, box.offsetHeight, innerHeight);
}

/** Writes the texts of the view above its maps, and how many tokens of them were cut off. */
let textDrawn = null; // the view whose text is shown
function drawText() {
  const view = shownView(state.view);
  if (view === textDrawn && isOpen()) return; // a closed head leaves colours
  textDrawn = view;
  const axes = view.rows === view.columns ? [["both", view.columns]] : [["columns", view.columns], ["rows", view.rows]];
  strips = axes.map(([axis, tokens]) => ({ axis, spans: tokens.map((token, place) => wordSpan(axis, token, place)) }));
  const lines = strips.map(({ spans }, at) => textLine(view.texts[at], spans.flatMap((span) => (span.className ? [span] : [" ", span]))));
  const others = view.otherTexts.map(([name, text]) => textLine(name, text.split(/(?=\s)/)));
  const cut = view.leftOut ? [make("p", { className: "hint", textContent: `… ${view.leftOut} ${view.leftOut > 1 ? "tokens" : "token"} cut: these maps have no more.` })] : [];
  $("text").replaceChildren(...lines, ...others, ...cut);
}

const CONTINUES = "·"; // the first letter of a piece that continues a word

/** Returns a text with its name before it, from right to left if most of its words are written so. */
function textLine(name, words) {
  const texts = words.map((word) => word.textContent ?? word).filter((text) => text !== " ");
  return make("p", { dir: 2 * texts.filter((text) => IS_RIGHT_TO_LEFT.test(text)).length > texts.length ? "rtl" : "ltr" }, make("b", { dir: "ltr" }, name && `${name}:`), " ", ...words);
}

function wordSpan(axis, token, place) {
  const span = make("span", { dir: "auto", lang: "und", textContent: token || " ", title: String(place), className: token.startsWith(CONTINUES) ? "inner" : "" });
  const isRow = () => axis === "rows" || (axis === "both" && !state.byColumn);
  const choosePlace = () => (isRow() ? choose(place, state.column) : choose(state.row, place));
  span.addEventListener("pointerenter", (event) => { if (isOpen() && !state.pinned && event.pointerType !== "touch") choosePlace(); });
  span.addEventListener("click", () => { if (isOpen()) { choosePlace(); setPinned(true); } });
  return span;
}

function drawFacts(view) {
  const { layer, head } = state, entropy = view.entropy[layer][head];
  const seen = view.rows.map((_, q) => bounds(view, layer, q)).map(([first, last]) => Math.log2(last + 1 - first));
  const even = seen.reduce((sum, bits) => sum + bits, 0) / seen.length;
  const tokens = (bits) => (2 ** bits).toFixed(bits < 3 ? 1 : 0);
  const parts = entropy === null ? [] : [`spread: a row looks at about ${tokens(entropy)} of ${tokens(even)} tokens (entropy ${entropy.toFixed(2)} bits)`];
  if (view.hiddenHeads) {
    parts.push(`the attack hid ${(100 * view.hiddenShare[layer][head]).toFixed(1)} % of the pairs, which hold ${(100 * view.hiddenMass[layer][head]).toFixed(1)} % of the attention without it`);
  }
  $("facts").textContent = parts.join("; ");
  const shown = shownPattern();
  const both = paired(head), isShown = (state.target || state.difference) && !state.words && !state.lines;
  const th = (content, more) => make("th", { scope: "col", ...more }, content);
  const top = make("tr", {}, th("pattern"), ...both.map(([, one]) => th(both.length > 1 ? one.name : "this head", NUMBER)),
    th("even", { ...NUMBER, title: "the share if every row looked equally at all that it sees" }));
  const rows = Object.entries(view.targets).map(([name, target]) => {
    const masses = both.map(([, one, own]) => one.targets[name]?.mass[layer]?.[own]);
    const cells = [...masses, target.chance[layer]].map((value) => td(value?.toFixed(2) ?? "–", NUMBER));
    return make("tr", name === shown ? { "aria-current": "true" } : {},
      make("td", {}, make("b", {}, `${patternLook(name).letter} `), target.title + (name === shown && isShown ? " (shown)" : "")), ...cells);
  });
  $("masses").tBodies[0].replaceChildren(top, ...rows);
  $("masses").hidden = !rows.length;
}

function drawTwin() {
  if (!$("twin").open || !panels.length) return;
  const { view, map } = panels[0], most = 3;
  if (map.blocks > 1) {
    $("twin").lastElementChild.replaceChildren("Single weights of this head are not in this page.");
    return;
  }
  const body = view.rows.map((token, q) => {
    const words = largestFirst(map, q).slice(0, most).map((k) => `${k} ${quoted(view.columns[k])} ${number(panels[0], q * map.keys + k)}`);
    return make("tr", {}, td(q, NUMBER), td(token, { dir: "auto" }), td(words.join(", ")));
  });
  const top = make("tr", {}, ...["row", "looks", "at what most"].map((textContent) => make("th", { scope: "col", textContent })));
  $("twin").lastElementChild.replaceChildren(make("table", {}, make("thead", {}, top), make("tbody", {}, ...body)));
}

const BAR = [344, 42]; // width and height of a bar of colours, with its name and its ticks
const scaleFor = (signed) => (signed ? DIFFERENCE : SCALES[state.scale]);

function bar(signed) {
  const canvas = painted(...BAR, scaleOf(), (context) => drawBar(context, 0, 0, signed, pageInk()));
  canvas.style.width = `${BAR[0]}px`;
  canvas.role = "img";
  canvas.ariaLabel = `colours: ${scaleFor(signed).name}, ${scaleFor(signed).spacing} scale`;
  return canvas;
}

function drawBar(context, x, y, signed, ink) {
  const { name, spacing, ticks, place } = scaleFor(signed), left = x + 12, wide = BAR[0] - 24;
  const image = pixels({ map: { keys: 256, queries: 1 }, shade: Uint8Array.from({ length: 256 }, (_, at) => at), signed });
  context.imageSmoothingEnabled = false;
  context.drawImage(image, left, y + 14, wide, 12);
  Object.assign(context, { fillStyle: ink, font: FONT, textBaseline: "alphabetic", textAlign: "left" });
  context.fillText(`${name} (${spacing} scale)`, left, y + 10);
  context.textAlign = "center";
  for (const tick of ticks) {
    context.fillRect(left + place(tick) * wide - 0.5, y + 26, 1, 3);
    context.fillText(String(tick), left + place(tick) * wide, y + 39);
  }
}

// ---------------------------------------------------------------- steps of a run

const stepsOf = (view) => views.map((one, at) => ({ one, at }))
  .filter(({ one }) => view.step !== null && one.step !== null && one.model === view.model && one.kind === view.kind && !refusal(view, one))
  .sort((a, b) => a.one.step - b.one.step);

const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, attributes, ...children) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const svgText = (content, attributes) => svg("text", attributes, String(content));

function drawSteps() {
  const view = views[state.view], series = stepsOf(view);
  $("steps").hidden = series.length < 2;
  if (series.length < 2) return;
  const current = series.findIndex(({ at }) => at === state.view);
  $("step").max = series.length - 1;
  $("step").value = current;
  $("step-name").textContent = [view.step, series.at(-1).one.step].map((step) => step.toLocaleString("en")).join(" of ");
  const name = state.pattern || view.guided.flat().find((one) => one && Object.hasOwn(view.targets, one)) || Object.keys(view.targets)[0];
  $("chart").parentElement.hidden = !name;
  if (!name) return;
  const isGuided = view.guided.flat().includes(name);
  const lines = view.guided.map((patterns, layer) => { // a layer without a guided head has no line: its masses are NaN
    const members = [...patterns.keys()].filter((head) => head < view.heads && (!isGuided || patterns[head] === name));
    const masses = series.map(({ one }) => members.reduce((sum, head) => sum + (one.targets[name]?.mass[layer]?.[head] ?? NaN), 0) / members.length);
    return { layer, masses };
  }).filter(({ masses }) => masses.some((mass) => !Number.isNaN(mass)));
  const wide = Math.min(720, innerWidth - 48), left = 34, right = wide - 80, bottom = 22, apart = 12, high = Math.max(170, apart * (lines.length + 1) + bottom);
  const steps = series.map(({ one }) => one.step), span = Math.max(1, steps.at(-1) - steps[0]);
  const x = (at) => left + ((right - left) * (steps[at] - steps[0])) / span, y = (mass) => 8 + (high - bottom - 8) * (1 - mass);
  for (const line of lines) {
    line.points = line.masses.map((mass, at) => [x(at), y(mass)]).filter(([, place]) => !Number.isNaN(place));
    line.end = line.points.at(-1)[1];
  }
  lines.sort((one, two) => one.end - two.end); // names of lines that end close together are moved apart
  lines.reduce((least, line) => { line.end = Math.max(line.end, least); return line.end + apart; }, 0);
  lines.reduceRight((most, line) => { line.end = Math.min(line.end, most); return line.end - apart; }, high - bottom);
  const text = (content, attributes) => svgText(content, { "font-size": 11, fill: "currentColor", ...attributes });
  const line = (x1, x2, y1, y2, dashes = "") => svg("line", { x1, x2, y1, y2, stroke: "currentColor", "stroke-width": 0.75, "stroke-dasharray": dashes });
  const drawn = lines.flatMap(({ layer, points, end }) => {
    const share = (layer + 1) / view.layers, shade = (place) => css(TABLES.BuPu[Math.round(place)]), isChosen = layer === state.layer;
    const style = `fill: none; stroke: light-dark(${shade(100 + 155 * share)}, ${shade(170 * (1 - share))}); stroke-width: ${isChosen ? 3.5 : 1.75}`;
    return [svg("polyline", { points: points.map((point) => point.map((one) => one.toFixed(1)).join()).join(" "), style }),
      line(points.at(-1)[0], right + 16, points.at(-1)[1], end),
      text(`layer ${layer}`, { x: right + 20, y: end + 4, "font-weight": isChosen ? "bold" : "normal" }),
      ...points.map(([cx, cy]) => svg("circle", { cx, cy, r: 2.5, style: `fill: light-dark(${shade(100 + 155 * share)}, ${shade(170 * (1 - share))})` }))];
  });
  const frame = [line(x(current), x(current), 4, high - bottom, "3 3"), ...[0, 0.5, 1].flatMap((mass) => [line(left, right, y(mass), y(mass), "1 5"),
    text(String(mass), { x: left - 6, y: y(mass) + 4, "text-anchor": "end" })])];
  const ticks = [0, steps.length - 1].map((at) => text(`step ${steps[at].toLocaleString("en")}`, { x: x(at), y: high - 6, "text-anchor": at ? "end" : "start" }));
  const title = `attention on ${view.targets[name].title} by step, in each layer the mean of ${isGuided ? "the heads guided towards it" : "all heads"}`;
  $("chart").replaceChildren(svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title }, ...frame, ...ticks, ...drawn),
    make("p", { className: "hint", textContent: title }));
}

function moveStep(by) {
  const series = stepsOf(views[state.view]);
  const next = series[clamp(series.findIndex(({ at }) => at === state.view) + by, 0, series.length - 1)];
  if (next) show(next.at, state.other);
}

// ---------------------------------------------------------------- controls and keys

const option = (value, textContent) => make("option", { value, textContent });

function drawControls(problem) {
  const view = views[state.view];
  const heads = everyHead(view, view.heads + 1).map(([n, h]) => {
    const guided = view.guided[n][h];
    return option(`${n}.${h}`, (h === view.heads ? `${n} mean` : `${n}.${h}`) + (guided ? ` ${patternLook(guided).title}` : ""));
  });
  const names = Object.entries(view.targets);
  const choices = {
    head: [option("", "all"), ...heads],
    view: views.map((one, at) => option(at, one.name)),
    other: [option(-1, "no other"), ...views.map((one, at) => option(at, one.name)).filter((_, at) => at !== state.view)],
    scale: Object.entries(SCALES).map(([name, scale]) => option(name, scale.name)),
    palette: Object.keys(meta.palettes).map((name) => option(name, name)),
    order: [option("position", "by layer and head"), ...names.map(([name, { title }]) => option(name, `most on ${title}`)), option("entropy", "smallest spread")],
    pattern: [option("", "that of the head"), ...names.map(([name, { title }]) => option(name, title))],
  };
  for (const [name, options] of Object.entries(choices)) {
    $(name).replaceChildren(...options);
    $(name).value = state[name];
  }
  $("head").value = isOpen() ? `${state.layer}.${state.head}` : "";
  for (const name of ["target", "difference", "special", "hidden"]) $(name).checked = state[name];
  for (const name of ["target", "difference", "hidden"]) $(name).disabled = state.words; // they are about tokens
  const hide = (isHidden, ...ids) => ids.forEach((id) => { $(id).closest("label, button").hidden = isHidden; });
  hide(views.length < 2, "view", "other");
  hide(!names.length, "pattern", "target", "difference");
  hide(!view.special.length && !views[state.other]?.special.length, "special");
  hide(!views.some((one) => one.hiddenHeads), "hidden");
  hide(!view.words, "words");
  for (const [id, name] of Object.entries(PRESSED)) $(id).setAttribute("aria-pressed", String(state[name]));
  $("note").textContent = [problem, view.note].filter(Boolean).join(" ");
  $("about").textContent = `${view.name}: ${view.layers} layers of ${view.heads} heads, ${view.rows.length} × ${view.columns.length} tokens`;
}

const PRESSED = { words: "words", lines: "lines", direction: "byColumn", pin: "pinned" }; // buttons, and what they switch

let gridDrawn = "";
async function update(problem = "") {
  const mine = ++drawing; // drawings that have begun before stop
  const needed = [state.view, state.other].filter((at) => at >= 0 && !overviews[at]);
  await Promise.all(needed.map(async (at) => { overviews[at] = await bytesOf(`overview-${at}`); }));
  if (mine !== drawing) return;
  drawControls(problem);
  drawText();
  const shown = [state.view, state.other, state.scale, state.palette, state.order, state.special].join();
  if (shown !== gridDrawn) {
    gridDrawn = shown;
    drawGrid();
    fitTiles();
  }
  drawSteps();
  writeAddress();
  tip(null, null);
  await drawOne(mine);
  if (mine !== drawing) return;
  told.drawn = Number(told.drawn ?? 0) + 1;
}

const set = (name, value) => { state[name] = value; update(); };
const isOpen = () => state.layer >= 0;

/** Changes between tokens and words; the chosen row and column become those of the same place in the text. */
function toggleWords() {
  const { words } = views[state.view];
  if (!words) return;
  const moved = (starts, place) => (place < 0 ? place : state.words ? starts[place] : wordOf(starts, place));
  const row = moved(words.rowStarts, state.row), column = moved(words.columnStarts, state.column);
  Object.assign(state, { row, column, words: !state.words, zoom: 1 });
  update();
}

function moveChosen(across, down) {
  const view = shownView(state.view);
  choose(clamp(state.row + down, 0, view.rows.length - 1), across ? clamp(state.column + across, 0, view.columns.length - 1) : state.column);
}

// [key, what it does, the id of the control that it presses or a function]; the list of keys in the page is made of this.
const KEYS = [
  ["Enter", "enlarge the chosen head", () => { if (!isOpen()) gridCells()[cursor].click(); }],
  ["Escape", "back to all heads", "close"],
  ["[", "the step before", () => moveStep(-1)],
  ["]", "the next step", () => moveStep(1)],
  ["w", "words in place of tokens", "words"],
  ["l", "lines between the words in place of the map", "lines"],
  ["c", "by column: which tokens look at this one", "direction"],
  ["t", "outline where the pattern points", "target"],
  ["d", "show the map minus the pattern", "difference"],
  ["s", "leave out special tokens", "special"],
  ["m", "hatch what an attack hid", "hidden"],
  ["p", "pin the row, so that the pointer does not change it", "pin"],
  ["1", "colours: attention weight", () => set("scale", "weight")],
  ["2", "colours: multiple of even attention", () => set("scale", "ratio")],
  ["3", "colours: each map for itself", () => set("scale", "own")],
  ["+", "zoom in", "closer"],
  ["-", "zoom out", "farther"],
  ["?", "this list", "help-button"],
];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function start() {
  $("title").textContent = meta.title;
  if (!("DecompressionStream" in window)) {
    $("note").textContent = "This browser cannot show the maps, because it lacks DecompressionStream: use Chrome or Edge 103, Firefox 113, Safari 16.4, or a later version.";
    return;
  }
  const keys = [["arrows", "move among heads, or among rows and columns of an enlarged map"], ...KEYS];
  $("keys").append(...keys.flatMap(([key, text]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, text)]));
  $("controls").addEventListener("change", ({ target: { id, value, type, checked } }) => {
    if (id === "view") show(Number(value), state.other);
    else if (id === "other") show(state.view, Number(value));
    else if (id !== "head") set(id, type === "checkbox" ? checked : value);
    else if (value) open(...value.split(".").map(Number));
    else close();
  });
  $("more").addEventListener("toggle", () => $("controls").classList.toggle("more", $("more").open));
  $("step").addEventListener("input", () => show(stepsOf(views[state.view])[Number($("step").value)].at, state.other));
  const clicks = {
    close, words: toggleWords, lines: () => set("lines", !state.lines), tsv: saveTsv, closer: () => zoomBy(1.5), farther: () => zoomBy(1 / 1.5),
    pin: () => setPinned(!state.pinned), "help-button": () => $("help").showModal(), "help-close": () => $("help").close(),
    direction: () => {
      if (state.column < 0) state.column = clamp(state.row, 0, shownView(state.view).columns.length - 1);
      set("byColumn", !state.byColumn);
    },
  };
  for (const suffix of ["png", "svg"]) {
    clicks[suffix] = () => saveSheet(fileName(suffix), headSheet());
    clicks[`all-${suffix}`] = () => saveSheet(fileName(suffix, "all-heads"), gridSheet());
  }
  for (const [id, act] of Object.entries(clicks)) $(id).addEventListener("click", act);
  $("twin").addEventListener("toggle", drawTwin);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    const isTyped = event.getModifierState("AltGraph"); // some keyboards have [ and ] there
    if ((!isTyped && (event.ctrlKey || event.metaKey || event.altKey)) || $("help").open) return;
    if ((event.target.tagName === "SELECT" || event.target.type === "range") && event.key !== "Escape") return;
    if (event.key === "Enter" && /^(BUTTON|SUMMARY|INPUT)$/.test(event.target.tagName)) return;
    const arrow = ARROWS[event.key];
    if (arrow) {
      if ($("grid").contains(event.target)) moveInGrid(...arrow);
      else if (isOpen() && event.target === $("maps")) moveChosen(...arrow);
      else return;
      event.preventDefault();
      return;
    }
    const command = KEYS.find(([key]) => key === (event.key.length === 1 ? event.key.toLowerCase() : event.key));
    if (!command) return;
    event.preventDefault();
    if (typeof command[2] === "string") $(command[2]).click();
    else command[2]();
  });
  addEventListener("hashchange", followAddress);
  let waiting = 0;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => update()); // a canvas keeps its colours
  new ResizeObserver(() => gridDrawn && fitTiles()).observe($("grid")); // beside an open head, it is narrower
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => update(), 100); });
  followAddress();
}

start();

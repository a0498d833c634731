// Scores of the site's search: those of Sphinx, but a setting, function or class whose whole name was asked for comes first,
// also if a setting is written as a flag, such as --config.guidance.alpha.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([, name, , , score, , kind]) => {
    const asked = new URLSearchParams(location.search).get("q").trim().toLowerCase();
    return kind === "object" && name.toLowerCase() === asked.replace(/^(--)?config\./, "") ? score + 100 : score;
  },
};

"""Pre-train encoders on the 100 million words of BabyLM's strict track.

Charpentier et al. 2025 (BabyLM Turns 3: Call for papers for the 2025 BabyLM workshop). The arms are masked language
modelling (plain), the same with attention guidance (guided), a DeBERTa without its mask decoder (deberta), a ModernBERT
(modernbert), and an ELECTRA (electra), whose loss is not comparable: it is trained by itself.

    ag-jax compare --config=babylm/strict:source=FOLDER --workdir=RUNS
    ag-jax train --config=babylm/strict:source=FOLDER,arm=electra --workdir=RUNS/electra-seed0
    ag-jax export --workdir=RUNS/guided-seed0 --to=MODELS/guided --milestones
    ag-jax compare --config=babylm/strict:source=TEXTS,scale=small --workdir=DIR

FOLDER has the six training files of the challenge, NAME.train.txt or NAME.train: bnc_spoken, childes, gutenberg,
open_subtitles, simple_wiki, switchboard. If NAME.dev.txt or NAME.dev are beside them, or in the folder that the
argument `dev=FOLDER` names, they are the text for validation; otherwise 2 % of the training text are held out. The text
ends after 100 million words. Each run sees 1,000 million words, ten epochs of 100 million, and keeps a checkpoint at
each of the challenge's milestones; the third command exports them as chck_1M and so on. TEXTS is any text, such as a
folder of novels.

Hardware and time: about 20,000 steps of 128 sequences of 512 tokens, 12 layers of width 768. On one accelerator; not
timed. scale=small trains 4 layers of width 96 on one million words of TEXTS until three million are seen, one to two
hours for all arms on 2 CPU cores (a forecast).

Expected: nothing is recorded yet. scale=paper has not been run with this program yet.

Deviations: no data of the challenge could be had, so the loader is tested on small files in its layout. The size, 12
layers of width 768 and a vocabulary of 16,384 tokens, and the settings of training are our choice, equal in all arms,
and not tuned: AdamW, rows of 512 tokens from the beginning, because texts of the evaluation may be as long, and 15 % of
the tokens masked. The mask decoder of DeBERTa is left out, because transformers does not have it. With scale=small
nothing can be said about the challenge.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import babylm
from ag_jax.settings.config_files import OneOf, Scale


def get_config(*, source: str, arm: OneOf(*babylm.ARMS) = babylm.ARMS[0], dev: str = "", scale: Scale = "paper"):
    """Return the config.

    source: folder with the six training files of the challenge; with scale=small, any text.
    arm: variant to train; `ag-jax compare` trains all but `electra`.
    dev: folder with the six held-out files, if they are not in `source`.
    scale: `paper` for the track, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    babylm.track(config, "strict", arm, source, dev, scale)
    return config

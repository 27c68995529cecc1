"""The paper's tables and figures, each made by one command, beside the published numbers.

An **item** is a named table or figure of the paper. Each has a line in `items.ITEMS` and a short file in items/, which
defines one or a few similar `item.Item`s:

    ITEM = Item(
        name="kd-ntd",
        title="From distillation to not-true distillation",
        paper="Appendix H",
        about="One or two sentences: what is varied, and what it shows according to the paper.",
        runs={("Sharding (s=2)", "KD"): table("cifar10-s2", "fedkd"), ...},   # (row, column) -> settings, no seed
        seeds=3,              # default number of seeds
        measure=measure,      # optional: measure what the records do not hold
        render=render,        # finished runs and measurements -> tables and figures
    )

1. **Runs.** `runs` maps (row, column) to a table of settings; `item.table(preset, algorithm, **sections)` makes one.
   The command line adds the seed, the protocol and `--set`; with `--small` it passes each table through `small` (by
   default `item.shrink`: packaged images, few clients and rounds). Different items may ask for the same run: it is
   trained once. A figure of local models sets `measure={"local_every": 1}`; tables do not need it.
2. **Measuring.** `measure(results) -> dict` is for what needs weights or further training. `results[row, column]` is
   the list of `RunResult`s of that cell, one per seed. `result.folder` is the run folder with `checkpoint.safetensors`,
   or None if the run is known only from the ledger. The dict may hold numbers, strings, lists, dicts and arrays. It is
   stored as JSON (six digits, null for NaN), so that rendering needs neither weights nor data, and reads arrays as
   lists. `measure` is called if a finished run with a folder has not been measured yet (for an item without runs:
   once), and must handle missing cells. Top-level keys of the previous dict, which is `results.measured`, are kept
   unless they are returned again: with one key per cell, measured cells can be skipped. `measure` may train:
   `results.config(row, column, seed)` is the config of a cell, and `results.setting.small` says whether this is a
   rehearsal.
3. **Rendering.** `render(results) -> list[Table | Plot]`, uses only `results[...]` (whose `history` has every
   measure of every round) and `results.measured` (the dict, or {}). It leaves out missing results, and returns [] if
   there are none. A `Plot` has a matplotlib figure, which is drawn in the style of the reports.

An item need not deal with engines, resuming, ledger files or HTML.
"""

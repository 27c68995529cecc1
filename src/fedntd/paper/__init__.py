"""The paper's tables and figures, each from one command, with the published numbers beside.

An **item** is a table or figure of the paper by name. Each has a short file here that reads like a description, and a
line in `items.ITEMS`. A file defines one (or a few alike) `item.Item`:

    ITEM = Item(
        name="kd-ntd",
        title="From distillation to not-true distillation",
        paper="Appendix H",
        about="One or two sentences: what is varied, what the paper says that it shows.",
        runs={("Sharding (s=2)", "KD"): table("cifar10-s2", "fedkd"), ...},   # (row, column) -> settings, no seed
        seeds=3,              # how many seeds the item wants
        measure=measure,      # optional: what the records do not hold
        render=render,        # finished runs and measurements -> tables and figures
    )

1. **Runs.** `runs` maps (row, column) to a table of settings; `item.table(preset, algorithm, **sections)` makes one.
   The command line adds the seed, the protocol and `--set`; with `--small` it passes each table through `small` (by
   default `item.shrink`: packaged images, few clients and rounds). Different items may ask for the same run: it is
   trained once. A figure that draws what local models do sets `measure={"local_every": 1}`, which a table does not
   need.
2. **Measuring.** `measure(results) -> dict` is for what needs weights or further training. `results[row, column]` is
   the `RunResult`s of that cell, one a seed; `result.folder` is the run folder with `checkpoint.safetensors`, or None
   if the run is known from the ledger alone. The dict holds numbers, strings, lists, dicts and arrays; it is kept
   as JSON (six digits, null for NaN), so that a later rendering needs neither weights nor data: read it as lists. It is
   called when there is a finished run with a folder that has not been measured (for an item without runs: once), and
   must make do with the cells that are there. Top-level keys of an earlier dict that it does not return are kept, and
   `results.measured` has that dict: with one key a cell, cells need not be measured again. It may train by itself:
   `results.config(row, column, seed)` is the config of a cell, and `results.setting.small` says whether a rehearsal is
   wanted.
3. **Rendering.** `render(results) -> list[Table | Plot]`, from `results[...]` (whose `history` has every measure of
   every round) and `results.measured` (the dict, or {} if there is none) only. It leaves out what is not there, and
   returns [] if nothing is. A `Plot` has a matplotlib figure, which is drawn in the report's look.

Both engines, resuming, ledger files, HTML and so on are no concern of an item.
"""

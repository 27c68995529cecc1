"""`fedntd data`: list, download and check datasets, and show how they are partitioned."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedntd.cli.options import AsJson, Settings, Trust
from fedntd.data import download  # other modules are imported where they are used, as they import torch
from fedntd.errors import FedntdError, did_you_mean, require

app = typer.Typer(no_args_is_help=True)

OWN = {
    "folder": "your own: data.path has images in train/<class>/ and test/<class>/",
    "npz": "your own: data.path is a file with x_train, y_train, x_test, y_test",
}


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List the known datasets, their sizes, and whether their files are present.

    Example: fedntd data list
    """
    rows = []
    for name, summary in download.SUMMARIES.items():
        root = download.folder_of(name)
        found = download.present(name, root)
        complete = bool(found) and all(download.either(found[0][0], file).exists() for file in found[0][1])
        where = str(found[0][0]) if found else None
        rows.append({"name": name, **summary._asdict(), "present": complete, "where": where})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = [Column(title, no_wrap=True) for title in ("name", "training + test", "classes", "shape", "here")]
    table = Table(*columns, Column("where", overflow="fold"), box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for row in rows:
        here = "yes" if row["present"] else "in part" if row["where"] else "no"
        where = row["where"] or f"fedntd data get {row['name']}"
        shape = "×".join(map(str, row["shape"]))
        sizes = f"{row['train']:,} + {row['test']:,}"
        table.add_row(row["name"], sizes, str(row["classes"]), shape, here, Text(where))
    Console().print(table)
    for name, text in OWN.items():
        print(f"{name}: {text}")


@app.command()
def get(name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10, cifar100 or cinic10")]) -> None:
    """Download a dataset into the data folder, unless it is there and complete.

    FEDNTD_DATA names the data folder. FEDNTD_MIRROR is an address to try first, with files at ADDRESS/<dataset>/<file>.

    Example: fedntd data get cifar10
    """
    if name == "fashion-mini":
        print("fashion-mini comes with the package; there is nothing to get")
        return
    require(name not in OWN, f"dataset '{name}' is {OWN.get(name)}; there is nothing to get")
    folder = download.fetch(name)
    print(f"{name} is in {folder}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="The dataset to check; by default all that are present.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare dataset files with their published checksums: ok, missing or damaged.

    Example: fedntd data check mnist
    """
    known = not name or name in download.FILES or name in OWN
    require(known, f"dataset '{name}' is not known; {did_you_mean(name, download.FILES)}")
    names = [name] if name else [n for n in download.FILES if download.present(n, download.folder_of(n))]
    states = {n: download.check(n) for n in names}
    if as_json:
        print(json.dumps(states, indent=2))
    else:
        table = Table("dataset", "file", "state", box=SIMPLE_HEAD, pad_edge=False)
        for n, files in states.items():
            for file, state in files.items():
                table.add_row(n, file, state)
        Console().print(table)
    if bad := [n for n, files in states.items() if set(files.values()) != {"ok"}]:
        again = " and ".join(f"fedntd data get {n}" for n in bad)
        raise FedntdError(f"files of {', '.join(bad)} are missing or damaged; run: {again}")


@app.command()
def partition(
    source: Annotated[str, typer.Argument(metavar="CONFIG.toml|PRESET", help="What to split, as for fedntd run.")],
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The picture (.png, .pdf, .svg).")] = Path(
        "partition.png"
    ),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Show how many samples of each class every client owns, as a table and as a picture.

    Example: fedntd data partition cifar10-lda0.1 --set seed=1 -o partition.png
    """
    import numpy as np

    from fedntd.config.build import deal, load_dataset
    from fedntd.config.presets import configure
    from fedntd.config.schema import with_own_code
    from fedntd.data.partition import class_counts
    from fedntd.report.charts import partition_title
    from fedntd.report.figures import partition_figure
    from fedntd.report.style import save_figure

    config = with_own_code(configure(source, settings or [], trust))
    dataset = load_dataset(config)
    labels = dataset.train.y.numpy()
    counts = class_counts(labels, deal(config, labels), len(dataset.classes))
    sizes = counts.sum(1)
    spread = {"smallest": int(sizes.min()), "median": float(np.median(sizes)), "largest": int(sizes.max())}
    save_figure(partition_figure(counts, dataset.classes, partition_title(config)), out)
    if as_json:
        print(json.dumps({"classes": dataset.classes, "counts": counts.tolist(), **spread, "picture": str(out)}))
        return
    # narrow, so that the names of ten classes fit into 80 columns
    table = Table(Column("client", justify="right", no_wrap=True), box=None, padding=(0, 1, 0, 0), pad_edge=False)
    shown = min(len(dataset.classes), 10)  # more do not fit a terminal; the picture and --json have all
    for name in dataset.classes[:shown]:
        table.add_column(Text(name[:7]), justify="right", no_wrap=True)
    table.add_column("all", justify="right", style="bold")
    for client, row in enumerate(counts):
        table.add_row(str(client), *(str(n) if n else "·" for n in row[:shown]), str(row.sum()))
    Console().print(table)
    if shown < len(dataset.classes):
        print(f"(the first {shown} of {len(dataset.classes)} classes; --json has all)")
    held = (counts > 0).sum(1)
    print(
        f"samples a client: {spread['smallest']} to {spread['largest']}, median {spread['median']:g}; "
        f"classes a client: {held.min()} to {held.max()}"
    )
    print(f"picture: {out}")

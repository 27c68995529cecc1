"""From a sweep's file to runs, names, folders and groups."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedntd import FedntdError, federate
from fedntd.config.schema import with_own_code
from fedntd.config.toml import identity
from fedntd.sweep.jobs import Job, Sweep, free_name, groups, jobs, read_sweep

Write = Callable[..., Path]


def test_runs_grid_zip_and_seeds_are_combined(write: Write):
    file = write(
        head="seeds = [0, 1]",
        rest="""
[grid]
"optimiser.lr" = [0.1, 0.2]
[zip]
federation.local_epochs = [1, 2]
federation.batch_size = [8, 4]
[[runs]]
algorithm.name = "fedavg"
[[runs]]
algorithm = { name = "fedntd", beta = [0.3, 1.0] }
""",
    )
    sweep = read_sweep(file)
    made = {
        (
            run.config.algorithm.name,
            run.config.algorithm.options.get("beta"),
            run.config.optimiser.lr,
            run.config.federation.local_epochs,
            run.config.federation.batch_size,
            run.config.seed,
        )
        for run in sweep.runs
    }
    assert made == {
        (name, beta, lr, epochs, batch, seed)
        for name, beta in (("fedavg", None), ("fedntd", 0.3), ("fedntd", 1.0))
        for lr in (0.1, 0.2)
        for epochs, batch in ((1, 8), (2, 4))
        for seed in (0, 1)
    }
    assert len(sweep.runs) == 24
    assert sweep.runs[0].name == "fedavg,lr=0.1,local_epochs=1,batch_size=8,seed=0"
    assert len({run.name for run in sweep.runs}) == 24


def test_the_base_is_a_preset_a_file_beside_it_or_nothing(write: Write, tmp_path: Path):
    (tmp_path / "mine.toml").write_text("seed = 7\n[optimiser]\nlr = 0.5\n")
    (tmp_path / "a.toml").write_text('base = "mine.toml"\n[settings]\noptimiser.momentum = 0.1\n')
    (run,) = read_sweep(tmp_path / "a.toml").runs
    assert (run.config.seed, run.config.optimiser.lr, run.config.optimiser.momentum) == (7, 0.5, 0.1)
    (tmp_path / "b.toml").write_text('base = "cifar10-lda0.3"\nseeds = [3]\n')
    (run,) = read_sweep(tmp_path / "b.toml", ["federation.rounds=9"]).runs
    assert (run.config.data.name, run.config.seed, run.config.federation.rounds) == ("cifar10", 3, 9)
    assert run.name == "run"  # nothing differs


def test_a_method_that_the_grid_names_keeps_its_settings(write: Write):
    grid = '[grid]\nalgorithm.name = ["fedavg", "fedntd", "fedprox"]\n'
    for settings in ('algorithm = { name = "fedntd", beta = 0.3 }', "algorithm.beta = 0.3"):  # fedntd is the default
        fedavg, fedntd, fedprox = (run.config.algorithm for run in read_sweep(write(grid, settings=settings)).runs)
        assert fedntd.options["beta"] == 0.3
        assert "beta" not in {**fedavg.options, **fedprox.options}


def test_one_run_asked_for_twice_is_planned_once(write: Write):
    rest = '[[runs]]\nalgorithm.name = "fedntd"\n[[runs]]\nalgorithm = { name = "fedntd", beta = 1.0 }\n'
    sweep = read_sweep(write(rest))
    assert len(sweep.runs) == 1
    assert sweep.asked == 2


def test_names_that_cannot_be_folders_are_made_to_be(write: Write):
    rest = '[[runs]]\nalgorithm.name = "tiny:Fatal"\nalgorithm.lives = "/a b"\n[[runs]]\nalgorithm.name = "fedavg"\n'
    assert [run.name for run in read_sweep(write(rest)).runs] == ["Fatal,lives=_a_b", "fedavg"]


@pytest.mark.parametrize("letter", ["a", "ä", "数"])
def test_long_names_are_cut_by_their_bytes_of_which_a_file_system_takes_255(letter: str):
    name = free_name(100 * letter + "b" * 30, "0123456789", set())
    assert name.startswith(30 * letter)
    assert name.endswith("-01234567")
    assert len(name.encode()) <= 120


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sedes = [1]", "unknown key 'sedes' in"),
        ("seeds = []", "the list of 'seeds' is empty"),
        ("seeds = 3", "seeds must be a list of whole numbers, not 3"),
        ("base = 3", "base must be a preset, a config file or a table, not 3"),
        ('base = "dmo"', "did you mean 'demo'"),
        ("grid = 3", "'grid' is a section"),
        ("runs = [1]", "'runs' is a list of tables"),
        ("[grid]\noptimiser.lr = []", "the list of 'optimiser.lr' is empty"),
        ("runs = []", "asks for no run: 'runs' or a list in [zip] is empty"),
        ("[zip]\nseed = []", "asks for no run"),
        ("[grid]\noptimiser.rate = [1]", "unknown key 'optimiser.rate'"),
        (
            "[grid]\nalgorithm.name = ['fedavg', 'fedntd']\nalgorithm.beta = [1.0]",
            "run 'fedavg': algorithm.beta is not",
        ),
        ("[zip]\nseed = [1]\noptimiser.lr = [1.0, 2.0]", "equally long, but seed has 1, optimiser.lr has 2"),
        ("[zip]\nseed = 1", "'seed' in [zip] must be a list, not 1"),
        ("seeds = [1]\n[grid]\nseed = [1, 2]", "'seed' is varied twice"),
        ("[grid]\nseed = [2026-01-31]", "seed must be of type int, not '2026-01-31'"),
        ("[settings]\nseed = 2026-01-31", "seed must be of type int, not '2026-01-31'"),
        ("[grid]\noptimiser.lr = [0.1]\n'optimiser.lr' = [0.2]", "'optimiser.lr' is given twice in one section"),
        ("[grid]\noptimiser.lr = [0.1, inf]", "optimiser.lr must be a finite number of at most 1e38, not inf"),
        ("[settings]\noptimiser.lr = [0.1, 0.2]", "not [0.1, 0.2]; a list of values to try goes into [grid]"),
        ("together = -1", "together must be a whole number"),
        ("[search]\n[grid]\nseed = [1, 2]", "has [search] and 'grid'; put the values to choose from in [search.keys]"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, sentence: str, tmp_path: Path):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(FedntdError) as raised:
        read_sweep(file)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "run 'run'" not in str(raised.value)  # where there is but one, it has no name


def test_a_run_that_is_there_is_found_by_its_content(write: Write, tmp_path: Path):
    """Regardless of its name and engine. Any other difference makes it a different run."""

    def to_train(settings: str) -> Sweep:
        return read_sweep(write(settings=settings), prepare=with_own_code)

    (run,) = to_train(settings="engine = 'sequential'").runs
    out = tmp_path / "out"
    list(federate(run.config, out=out / "another name"))
    (found,) = jobs(to_train(settings="engine = 'vectorised'").runs, out)
    assert (found.folder, found.status, found.rounds_done) == (out / "another name", "finished", 3)
    assert found.config.engine == "sequential"  # it goes on as it began
    (other,) = jobs(to_train(settings="optimiser.lr = 0.02").runs, out)
    assert (other.folder, other.status) == (out / "run", "new")
    assert identity(other.config) != identity(found.config)
    list(federate(other.config, out=other.folder))
    (third,) = jobs(to_train(settings="optimiser.lr = 0.03").runs, out)  # its name is taken
    assert (third.folder, third.status) == (out / f"run-{identity(third.config)[:8]}", "new")


def test_other_files_are_another_dataset_unless_it_is_known_by_name(write: Write):
    grid = '[grid]\ndata.path = ["a", "b"]\n'
    assert len(read_sweep(write(grid, settings="data.name = 'npz'")).runs) == 2
    assert len(read_sweep(write(grid, settings="data.name = 'mnist'")).runs) == 1


def test_groups_are_of_one_shape_and_evenly_cut(write: Write):
    rest = "[grid]\nmodel.hidden = [3, 4]\n"
    planned = read_sweep(write(rest, head="seeds = [0, 1, 2, 3, 4, 5, 6]")).runs
    made = [Job(run.name, run.config, Path(run.name)) for run in planned]

    def sizes(most: int, parts: int = 1) -> list[int]:
        grouped = groups(made, most, parts)
        assert sorted(job.name for group in grouped for job in group) == sorted(job.name for job in made)
        assert all(len({job.config.model.options["hidden"] for job in group}) == 1 for group in grouped)
        return [len(group) for group in grouped]

    assert sizes(100) == [7, 7]
    assert sizes(4) == [4, 3, 4, 3]
    assert sizes(100, parts=4) == [4, 3, 4, 3]  # no worker stays idle
    assert sizes(1) == [1] * 14

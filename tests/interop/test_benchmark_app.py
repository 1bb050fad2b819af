"""Reports of the real benchmark_app become our tables; what is no whole report is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, HeteroLabWarning, MeasurementError, StoredFileError
from hetero_lab.interop.benchmark_app import HEAD

MODEL = str(Path(__file__).parents[2] / "datasets" / "digits_inception.xml")
RUNS = [
    "cpu_none_csv", "cpu_none_json", "cpu_average_csv", "cpu_average_json", "cpu_detailed_csv",
    "cpu_detailed_json", "hetero_average_csv", "split_average_csv", "split_detailed_json",
]  # fmt: skip
AVERAGE = "benchmark_average_counters_report.csv"
DETAILED = "benchmark_detailed_counters_report.json"


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    script = Path(__file__).parent / "benchmark_app_runs.py"
    command = [sys.executable, str(script), str(directory), *RUNS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return directory


@pytest.fixture(scope="module")
def acc() -> None:
    hl.emulate("ACC", unsupported={"Softmax", "Sigmoid", "Concat"})


@pytest.fixture(scope="module")
def own() -> pd.DataFrame:
    """The counters of a profile that was made here."""
    profile = hl.profile("digits_inception", "CPU", iterations=10, reference=False, progress=False)
    return profile.tables["counters"]


def test_as_people_run_it(tmp_path):
    program = Path(sys.executable).parent / "benchmark_app"
    options = ["-m", MODEL, "-d", "HETERO:CPU", "-niter", "24", "-report_type", "detailed_counters"]
    command = [str(program), *options, "-report_folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    report = hl.interop.read_benchmark_app(tmp_path, "digits_inception")
    summary = report.summary.loc[0]
    assert summary["target"] == "HETERO:CPU"
    assert summary["total_ms"] > 0
    assert summary["n_inferences"] == 24
    assert summary["min_us"] <= summary["median_us"] <= summary["max_us"]
    *_, said, unit = next(t for t in done.stdout.splitlines() if "Median:" in t).split()
    said_us = float(said) * (1 if unit == "us" else 1e3)
    assert abs(summary["median_us"] - said_us) <= 5
    assert report.counters.query("op == 'stem/conv'")["real_time_us"].iloc[0] > 0


@pytest.mark.parametrize("run", [run for run in RUNS if "none" not in run])
def test_every_row_of_the_file_is_there(reports, own, run, recwarn):
    report = hl.interop.read_benchmark_app(reports / run)
    counters = report.counters
    assert list(counters.columns) == list(own.columns)
    assert not counters["node_name"].str.startswith("subgraph").any()
    if run == "cpu_average_json":  # benchmark_app writes the first node and no other
        assert len(counters) == 1
        assert "one node only" in str(recwarn.pop(HeteroLabWarning).message)
        return
    assert not recwarn.list
    names = written_names(reports / run)
    shown = [
        f"subgraph{row.subgraph}: {row.node_name}" if "cpu" not in run else row.node_name
        for row in counters.itertuples()
    ]
    assert shown == names[: len(shown)]
    assert len(names) % len(shown) == 0
    assert set(counters["status"]) <= {"EXECUTED", "NOT_RUN", "OPTIMIZED_OUT"}
    assert set(counters["device"]) == ({""} if "split" in run else {"CPU"})
    assert set(counters["kind"]) == {"other"}  # there was no model to join it to
    assert set(counters["precision"]) & {"f32", "bf16"}
    if "detailed" in run:
        requests = report.tables["requests"]
        assert len(requests) == len(names)
        assert list(requests.columns) == ["request", *own.columns]
        n_ran = requests.loc[requests["status"] == "EXECUTED", "request"].nunique()
        assert counters["real_time_us"].sum() == pytest.approx(
            requests["real_time_us"].sum() / n_ran
        )
    else:
        assert "requests" not in report.tables


def written_names(folder: Path) -> list[str]:
    (file,) = folder.glob("*counters*")
    if file.suffix == ".json":
        data = json.loads(file.read_text())
        every = data.get("detailed_performance") or [data["avg_performance"]]
        return [node["name"] for request in every for node in request["nodes"]]
    lines = [line.split(";") for line in file.read_text().splitlines() if line]
    return [fields[0] for fields in lines if fields[0] not in ("layerName", "Total")]


@pytest.mark.parametrize("run", ["cpu_average_csv", "cpu_detailed_json", "hetero_average_csv"])
def test_joined_to_the_ops_of_the_model(reports, own, run):
    joined = hl.interop.read_benchmark_app(reports / run, "digits_inception").counters
    for column in ("node_name", "kind", "op", "fused_ops", "tensor", "device"):
        assert list(joined[column]) == list(own[column]), column
    assert set(joined.query("kind == 'op'")["op"]) >= {"stem/conv", "mixed1/concat"}


def test_joined_over_two_devices(reports, acc, tmp_path):
    placement = hl.Affinity.automatic("digits_inception", "HETERO:ACC,CPU")
    partition = hl.partition("digits_inception", placement)
    assert partition.n_subgraphs > 4
    for run in ("split_average_csv", "split_detailed_json"):
        for where in (None, placement):  # what the report says, and by hand
            report = hl.interop.read_benchmark_app(reports / run, "digits_inception", where)
            counters = report.counters
            assert report.emulated == {"ACC": "CPU"}
            assert list(counters["emulated"]) == list(counters["device"] == "ACC")
            ops = counters.query("kind == 'op'")
            assert len(ops) > 20
            devices = dict(zip(ops["op"], ops["device"], strict=True))
            assert devices == {op: placement[op] for op in devices}
            assert devices["mixed1/concat"] == "CPU"
            # The runtime orders them in its own way; the ops of each are those of the prediction.
            of = ops.groupby("subgraph")["op"].apply(set)
            assert all(any(o <= set(s.ops) for s in partition.subgraphs) for o in of)
            assert counters["subgraph"].nunique() == partition.n_subgraphs
            assert len(counters.query("kind == 'reorder' and tensor != ''")) > 0
    hl.views.page(report, tmp_path / "page.html")
    assert "ACC is emulated on CPU" in (tmp_path / "page.html").read_text()
    with pytest.raises(ArgumentError, match="another placement"):
        hl.interop.read_benchmark_app(reports / "split_average_csv", "digits_inception", "CPU")
    with pytest.raises(ArgumentError, match="another placement"):
        hl.interop.read_benchmark_app(reports / "cpu_average_csv", "digits_inception", placement)


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_settings_and_results(reports, ending, tmp_path):
    report = hl.interop.read_benchmark_app(reports / f"cpu_none_{ending}")
    assert list(report.tables) == ["summary", "settings"]
    summary = report.summary.loc[0]
    assert (summary["target"], summary["n_requests"], summary["batch_size"]) == ("CPU", 2, 1)
    assert 0 < summary["min_us"] <= summary["median_us"] <= summary["max_us"]
    assert summary["per_second"] > 0
    settings = report.tables["settings"].set_index(["part", "name"])["value"]
    assert settings["options", "-niter"] == "10"
    assert settings["settings", "API"] == "async"
    assert float(settings["results", "compile model time (ms)"]) == summary["compile_ms"]
    with pytest.raises(ArgumentError, match="average_counters"):
        _ = report.counters
    report.export(tmp_path / "tables")
    assert pd.read_csv(tmp_path / "tables" / "summary.csv").loc[0, "target"] == "CPU"
    assert "BenchmarkReport" in repr(report)


def test_one_file_alone(reports, tmp_path):
    renamed = shutil.copy(reports / "cpu_average_csv" / AVERAGE, tmp_path / "mine.csv")
    report = hl.interop.read_benchmark_app(renamed)
    assert len(report.counters) > 30
    with pytest.raises(ArgumentError, match="report_folder"):
        _ = report.summary
    joined = hl.interop.read_benchmark_app(renamed, "digits_inception", "CPU")
    assert "stem/conv" in set(joined.counters["op"])
    detailed = shutil.copy(reports / "cpu_detailed_json" / DETAILED, tmp_path / "other.json")
    assert hl.interop.read_benchmark_app(detailed).is_detailed


ROW = "conv;Status.EXECUTED;Convolution;jit_f32;0.010;0.010"


def test_any_name_a_model_can_have(tmp_path):
    names = ["a;b", "two\nlines", "=1+1", "Total", "<b>", "", "x;Status.EXECUTED;y"]
    rows = [ROW.replace("conv", name) for name in names]
    text = "\n".join([HEAD, *rows, "Total;;;;0.070;0.070", "", ""])
    (tmp_path / AVERAGE).write_text(text)
    report = hl.interop.read_benchmark_app(tmp_path)
    assert list(report.counters["node_name"]) == names
    assert report.counters["real_time_us"].tolist() == pytest.approx([10.0] * len(names))
    # The program in C++ ends each line with a separator and names states without their class.
    other = text.replace("Status.", "").replace("\n", ";\n").replace("two;\n", "two\n")
    (tmp_path / AVERAGE).write_text(other.replace("\n;\n", "\n\n"))
    assert len(hl.interop.read_benchmark_app(tmp_path).counters) == len(names)


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        (AVERAGE, "", "no counters"),
        (AVERAGE, f"{HEAD}\n", "half written"),
        (AVERAGE, f"{HEAD}\n{ROW}\n", "half written"),
        (AVERAGE, f"{HEAD}\n{ROW}\nco", "half written"),
        (AVERAGE, f"{HEAD}\n{ROW}x\nTotal;;;;0.0;0.0\n", "half written"),
        (AVERAGE, f"{HEAD}\nTotal;;;;0.0;0.0\n", "no counters"),
        (AVERAGE, "\x89PNG\x00", "can't decode"),
        (DETAILED, "{}", "report_type"),
        (DETAILED, "[1]", "not a whole report"),
        (DETAILED, '{"report_type":', "it is cut off or no JSON"),
        (DETAILED, '{"report_type": "detailed", "detailed_performance": []}', "no counters"),
        (DETAILED, '{"report_type": "sorted", "avg_performance": {"nodes": []}}', "sorted"),
        (DETAILED,
         '{"report_type": "detailed", "detailed_performance": [{"nodes": [{"name": 1}]}]}',
         "status"),
        (DETAILED,
         '{"report_type": "detailed", "detailed_performance": [{"nodes": [{"name": null, '
         '"status": "EXECUTED", "node_type": "", "exec_type": "", "real_time": 1, "cpu_time": 1}'
         "]}]}",
         "has no name"),
        ("benchmark_report.csv", "Execution results\nthroughput;1", "half written"),
        ("benchmark_report.csv", "Command line parameters\n-d;CPU\n\n", "half written"),
        ("benchmark_report.csv", "x;y\n", "no counters"),
        ("benchmark_report.json", '{"execution_results": 5}', "not a whole report"),
        ("benchmark_report.json",
         '{"execution_results": {"total number of iterations": 1%s}}' % ("0" * 400), "no number"),
        ("sweep.csv", "label,median_us\na,1\n", "not a whole report of benchmark_app"),
        ("benchmark_sorted_report.csv", "layerName,execStatus\n", "not a whole report"),
    ],
)  # fmt: skip
def test_what_is_not_a_whole_report_is_refused(tmp_path, name, text, fact):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(StoredFileError, match=fact) as error:
        hl.interop.read_benchmark_app(tmp_path / name)
    assert name in str(error.value)


@pytest.mark.parametrize("run", ["cpu_detailed_csv", "cpu_detailed_json", "cpu_none_csv"])
def test_a_report_cut_anywhere_is_refused(reports, tmp_path, run):
    (file,) = (f for f in (reports / run).iterdir() if "counters" in f.name or "none" in run)
    whole = file.read_bytes().rstrip()
    after_a_head = [found.end() for found in re.finditer(rb"cpuTime \(ms\);?\n", whole)]
    for size in [*range(0, len(whole), max(1, len(whole) // 150)), *after_a_head]:
        (tmp_path / file.name).write_bytes(whole[:size])
        lines = whole[:size].split(b"\n")
        written = [line for line in lines if line.strip()]
        if not lines[-1].strip() and written and written[-1].startswith(b"Total"):
            continue  # between two requests nothing is missing
        with pytest.raises(StoredFileError):
            hl.interop.read_benchmark_app(tmp_path / file.name)


def test_a_folder_of_several_runs_is_refused(reports, tmp_path):
    for run in ("cpu_average_csv", "cpu_detailed_json"):
        shutil.copytree(reports / run, tmp_path, dirs_exist_ok=True)
    with pytest.raises(StoredFileError, match="several runs"):
        hl.interop.read_benchmark_app(tmp_path)


def test_counters_of_nothing_that_ran(tmp_path):
    row = "stem/conv;Status.NOT_RUN;Convolution;jit_f32;0.000;0.000"
    text = f"{HEAD}\n{row}\n{row}\nTotal;;;;0.000;0.000\n\n"
    (tmp_path / AVERAGE).write_text(text)
    assert len(hl.interop.read_benchmark_app(tmp_path).counters) == 2
    with pytest.raises(MeasurementError, match="no counters"):
        hl.interop.read_benchmark_app(tmp_path, "digits_inception", "CPU")

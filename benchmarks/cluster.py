"""What engines and the store cost: the figures of docs/cluster.md.

    python benchmarks/cluster.py speedup --shared DIR    two workers against two bare loops
    python benchmarks/cluster.py ray                     how long Ray takes to start
    python benchmarks/cluster.py store                   a million outcomes: rate, memory, size, listing, exporting
    python benchmarks/cluster.py exports                 of those, listing and exporting alone, again
    python benchmarks/cluster.py driver                  what the driver does per ImageNet example

Each adds to --out (benchmarks/results/cluster.json) as it goes, and goes on where it was stopped. Run it with
OMP_NUM_THREADS=1. The machine is shared, so contestants take turns and only ratios within a round are compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tmifpe
from tmifpe.core.process import keep_freed_memory
from tmifpe.engines import ray_cluster
from tmifpe.evaluation.prepare import Prepared, prepare
from tmifpe.run.request import Request
from tmifpe.run.shard import Job, run_shard
from tmifpe.run.spec import Plan

HERE = Path(__file__).resolve().parent
EACH, SHARD, STEPS = 400, 50, 100
THREAT = tmifpe.Threat("linf", 2 / 255)


def sources(shared: str, examples: int) -> tuple[tmifpe.Classifier, tmifpe.Data]:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    model = tmifpe.load_model(f"{shared}/models/cifar10_resnet4b.onnx", mean=mean, std=std)
    return model, tmifpe.load_data(f"npz:{shared}/data/cifar10/test_first_846.npz", limit=examples)


def bare_loop(pipe: Connection, shared: str) -> None:
    """A process that computes the shards it is told, with nothing around it, and says how long it took."""
    keep_freed_memory()
    torch.set_num_threads(1)
    model, data = sources(shared, 2 * EACH)
    plan = Plan(2 * EACH, SHARD, SHARD)
    with prepare(model, data, THREAT, Request()) as prepared:
        while (asked := pipe.recv()) is not None:
            shards, seed = asked
            job = Job(
                prepared.model,
                prepared.data,
                THREAT,
                tmifpe.PGD(steps=STEPS),
                mode="strongest",
                seed=seed,
                batch_size=SHARD,
            )
            for shard in shards:
                run_shard(job, shard, plan.positions(shard))
            pipe.send("done")


def on_processor(pid: int) -> float:
    """Seconds that a process has had of the processor, all its threads included (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Loops:
    """Two bare loops that wait for something to do."""

    def __init__(self, shared: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=bare_loop, args=(theirs, shared), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Loops:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.send(None)

    def run(self, count: int, shards: int, seed: int) -> None:
        for i in range(count):
            self.pipes[i].send((range(i * shards, (i + 1) * shards), seed))
        for i in range(count):
            self.pipes[i].recv()


def speedup(options: argparse.Namespace, kept: list[dict[str, Any]]) -> None:
    each = EACH // SHARD
    with ExitStack() as stack:
        store = stack.enter_context(tempfile.TemporaryDirectory())
        loops = stack.enter_context(Loops(options.shared))
        model, data = sources(options.shared, 2 * EACH)
        half = tmifpe.load_data(f"npz:{options.shared}/data/cifar10/test_first_846.npz", limit=EACH)
        shared = {"mode": "strongest", "batch_size": SHARD, "shard_size": SHARD, "checks": False}
        if "ray" in options.engines:
            stack.enter_context(ray_cluster(workers=2))
        engines: dict[str, Prepared] = {}
        for name in options.engines:
            for workers in (1, 2) if name == "processes" else (2,):  # one actor alone would have all cores of Ray
                own = f"{store}/{name}{workers}"  # another store: what one has computed the other would only read
                asked = Request(engine=name, workers=workers, store=own, **shared)
                engines[f"{name}{workers}"] = stack.enter_context(
                    prepare(model, data if workers == 2 else half, THREAT, asked)
                )

        def once(name: str, seed: int) -> dict[str, float]:
            """Seconds, and those on the processor: of the workers and of the driver."""
            engine = engines.get(name)
            pids = [process.pid for process in loops.processes] if engine is None else engine.engine.pids
            busy, own, began = sum(map(on_processor, pids)), time.process_time(), time.perf_counter()
            if engine is None:
                loops.run(int(name[-1]), each, seed)
            else:
                engine.run(tmifpe.PGD(steps=STEPS), seed=seed)  # with its store
            seconds = time.perf_counter() - began
            return {
                "seconds": seconds,
                "workers_busy": sum(map(on_processor, pids)) - busy,
                "driver_busy": time.process_time() - own,
            }

        names = sorted(["bare1", "bare2", *engines], key=lambda name: name[-1])
        for name, engine in engines.items():  # the workers start
            engine.run(tmifpe.PGD(steps=1), seed=10_000 + len(name))
        loops.run(2, 1, 10_000)
        for number in range(len(kept), options.rounds):
            kept.append({name: once(name, number) for name in (names if number % 2 else names[::-1])})
            print(json.dumps(kept[-1]), flush=True)
            write(options.out, "speedup", kept)


def ray(options: argparse.Namespace, kept: list[dict[str, Any]]) -> None:
    for _ in range(len(kept), options.rounds):
        done = subprocess.run([sys.executable, __file__, "ray-once"], capture_output=True, text=True, check=True)
        kept.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(kept[-1]), flush=True)
        write(options.out, "ray", kept)


def ray_once() -> None:
    """From nothing to the first outcome, in seconds since the beginning."""
    began, told = time.perf_counter(), {}

    def note(name: str) -> None:
        told[name] = time.perf_counter() - began

    __import__("ray")
    note("imported")
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=64)
    with ray_cluster(workers=2):
        note("cluster")
        asked = Request(engine="ray", workers=2, shard_size=16, batch_size=16, checks=False)
        with prepare(model, data, tmifpe.Threat("linf", 0.1), asked) as prepared:
            prepared.run(tmifpe.PGD(steps=1))
            note("computed")
    note("ended")
    print(json.dumps(told))


def store(options: argparse.Namespace, kept: list[dict[str, Any]]) -> None:
    for examples in options.examples[len(kept) :]:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            found = filled(folder, examples, options.steps) | {"steps": options.steps}
            # The machine is shared: of the processor's time, too.
            found["stored_per_second"] = examples / found["storing"]
            found["stored_per_busy_second"] = examples / found["storing_busy"]
            found["database_bytes"] = (Path(folder) / "runs.sqlite").stat().st_size
            found["shard_bytes"] = sum(file.stat().st_size for file in Path(folder).rglob("*.safetensors"))
            print(json.dumps(found), flush=True)
            found |= {name: timed(words) for name, words in commands(folder).items()}
        kept.append(found)
        print(json.dumps(found), flush=True)
        write(options.out, "store", kept)


def exports(options: argparse.Namespace, _: list[dict[str, Any]]) -> None:
    """Listing and exporting again, in the rows of `store` that are there; their other numbers stay."""
    rows = json.loads(options.out.read_text())["store"]
    for row in rows:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            filled(folder, row["n"], row["steps"])
            row |= {name: timed(words) for name, words in commands(folder).items()}
        print(json.dumps(row), flush=True)
        write(options.out, "store", rows)


def filled(folder: str, examples: int, steps: int) -> dict[str, Any]:
    """A store with one run, and what tests/store_load.py says of making it."""
    words = [sys.executable, str(HERE.parent / "tests" / "store_load.py"), str(examples), str(steps), folder]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def commands(folder: str) -> dict[str, list[str]]:
    """What is asked of the one run of a store."""
    run = tmifpe.Store(folder).runs()[0].key
    words = {"list": ["list"], "show": ["show", run]}
    for name in ("csv", "parquet", "json"):
        words[name] = ["export", run, "--format", name, "--output", f"{folder}/x.{name}"]
    return {name: ["runs", *each, "--store", folder] for name, each in words.items()}


def timed(words: list[str]) -> dict[str, float]:
    """The command line, in a process of its own: seconds, those of them on the processor, and MB."""
    code = (
        "import resource, sys; from tmifpe.cli import main\ntry: main()\n"
        "finally:\n u = resource.getrusage(resource.RUSAGE_SELF)\n"
        " sys.stderr.write(f'PEAK {u.ru_maxrss} {u.ru_utime + u.ru_stime}')"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    peak, busy = done.stderr.rpartition("PEAK ")[2].split()
    return {"seconds": seconds, "busy": float(busy), "peak_mb": int(peak) / 1024}


def driver(options: argparse.Namespace, kept: list[dict[str, Any]]) -> None:
    for _ in range(len(kept), options.rounds):
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            kept.append(driver_once(Path(folder)))
        print(json.dumps(kept[-1]), flush=True)
        write(options.out, "driver", kept)


def driver_once(folder: Path, n: int = 64) -> dict[str, float]:
    """Seconds per example: a JPEG of 500 x 375 read as 224 x 224, packed for a worker; its answer unpacked, stored."""
    from tmifpe.engines.parcel import Task, pack_result
    from tmifpe.engines.worker import Answer
    from tmifpe.run.outcomes import Outcomes
    from tmifpe.run.shard import ShardResult

    draw_images(folder / "images", n)
    data = tmifpe.load_data(f"imagefolder:{folder}/images", resize="Res256Crop224")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, 2))
    found: dict[str, float] = {}

    def clocked(name: str, action: Any, *given: Any) -> Any:
        began, busy = time.perf_counter(), time.process_time()
        made = action(*given)
        found[name] = (time.perf_counter() - began) / n
        found[f"{name}_busy"] = (time.process_time() - busy) / n
        return made

    with prepare(model, data, THREAT, Request()) as prepared:
        job, plan = Job(prepared.model, prepared.data, THREAT, tmifpe.PGD(steps=1)), Plan(n, n, n)
        task = clocked("read", Task.fetch, job, plan, 0)
        sent = clocked("pack", _packed, task)
        result = ShardResult(0, Outcomes.blank(n), torch.from_numpy(task.images))
        clocked("unpack", _unpacked, _packed(Answer("done", pack_result(result))))
        recorder = tmifpe.Store(folder / "store").recorder()
        recorder.begin(prepared._identified(prepared._spec(job.attack, 0), plan, recorder), plan, "cpu")
        clocked("store", recorder.save, result)
        recorder.close()
    return found | {"bytes": len(sent) / n}


def draw_images(folder: Path, n: int) -> None:
    """As smooth as photographs, so that they are read as fast."""
    from PIL import Image

    draws = np.random.default_rng(0)
    for i in range(n):
        coarse = Image.fromarray(draws.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        place = folder / f"n{i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(place / f"{i:03d}.jpg", quality=90)


def _packed(message: object) -> bytes:
    import pickle

    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def _unpacked(message: bytes) -> Any:
    import pickle

    return pickle.loads(message)


def write(path: Path, name: str, rows: list[dict[str, Any]]) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    found |= {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0)), name: rows}
    path.write_text(json.dumps(found, indent=1) + "\n")


VERBS = {"speedup": speedup, "ray": ray, "store": store, "exports": exports, "driver": driver}


def main() -> None:
    if sys.argv[1:] == ["ray-once"]:
        ray_once()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--shared", help="the folder with models/cifar10_resnet4b.onnx and data/cifar10")
    parser.add_argument("--engines", nargs="+", default=["processes", "ray"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--scratch", help="where temporary stores are made")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cluster.json")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()).get(options.verb, []) if options.out.exists() else []
    VERBS[options.verb](options, kept)


if __name__ == "__main__":
    main()

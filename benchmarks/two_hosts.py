"""Two hosts on one machine: network namespaces joined at 100 Mbit/s. What is seen, and what half-precision gradients gain.

    sudo python benchmarks/two_hosts.py        Linux, `ip` and `tc`; result in benchmarks/results/ranks/two_hosts.json

Both sides of the comparison are whole runs of benchmarks/ranks/train.py, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE / "results" / "ranks" / "two_hosts.json"
RATE = "100mbit"
STEPS, ROUNDS = 8, 2
NETWORK = (
    "ip netns add h0; ip netns add h1; ip link add v0 type veth peer name v1",
    *(
        f"ip link set v{n} netns h{n}; ip -n h{n} addr add 10.77.0.{n + 1}/24 dev v{n}; ip -n h{n} link set v{n} up; "
        f"ip -n h{n} link set lo up; ip netns exec h{n} tc qdisc add dev v{n} root tbf rate {RATE} burst 64kb latency 400ms"
        for n in (0, 1)
    ),
)


def on_both(port: int, words: list[str], arguments: list[str]) -> str:
    """Run hasten on both hosts at once; what the first printed."""
    started = []
    for node in (0, 1):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
        torchrun += ["--nproc-per-node", "1", "--master-addr", "10.77.0.1", "--master-port", str(port)]
        command = ["ip", "netns", "exec", f"h{node}", sys.executable, "-m", "hasten", *words, *torchrun]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": f"v{node}", "OMP_NUM_THREADS": "1"}
        command += [str(HERE / "ranks" / "train.py"), "slow_network", *arguments]
        folder = tempfile.mkdtemp()
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True))
    said = [process.communicate(timeout=120)[0] for process in started]
    return said[0]


def main() -> None:
    """Diagnose once, then plain and bfloat16 gradients in turn."""
    subprocess.run("ip netns del h0; ip netns del h1", shell=True, stderr=subprocess.DEVNULL)
    subprocess.run("; ".join(NETWORK), shell=True, check=True)
    found: dict[str, Any] = {"rate": RATE, "load": os.getloadavg(), "plain": [], "bf16": []}
    try:
        answer = json.loads(on_both(29610, ["diagnose", "--quick", "--seconds", "8", "--json"], []))
        ranks = answer["run"]["ranks"]
        found |= {"step_seconds": ranks["step_seconds"], "exposed_seconds": ranks["transfer"]}
        found["gradient_bytes"] = sum(ddp["num_bytes"] for ddp in answer["run"]["facts"]["ddps"])
        found["first_finding"] = answer["diagnosis"]["findings"][0]["kind"]
        for number in range(ROUNDS):
            for at, (name, setting) in enumerate((("plain", "false"), ("bf16", "bf16"))):
                words = ["run", "--set", f"ddp_gradients={setting}"]
                said = on_both(29620 + 2 * number + at, words, ["--steps", str(STEPS)])
                found[name].append(float(said.split("seconds per step:")[1].split()[0]))
    finally:
        subprocess.run("ip netns del h0; ip netns del h1", shell=True, stderr=subprocess.DEVNULL)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()

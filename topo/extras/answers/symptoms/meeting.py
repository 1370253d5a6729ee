"""Symptoms of ranks on several hosts that do not meet: interfaces, addresses, ports."""

from __future__ import annotations

from ..symptom import Symptom, When
from .common import HANGS, NCCL, TESTS, TORCH, VLLM

# What NCCL and torch say of a peer that cannot be reached.
_UNREACHED = (
    r"(?:[Cc]onnect(?:ed|ion)? to \S+ (?:failed|returned)|Call to connect failed"
    r"|SocketPollConnect to \S+ failed|Gloo connectFullMesh failed)[^\n]{0,160}"
    r"(?:[Nn]o route to host|[Cc]onnection refused|timed out|unreachable|connection abort)"
)
# Addresses and interfaces that exist on one host alone.
_OWN_ADDRESS = r"(?:127\.\d{1,3}\.\d{1,3}\.\d{1,3}|172\.1[78]\.\d{1,3}\.\d{1,3}|\[?::1\]?)\b"
_OWN_INTERFACE = r"(?:docker|br-|veth|virbr|lxcbr|lxdbr|cni|flannel|cali|podman|tailscale|lo:)"
# A store of torch in which more ranks came together than the job has.
_TOO_MANY = (
    r"store_based_barrier_key:\d+ \(world_size=(?:1, worker_count=[2-9]|2, worker_count=[3-9]"
    r"|3, worker_count=[4-9]|4, worker_count=[5-9]|8, worker_count=9|[1-9], worker_count=\d\d)\b"
)

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "no-interface",
        (
            When(
                (
                    r"Bootstrap ?: no socket interface found|NET/Socket ?: no interface found"
                    r"|No usable listening interface found|No interface found in the same subnet"
                    r"|No IP interface found|connecting to address\s+with family \d+ is neither"
                    r"|Socket creation failed ?: Address family not supported",
                )
            ),
        ),
        "no network interface has the name or the address that NCCL was told",
        "correct or unset NCCL_SOCKET_IFNAME (several names for hosts that differ: eno1,eth0; = "
        "and ^ before a name match exactly and exclude), NCCL_COMM_ID; in containers use the "
        "host's network",
        "high",
        f"{NCCL}1837",
    ),
    Symptom(
        "gloo-interface",
        (When((r"Unable to find address for: \S+",)),),
        "GLOO_SOCKET_IFNAME names no interface of the host: it takes one name, and not NCCL's "
        "lists and exclusions (^lo)",
        "set it to the interface with the host's address (ip route get ADDRESS names it)",
        "high",
        "https://github.com/aws-samples/aws-do-eks/pull/51",
    ),
    Symptom(
        "gloo-loopback",
        (
            When((rf"[Gg]loo[^\n]{{0,300}}(?:remote|local)=\[?{_OWN_ADDRESS}",)),
            When((r"Unable to resolve hostname to a \(local\) address",)),
            When((rf"pair\.cc:\d+\] connect \[{_OWN_ADDRESS}\]",)),
        ),
        "gloo takes the address to which the host's own name resolves, and that is one which other "
        "hosts do not reach (127.0.0.1, 127.0.1.1)",
        "set GLOO_SOCKET_IFNAME to the interface between the hosts, or correct /etc/hosts",
        "high",
        "https://github.com/aws-samples/aws-do-eks/pull/69",
    ),
    Symptom(
        "gloo-mesh",
        (When((r"Gloo connectFullMesh failed with \[[^\]\n]*\] no error(?!, remote)",)),),
        "gloo's ranks did not all reach each other: of several interfaces it took one that does "
        "not lead to the other hosts",
        "set GLOO_SOCKET_IFNAME on each host to the interface between the hosts (and "
        "NCCL_SOCKET_IFNAME), open all ports between them, and raise ulimit -n for many ranks",
        "medium",
        f"{VLLM}13121",
    ),
    Symptom(
        "own-address",
        (
            When(
                (
                    rf"[Cc]onnect(?:ed|ion)? to \S{{0,40}}?{_OWN_ADDRESS}[^\n]{{0,12}} "
                    "(?:failed|returned)",
                )
            ),
            When(
                (
                    r"The client socket has (?:timed out|failed to connect)[^\n]{0,80}"
                    rf"[(\[](?:::ffff:)?{_OWN_ADDRESS}",
                ),
                (r"\(127\.0\.0\.1, ",),
            ),
        ),
        "a rank is to connect to an address that exists inside one host alone (Docker's bridge, "
        "loopback), as the peer offers it",
        "set NCCL_SOCKET_IFNAME (and VLLM_HOST_IP, MASTER_ADDR) to the interface between the "
        "hosts, and run containers with the host's network (--network host)",
        "high",
        f"{NCCL}929",
    ),
    Symptom(
        "link-local",
        (When((r"[Cc]onnect(?:ed|ion)? to (?:\[?fe80:|169\.254\.)\S* (?:failed|returned)",)),),
        "a rank offers an address that holds on one link alone (fe80::, 169.254.), as its "
        "interface has no other or the wrong one was taken",
        "set NCCL_SOCKET_IFNAME to the interface with the hosts' routed addresses, and "
        "NCCL_SOCKET_FAMILY=AF_INET, or give the interface an address",
        "medium",
        f"{NCCL}975",
    ),
    Symptom(
        "bridge-interface",
        (
            When(
                (rf"Bootstrap ?: Using (?:\[0\] ?)?{_OWN_INTERFACE}", r"[Cc]onnect|nNodes [2-9]"),
            ),
            # Beside the right one, and the start fails.
            When(
                (
                    rf"NET/Socket ?: Using \[0\][^\n]*\[\d+\]{_OWN_INTERFACE}",
                    r"ncclSystemError|unhandled system error|ncclRemoteError",
                ),
                (r"NCCL WARN (?!Failed to open libibverbs|NET/Socket|socket|[^\n]*[Cc]onnect)",),
            ),
        ),
        "NCCL starts over an interface that exists inside one host alone (a container's bridge or "
        "pair, a VPN), over which other hosts are not reached",
        "set NCCL_SOCKET_IFNAME to the interface between the hosts, such as eth0, or exclude: "
        "NCCL_SOCKET_IFNAME=^lo,docker,veth,br-",
        "medium",
        f"{NCCL}913",
    ),
    Symptom(
        "mpi-network",
        (
            When(
                (
                    r"Open MPI failed to TCP connect to a peer"
                    r"|Open MPI accepted a TCP connection from what appears to be"
                    r"|unable to complete a TCP connection to another process",
                )
            ),
        ),
        "Open MPI connects its processes over interfaces of the hosts that do not lead to each "
        "other (a container's bridge, an address that both hosts have)",
        "name the network between the hosts: mpirun --mca btl_tcp_if_include 10.0.0.0/24 --mca "
        "oob_tcp_if_include 10.0.0.0/24, with NCCL_SOCKET_IFNAME for NCCL",
        "medium",
        f"{TESTS}132",
    ),
    Symptom(
        "stranger",
        (When((r"wrong magic (?:0x)?[0-9a-f]+ != (?:0x)?[0-9a-f]+",)),),
        "something that is no rank of this job connected to a port of NCCL's: a scanner or a "
        "collector of metrics (a number that ends with 20544547 is an HTTP GET), or a rank of "
        "another job; versions before 2.30 can hang on it",
        "keep scanners and collectors off the interface that NCCL uses (NCCL_SOCKET_IFNAME, a "
        "firewall), end ranks that earlier jobs left, and use a later NCCL",
        "medium",
        f"{NCCL}1808",
    ),
    Symptom(
        "sidecar",
        (
            When(
                (
                    r"(?i)istio|envoy|linkerd",
                    r"(?i)\b(?:hang|hung|stuck|freez|never|rendezvous|timed? ?out|got 0 bytes)",
                    r"(?i)nccl|torch|mpi|init_process_group|TCPStore",
                ),
                (r"Init COMPLETE",),
            ),
        ),
        "the pods have a proxy of a service mesh (Istio, Envoy, Linkerd), which takes the ranks' "
        "connections and breaks those that it does not know",
        'start the pods without it (label sidecar.istio.io/inject: "false"), or exclude the '
        "ports of the ranks from it",
        "medium",
        f"{NCCL}1638",
    ),
    Symptom(
        "interface-names",
        (
            When(
                (
                    r"NCCL_SOCKET_IFNAME[ =]+[a-z]\w+(?![\w,])",
                    r"internal error|remote process exited or there was a network error"
                    r"|unhandled system error|ncclSystemError|ncclRemoteError",
                    r"(?i)-?-hostfile|-H \S+,\S|num_nodes[ =]+[2-9]|nnodes[ =]+[2-9]|pdsh -"
                    r"|nNodes [2-9]",
                ),
                (r"NCCL WARN", r"out of memory", r"Last error:\s*\n?\s*\S"),
            ),
        ),
        "NCCL_SOCKET_IFNAME names one interface for all hosts: on some host it has another name, "
        "or it is not the one that has the address between the hosts (a bridge br0, a bond)",
        "compare ip -br addr on each host; name all of them (NCCL_SOCKET_IFNAME=eno1,enp6s0), or "
        "unset it; NCCL_DEBUG=WARN says more",
        "low",
        f"{TESTS}219",
    ),
    Symptom(
        "unreached",
        (When((_UNREACHED,)),),
        "a rank cannot connect to another one's address: a firewall, an interface that does not "
        "lead there, or a process that has ended",
        "see whether it is the interface between the hosts (NCCL_SOCKET_IFNAME) and all ports are "
        "open between them; NCCL takes any port",
        "medium",
        f"{NCCL}1105",
    ),
    Symptom(
        "store-unreached",
        (
            When(
                (
                    r"client socket has timed out after \d+ ?m?s while trying to connect"
                    r"|client socket has failed to connect to [^\n]{0,80}errno: 110"
                    r"|client socket has failed to connect to any network address"
                    r"|failed to connect/validate to host|RendezvousConnectionError",
                )
            ),
        ),
        "a rank does not reach the store where all ranks meet (MASTER_ADDR, --rdzv-endpoint): "
        "wrong address or port, a firewall, or the process that has the store did not start",
        "see that all ranks name the same address and a free port, that the name resolves to the "
        "same host everywhere (/etc/hosts), and that nc -z ADDRESS PORT succeeds from each host",
        "medium",
        f"{TORCH}105782",
    ),
    Symptom(
        "host-ip",
        (
            When((r"Every node should have a unique IP address",)),
            When((r"No available node types can fulfill resource request\s*\{[^}\n]*'node:",)),
        ),
        "vLLM takes another address of a host than that by which Ray knows it, as hosts with "
        "several interfaces have",
        "start Ray with --node-ip-address, and set VLLM_HOST_IP on each host to that same address "
        "before ray start, so that the workers get it too",
        "high",
        "https://github.com/eugr/spark-vllm-docker/issues/227",
    ),
    Symptom(
        "mpi-daemons",
        (
            When(
                (
                    r"ORTE was unable to reliably start one or more daemons"
                    r"|PRTE has lost communication with a remote daemon"
                    r"|ssh: connect to host \S+ port \d+: |Host key verification failed"
                    r"|ssh: Could not resolve hostname",
                )
            ),
        ),
        "the launcher (mpirun, deepspeed) cannot start processes on another host by ssh: a name "
        "that does not resolve, a login that is refused, or other paths of MPI there",
        "make ssh HOST true work from the first host to each one without a question (in Kubernetes "
        "wait until the workers run), with the same MPI in the same place (mpirun --prefix)",
        "high",
        f"{TESTS}299",
    ),
    Symptom(
        "mpi-slots",
        (When((r"not enough slots available in the system",)),),
        "mpirun is asked for more processes than its hosts have slots; a host that is named "
        "without a number has one",
        "give the number of GPUs: slots=8 in the hostfile, or --host h1:8,h2:8",
        "high",
        f"{TESTS}21",
    ),
    Symptom(
        "mpi-without-pmi",
        (When((r"OMPI was not built with SLURM's PMI support",)),),
        "srun starts the processes, but this Open MPI cannot learn from Slurm who the others are",
        "start by mpirun inside the allocation, or by srun --mpi=pmix with an Open MPI built for "
        "it (srun --mpi=list names what Slurm offers)",
        "high",
        "https://github.com/NVIDIA/deepops/issues/1103",
    ),
    Symptom(
        "ssh-login",
        (
            When(
                (
                    r"host=\S+ was not reachable via ssh|ssh exited with exit code 255"
                    r"|Permission denied \(publickey"
                    r"|PasswordAuthentication=no \S+ hostname' returned non-zero",
                ),
                (r"git@",),
            ),
        ),
        "the launcher cannot log in to a host by ssh without a password",
        "put a key on all hosts for that user, the first one too (ssh-copy-id), accept their keys "
        "once, and name a port other than 22 (--ssh_port); or start torchrun on each host",
        "high",
        "https://github.com/deepspeedai/DeepSpeed/issues/4907",
    ),
    Symptom(
        "ray-too-few-gpus",
        (
            When(
                (
                    r"Total available GPUs [\d.]+ is less than total desired GPUs"
                    r"|number of required GPUs exceeds the total number of available GPUs",
                )
            ),
        ),
        "the Ray cluster, or the placement group, has fewer GPUs than the program asks for: a host "
        "has not joined, some are taken, or CUDA_VISIBLE_DEVICES hides them",
        "compare ray status with the sizes asked for (verl: trainer.nnodes and n_gpus_per_node), "
        "and start Ray on each host with its GPUs before the program",
        "medium",
        "https://github.com/verl-project/verl/issues/2515",
    ),
    Symptom(
        "sglang-queue",
        (
            When(
                (r"CustomAllreduce is disabled because this process group spans across nodes",),
                (r"Init torch distributed ends|Load weight begin|[Ee]rror|Traceback|NCCL WARN",),
            ),
        ),
        "the log ends where SGLang joins the hosts by a queue beside NCCL, at an address that it "
        "guesses; on hosts with several interfaces that may be one that the others do not reach",
        "set SGLANG_HOST_IP on each host to its address between the hosts, beside "
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
        "low",
        "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/3",
    ),
    Symptom(
        "rank-count",
        (
            When(
                (
                    r"mismatch in rank count from procs \d+ : \d+"
                    r"|rank \d+ of \d+ ranks has already checked in"
                    rf"|{_TOO_MANY}",
                )
            ),
        ),
        "processes with different numbers of ranks, or with the same rank, meet in one start: two "
        "jobs share an address, or world sizes differ",
        "end what is left of earlier jobs, give each job a port of its own, and see that all "
        "processes have the same WORLD_SIZE and each its own RANK",
        "high",
        f"{TORCH}46248",
    ),
    Symptom(
        "name-unknown",
        (
            When(
                (
                    r"cannot be retrieved \(gai error|gaierror: \[Errno"
                    r"|Temporary failure in name resolution",
                )
            ),
        ),
        "the name of a host has no address where the rank runs",
        "give addresses in place of names (MASTER_ADDR, --rdzv-endpoint), or add the hosts' own "
        "names to /etc/hosts of all of them",
        "medium",
        "https://github.com/nyu-systems/Grendel-GS/issues/9",
    ),
    Symptom(
        "accelerate-refuses",
        (When((r"doesn't support faster communication broadband via P2P or IB",)),),
        "Accelerate refuses to start on these GPUs unless NCCL's P2P and InfiniBand are off",
        "export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1 before the start, or start by accelerate "
        "launch, which sets them",
        "high",
        "https://github.com/QwenLM/Qwen-VL/issues/447",
    ),
    Symptom(
        "ranks-missing",
        (
            When(
                (
                    r"(?:waiting for (?:clients|workers)\.|Timed out after)[^\n]{0,60}\d+/\d+ "
                    r"(?:clients|workers) joined",
                )
            ),
            When(
                (
                    r"Timed out initializing process group in store based barrier on rank: \d+, "
                    r"for key: store_based_barrier_key:1 ",
                ),
                (_TOO_MANY,),
            ),
        ),
        "not all ranks have started, so the others wait in the start",
        "compare WORLD_SIZE, --nnodes and --nproc-per-node with what was started, and look into "
        "the logs of the hosts that are missing",
        "high",
        "https://github.com/pytorch/pytorch/pull/111805",
    ),
    Symptom(
        "slow-data",
        (
            When(
                (
                    r"(?i)(?:running tokenizer on|tokenizing (?:prompts|words)|pre-?processing "
                    r"(?:data|sequences)|(?-i:\bMap)(?: \(num_proc=\d+\))?:)[^\n]{0,60}\b\d\d? ?%"
                    r"|main_process_first"
                    r"|(?:during|while|in) [^\n]{0,24}(?:tokenizing|tokenization|pre-?process|"
                    r"data processing)",
                    rf"{HANGS}|Socket Timeout|(?i:(?:NCCL|distributed) timeout)"
                    r"|Timeout waiting for key",
                ),
                (r"(?i)(?:tokeniz|\bMap\b)[^\n]{0,60}\b100 ?%|'loss'",),
            ),
        ),
        "one rank prepares the data, longer than the time limit, while the others wait for it in a "
        "barrier",
        "prepare the data in a run of its own before (axolotl preprocess, LLaMA-Factory's "
        "tokenized_path), or raise the limit (ddp_timeout, init_process_group(timeout=...))",
        "medium",
        "https://github.com/axolotl-ai-cloud/axolotl/issues/2684",
    ),
    Symptom(
        "rendezvous-short",
        (When((r"RendezvousTimeoutError",)),),
        "fewer hosts than --nnodes says have joined torchrun's rendezvous in time",
        "start torchrun on all hosts with the same --nnodes, --rdzv-id and --rdzv-endpoint (a name "
        "or address that each of them reaches); give slow starts longer by --rdzv-conf "
        "join_timeout=1800",
        "medium",
        "https://github.com/ymcui/Chinese-LLaMA-Alpaca-2/issues/274",
    ),
    Symptom(
        "not-launched",
        (
            When(
                (
                    r"environ(?:ment)? variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|"
                    r"LOCAL_RANK) expected, but not set"
                    r"|KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE)'",
                )
            ),
        ),
        "the program was started alone and not by a launcher, which tells each process its rank",
        "start it by torchrun --nproc-per-node=GPUS program.py (or accelerate launch, deepspeed), "
        "or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
        "high",
        f"{TORCH}39832",
    ),
    Symptom(
        "libuv",
        (When((r"use_libuv was requested but PyTorch was buil[dt] without libuv",)),),
        "torch's store wants libuv since 2.4, and its builds for Windows have none",
        "set USE_LIBUV=0 before the start (torchrun itself may not heed it: start the program "
        "without it), use WSL2, or a build of torch with libuv",
        "high",
        f"{TORCH}139990",
    ),
    Symptom(
        "gloo-device",
        (When((r"makeDeviceForHostname\(\): unsupported gloo device",)),),
        "gloo cannot make its device, which is a fault of torch 2.8 and 2.9 on Windows",
        "use torch 2.7.1 or a build from 2026 on, or set GLOO_SOCKET_IFNAME with MASTER_ADDR and "
        "MASTER_PORT; with one GPU start without torch.distributed",
        "medium",
        f"{TORCH}150381",
    ),
    Symptom(
        "id-not-told",
        (
            When(
                (
                    r"retr(?:ei|ie)ving ncclUniqueId from \[0\][^\n]{0,200}got error"
                    r"|Timeout waiting for key: default_pg",
                )
            ),
        ),
        "ranks wait for rank 0 to tell NCCL's identifier, and it does not: it has failed, found no "
        "network interface, or is late (a barrier before slow preparation of data)",
        "look into rank 0's log first; let all ranks reach the first collective within the timeout "
        "(init_process_group(timeout=...))",
        "medium",
        f"{NCCL}708",
    ),
    Symptom(
        "launchers-apart",
        (
            When(
                (
                    r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network",
                    r"torchrun|torch\.distributed\.(?:run|launch)",
                    r"ntasks-per-node[= ](?:[2-9]|\d\d)\b|srun: error: \S+: tasks \d+[-,]\d",
                ),
            ),
            When(
                (
                    r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network",
                    r"(?:NODE_RANK|node_rank|node-rank)[= ]\$\{?SLURM_PROCID",
                    r"ntasks-per-node[= ](?:[2-9]|\d\d)\b",
                ),
            ),
        ),
        "Slurm starts several tasks on a host and each of them runs torchrun, which starts all "
        "ranks of the host again, so they want the same port",
        "start one task per host (--ntasks-per-node=1) for torchrun, with --node_rank by "
        "SLURM_NODEID; or several tasks that run the program without torchrun",
        "medium",
        "https://github.com/NVIDIA/Megatron-LM/issues/1371",
    ),
    Symptom(
        "port-in-use",
        (
            # NCCL's own service for questions (RAS) does without its port.
            When((r"^(?![^\n]*NCCL WARN)[^\n]*(?:EADDRINUSE|[Aa]ddress already in use)",)),
        ),
        "the port of the rendezvous is taken: by another job, by a process that an earlier one "
        "left, or by a second launcher on the host",
        "choose another one (--master-port, --rdzv-endpoint host:0), end that process, and start "
        "one launcher per host",
        "medium",
        f"{TORCH}73320",
    ),
)

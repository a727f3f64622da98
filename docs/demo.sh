#!/usr/bin/env bash
# make demo: serves a volume from a configuration file, discovers it, writes over iSER,
# verifies over iSER, NVMe/TCP and NVMe/RDMA on RoCE, measures random I/O over iSER, iSCSI,
# NVMe/TCP and NVMe/RDMA, iSER and NVMe/RDMA over RoCE too, and cleans up.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/bin dir=$(mktemp -d) port=${DEMO_PORT:-3260}
say() { printf '\n$ %s\n' "${*//$bin\//}"; "$@"; }
cleanup() { [ -n "${pid-}" ] && kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; rm -rf "$dir"; }
trap cleanup EXIT
# Somebody may already serve on 3260; the demo takes the next free port then.
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done

# RoCE takes UDP port 4791 of an address for itself; all of 127.0.0.0/8 is loopback.
roce=127.$((RANDOM % 200 + 20)).$((RANDOM % 250)).3 from=127.$((RANDOM % 200 + 20)).$((RANDOM % 250)).5

cat > "$dir/demo.yaml" <<Y
portals:
  - listen: 127.0.0.1:$port
  - {listen: "roce://$roce:$port", group: 2}
volumes:
  - {name: disk0, type: file, path: disk0.img, size: 256MiB, create: true}
targets:
  - iqn: iqn.2026-11.softiser:disk0
    luns: [{lun: 0, volume: disk0}]
subsystems:
  - nqn: nqn.2026-11.softiser:disk0
    namespaces: [{nsid: 1, volume: disk0}]
Y
iqn=iqn.2026-11.softiser:disk0 nqn=nqn.2026-11.softiser:disk0
iser=iser://127.0.0.1:$port/$iqn/0 iscsi=iscsi://127.0.0.1:$port/$iqn/0 nvme=nvme+tcp://127.0.0.1:$port/$nqn/1
rdma=nvme+rdma://127.0.0.1:$port/$nqn/1
iserroce=iser+roce://$roce:$port/$iqn/0 nvmeroce=nvme+roce://$roce:$port/$nqn/1

say cat "$dir/demo.yaml"
say "$bin/iser-target" check --config "$dir/demo.yaml" >/dev/null
"$bin/iser-target" serve --config "$dir/demo.yaml" >"$dir/target.log" 2>&1 & pid=$!
for _ in $(seq 1200); do # a minute, on the slowest machine
  (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
  kill -0 "$pid" 2>/dev/null || { cat "$dir/target.log"; exit 1; }
  sleep 0.05
done
say "$bin/iser-initiator" discover "iser://127.0.0.1:$port"
say "$bin/iser-initiator" discover "nvme+tcp://127.0.0.1:$port"
say "$bin/iser-initiator" discover "iser+roce://$roce:$port" --local-address "$from"
say "$bin/iser-initiator" info "$iser"
head -c 16M /dev/urandom > "$dir/in"
say "$bin/iser-initiator" write "$iser" "$dir/in" --flush
say "$bin/iser-initiator" verify "$iser" "$dir/in"
say "$bin/iser-initiator" verify "$nvme" "$dir/in"
say "$bin/iser-initiator" verify "$nvmeroce" "$dir/in" --local-address "$from"
say "$bin/iser-initiator" bench "$iser" --rw=randwrite --bs=4k --iodepth=32 --size=64m --verify=crc32c
for url in "$iser" "$iscsi" "$nvme" "$rdma"; do
  say "$bin/iser-initiator" bench "$url" --name "${url%%:*}" --rw=randread --bs=4k --iodepth=32 --runtime=2 --time-based
done
for url in "$iserroce" "$nvmeroce"; do
  say "$bin/iser-initiator" bench "$url" --local-address "$from" --name "${url%%:*}" --rw=randread --bs=4k --iodepth=32 --runtime=2 --time-based
done
kill -TERM "$pid"; wait "$pid"; pid=
printf '\ndemo: served, discovered, written, verified and measured over iSER, iSCSI, NVMe/TCP and NVMe/RDMA, and over RoCE; all cleaned up\n'

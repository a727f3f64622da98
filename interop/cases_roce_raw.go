package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"softiser/interop/internal/frames"
	"softiser/interop/internal/tap"
)

// rawCases are cases of RoCE once more over raw frames: the harness is the wire between our
// sockets' tap and the guest, and compares the ICRC of every packet of both with its own.
func rawCases(of []Case, names ...string) []Case {
	var cases []Case
	for _, name := range names {
		i := slices.IndexFunc(of, func(c Case) bool { return c.Name == name })
		c := of[i]
		c.Name, c.Short = "roce/raw-"+strings.ReplaceAll(strings.TrimPrefix(c.Name, "roce/"), "/", "-"), false
		c.Expect += "; every packet as it has to be, on the wire"
		c.Run = overFrames(frames.Faults{}, of[i].Run)
		cases = append(cases, c)
	}
	return cases
}

// overFrames runs a case over a wire where things happen to packets, by a seed.
func overFrames(f frames.Faults, run func(context.Context, *Env) (string, error)) func(context.Context, *Env) (string, error) {
	const seed = 17
	return func(ctx context.Context, e *Env) (string, error) {
		e.raw = true
		if _, err := e.w.net.get(); err == nil { // else run says so
			if e.w.guest != nil && e.w.wire == nil {
				e.w.drop()
			}
			if _, err := e.Guest(); err != nil {
				return "", err
			}
			e.w.wire.Fault(f, seed)
			defer func() {
				if e.w.wire != nil {
					e.w.wire.Fault(frames.Faults{}, seed)
				}
			}()
		}
		seen, err := run(ctx, e)
		if err != nil || e.w.wire == nil {
			return seen, err
		}
		ours, guest, err := e.w.wire.Counts()
		switch {
		case err != nil:
			return "", err
		case ours.Seen+guest.Seen == 0:
			return "", errors.New("no packet of RoCE has passed")
		}
		if f != (frames.Faults{}) {
			n := func(a, b int) int { return a + b }
			if n(ours.Lost, guest.Lost) == 0 || n(ours.Twice, guest.Twice) == 0 || n(ours.Late, guest.Late) == 0 || n(ours.Damaged, guest.Damaged) == 0 {
				return "", errors.New("nothing has happened to the packets")
			}
			seen += fmt.Sprintf("; %d lost, %d twice, %d late, %d damaged", n(ours.Lost, guest.Lost), n(ours.Twice, guest.Twice), n(ours.Late, guest.Late), n(ours.Damaged, guest.Damaged))
		}
		return fmt.Sprintf("%s; %d packets to it, %d from it", seen, ours.Seen, guest.Seen), nil
	}
}

// roceRawCases are the ways of use, and what may happen on the way to each direction's packets.
var roceRawCases = func() []Case {
	cases := rawCases(concat(roceRpingCases, roceToolCases, rocePerftestCases(), roceDatagramCases, roceStorageCases),
		"roce/rping-kernel-client-v4", "roce/rping-kernel-client-v6", "roce/rping-kernel-client-mtu-4096",
		"roce/rping-kernel-server-v4", "roce/rping-kernel-server-v6", "roce/rping-kernel-server-mtu-4096",
		"roce/perftest-write-bw-kernel-client", "roce/perftest-write-bw-kernel-server",
		"roce/perftest-read-bw-kernel-client", "roce/perftest-read-bw-kernel-server",
		"roce/perftest-send-bw-kernel-client", "roce/perftest-send-bw-kernel-server",
		"roce/perftest-atomic-bw-kernel-client", "roce/uc-pingpong-kernel-client", "roce/udaddy-kernel-client", "roce/mckey-kernel-receiver",
		"roce-iser/fio-verify", "roce-nvme/fio-verify", "roce-lio/verify")
	f := frames.Faults{Lost: 0.01, Twice: 0.01, Late: 0.01, Damaged: 0.01}
	what := "1 % lost, 1 % twice, 1 % late, 1 % damaged, each way, by a seed: "
	return append(cases,
		Case{Name: "roce/ecn", Expect: "a way that marks 5 % of what may be marked: notices of congestion, obeyed; hardly anything sent again", Run: roceECN},
		Case{Name: "roce/raw-rping-faults", Expect: what + "every ping verified, in both roles", Run: overFrames(f, func(_ context.Context, e *Env) (string, error) {
			if err := e.RoCE(tap.MTU); err != nil {
				return "", err
			}
			return "verified", roceBothWays(e, []string{"100", "16384"})
		})},
		Case{Name: "roce/raw-roce-iser-faults", Expect: what + "fio reads back what it wrote", Run: overFrames(f,
			roceSession("", "", "", ramTarget, "d=$(attach iser @PORT @IQN) || die attach: $d\nverify $d 4 1 8 || die fio\ndetach @IQN || die detach; echo verified").Run)})
}()

// roceECN has two of our ends in a guest, each in a network of its own, and a way between that
// marks 5 % of the packets which may be marked, and loses so many of the others: the target
// sends the data of reads, and all that it loses are answers and what it sends before it knows
// that its peer tells of marks.
func roceECN(_ context.Context, e *Env) (string, error) {
	return e.In("%s", `modprobe -a veth sch_netem || die modules
for n in a b; do ip netns add $n && ip -n $n link set lo up; done
ip link add va netns a type veth peer name vb netns b
ip -n a addr add 10.8.0.1/24 dev va; ip -n b addr add 10.8.0.2/24 dev vb; ip -n a link set va up; ip -n b link set vb up
cat >/tmp/ecn.yaml <<X
portals: [{listen: "roce://10.8.0.1:3260"}]
`+ramTarget+`admin: {socket: /tmp/ecn.sock}
X
ip netns exec a /host/iser-target serve --config /tmp/ecn.yaml >/tmp/ecn.log 2>&1 & pid=$!
trap 'kill $pid; wait $pid; ip netns del a; ip netns del b' EXIT
for n in $(seq 200); do [ -S /tmp/ecn.sock ] && break; sleep 0.1; done
tc -n a qdisc add dev va root netem limit 5000 loss 5% ecn || die netem
ip netns exec b /host/iser-initiator bench iser+roce://10.8.0.1:3260/`+ramIQN+`/0 --rw=read --bs=64k --iodepth=16 --size=64m >/tmp/bench.log 2>&1 || { cat /tmp/bench.log /tmp/ecn.log; die bench; }
/host/iser-target status --socket /tmp/ecn.sock --json | jq -e '.roce[0].counters |
  if .rp_cnp_handled < 5 or .repeated_pkts > .sent_pkts / 100 then error(tostring) else "\(.sent_pkts) packets sent, \(.repeated_pkts) again, \(.rp_cnp_handled + .rp_cnp_ignored) notices" end' -r || die counters`)
}

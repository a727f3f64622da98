// Package lossy gives the tests of the machines a network that loses, doubles, delays and
// damages packets, by a seed, in a time of its own.
//
// # RoCE under loss is tested in a time of its own (ADR 181)
//
// Context. Loss, duplicates, reordering and damage must change nothing but the speed. Real sockets on
// a busy machine give other figures each time.
//
// Decision. The two machines of rc have no clock, so that a network of a heap of packets and a seed is
// enough (package lossy). Packets go with their real ICRC, which is checked on arrival; what was
// damaged is dropped there. TestLossyNetwork and TestFaults run all operations of reliable connections
// in both directions with each fault by itself and all together, at 0.01, 1 and 5 % (20 % for the
// mixture), and compare all bytes, completions and their order. TestLossCurve measures throughput over
// a way of 2.5 GB/s and 200 µs in that time: make bench-loss writes all points to
// benchmarks/results/roce-loss-*.csv and draws them (benchmarks/img/roce-loss.svg).
//
// Consequences. GB/s of 512 KiB Writes with a window of 128 packets: 1.49 without loss, 0.84 with 0.1
// %, 0.27 with 1 %, 0.06 with 5 %; no time-out at any of them, as late answers are asked for (ADR
// 180). Go-back-N sends what was lost and all that followed; without selective repetition, which the
// protocol has no words for, the window is what can be chosen.
//
// The same network carries UC and UD (TestFaults of both, at 0.01, 0.1, 1 and 5 %): whatever it does,
// a message arrives as it was sent or not at all; with loss and damage alone exactly those arrive that
// have lost no packet, in order, and datagrams arrive as often as the network brings them. Their curves are
// of what arrives whole: GB/s of 2.44 at 0.1, 1 and 5 % lost are 2.18, 0.53 and 0 for UC's messages of
// 512 KiB, 2.40, 1.97 and 1.11 for those of 64 KiB, 2.40, 2.37 and 2.28 for datagrams of 4 KiB.
package lossy

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
)

// Faults are the shares of packets to which something happens.
type Faults struct{ Lost, Twice, Late, Damaged float64 }

// All is every fault as often.
func All(share float64) Faults { return Faults{share, share, share, share} }

// Each is one kind of fault by itself, by its name, and all of them together.
var Each = map[string]func(share float64) Faults{
	"lost":    func(s float64) Faults { return Faults{Lost: s} },
	"twice":   func(s float64) Faults { return Faults{Twice: s} },
	"late":    func(s float64) Faults { return Faults{Late: s} },
	"damaged": func(s float64) Faults { return Faults{Damaged: s} },
	"all":     All,
}

// Delay is how long a packet is on its way; one that is late takes up to Late longer.
const (
	Delay = 100 * time.Microsecond
	Late  = 2500 * time.Microsecond
)

// Network is between two ends, 0 and 1.
type Network struct {
	Rand    *rand.Rand // also for what a test decides by the same seed
	Faults  Faults
	Now     time.Duration
	Pace    float64 // bytes per second of each direction; 0: no bound
	Damaged int     // packets dropped for their ICRC

	t     testing.TB
	free  [2]time.Duration // when a direction has sent what it was given
	flows [2]*packet.Flow  // of the packets to each end
	sent  int
	queue flights
}

// New makes one.
func New(t testing.TB, seed uint64, f Faults) *Network {
	n := &Network{t: t, Rand: rand.New(rand.NewPCG(seed, 1)), Faults: f}
	for i := range n.flows {
		// Over IPv6 the ICRC lets nothing through that was damaged.
		n.flows[i] = packet.NewFlow(netip.MustParseAddrPort("[fe80::1]:50000"), netip.MustParseAddrPort("[fe80::2]:4791"))
	}
	return n
}

// flight is a packet on its way.
type flight struct {
	at time.Duration
	n  int // keeps the order of those with one time
	to int
	b  []byte
}

// flights is a heap, the next to arrive first.
type flights []flight

func (q flights) Len() int { return len(q) }
func (q flights) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q flights) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *flights) Push(x any)   { *q = append(*q, x.(flight)) }
func (q *flights) Pop() any {
	l := len(*q) - 1
	f := (*q)[l]
	*q = (*q)[:l]
	return f
}

// uncovered is the byte of a packet that the ICRC does not cover: FECN, BECN and reserved
// bits, which mean nothing here.
const uncovered = 4

// Send puts a packet onto the network, and releases it. It says how often the packet will
// arrive whole: 0, 1 or 2 times.
func (n *Network) Send(to int, o *message.Outgoing) (whole int) {
	b := packet.Append(nil, &o.Packet, o.N)
	for _, p := range o.Payload {
		b = append(b, p...)
	}
	b = n.flows[to].Begin(b, o.Packet.Op.Len(o.N), 0).AppendTrailer(b, o.N)
	o.Release()
	copies := 1
	if n.Rand.Float64() < n.Faults.Lost {
		copies = 0
	} else if n.Rand.Float64() < n.Faults.Twice {
		copies = 2
	}
	whole = copies
	if n.Rand.Float64() < n.Faults.Damaged {
		at := n.Rand.IntN(len(b))
		b[at] ^= 1 << n.Rand.IntN(8)
		if at != uncovered {
			whole = 0
		}
	}
	at := n.Now
	if n.Pace > 0 {
		n.free[to] = max(n.free[to], n.Now) + time.Duration(float64(len(b)+48)/n.Pace*float64(time.Second))
		at = n.free[to]
	}
	for range copies {
		delay := Delay
		if n.Rand.Float64() < n.Faults.Late {
			delay += time.Duration(n.Rand.Int64N(int64(Late)))
		}
		n.sent++
		heap.Push(&n.queue, flight{at + delay, n.sent, to, b})
	}
	return whole
}

// InFlight is how many packets are on their way.
func (n *Network) InFlight() int { return len(n.queue) }

// Next is when the next packet arrives; false when there is none.
func (n *Network) Next() (at time.Duration, ok bool) {
	if len(n.queue) == 0 {
		return 0, false
	}
	return n.queue[0].at, true
}

// Take lets time pass until the next packet arrives; false if it was damaged. There is one.
func (n *Network) Take() (to int, p packet.Packet, whole bool) {
	f := heap.Pop(&n.queue).(flight)
	n.Now = max(n.Now, f.at)
	if _, ok := n.flows[f.to].Check(f.b, 0); !ok {
		n.Damaged++
		return f.to, p, false
	}
	p, err := packet.Parse(f.b)
	if err != nil {
		n.t.Fatal(err)
	}
	return f.to, p, true
}

package rc

import (
	"sync"
	"sync/atomic"
	"time"
)

// Path bounds what several connections have in flight over what they share: the way to one
// peer, whose socket can hold so much, or the way to a socket of this side, for the answers
// to READs. Whoever has less than an equal share may always send, others as long as there is
// room: one connection alone has all of it, and gives way as soon as another wants its share.
//
// Neither rxe nor a plain network says anything before packets are lost. So the bound of a
// way to a peer doubles with each round trip until the first loss, halves with a loss, once
// per round trip, and grows by a packet per round trip after that, but only while round trips
// are short: what waits somewhere for longer than queueing does not get there any sooner. A
// notice of congestion (CNP) halves what is in flight, as often as losses may.
//
// All connections of a Path must have one clock.
type Path struct {
	unit     int64 // bytes that a packet counts for
	floor    int64
	ceiling  int64
	adaptive bool

	limit  atomic.Int64 // bytes
	used   atomic.Int64
	active atomic.Int32 // connections that have something in flight

	mu      sync.Mutex // guards what follows; a leaf
	steady  bool       // a loss has ended the doubling
	cut     time.Duration
	srtt    time.Duration // smoothed; 0: nothing measured yet
	least   time.Duration // shortest round trip
	credit  int64         // bytes answered since limit last grew
	losses  uint64
	notices uint64
	delayed uint64
}

// Bounds of a way to a peer. A socket with an unprivileged buffer of Linux's default holds
// 45 packets of 4 KiB that come in few messages (rmem_default), one of 8 MiB 4020.
const (
	firstFlight = 256 << 10
	leastFlight = 16 << 10
	mostFlight  = 4 << 20
	queueing    = 2 * time.Millisecond // above the shortest round trip: a queue that does not get longer
)

// NewPath makes the bound of the way to a peer, for packets of a path MTU.
func NewPath(mtu int) *Path {
	p := &Path{unit: int64(mtu), floor: max(leastFlight, minWindow*int64(mtu)), ceiling: mostFlight, adaptive: true}
	p.limit.Store(firstFlight)
	return p
}

// NewIntake makes the bound of what may be on its way to a socket of this side, bytes of
// payload.
func NewIntake(mtu, bytes int) *Path {
	p := &Path{unit: int64(mtu), floor: int64(bytes), ceiling: int64(bytes)}
	p.limit.Store(int64(bytes))
	return p
}

// PathStats is what an operator can read of a Path.
type PathStats struct {
	Limit       int64         // bytes that may be in flight
	InFlight    int64         // bytes, of all connections
	Connections int           // that have something in flight
	RTT, MinRTT time.Duration // smoothed, and the shortest; 0: not measured
	Rate        uint64        // bytes per second that Limit comes to: Limit each RTT
	Losses      uint64        // halvings
	Congested   uint64        // … because routers have marked packets
	Delayed     uint64        // round trips of more than queueing, which kept Limit as it was
}

// Stats is a snapshot.
func (p *Path) Stats() PathStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PathStats{Limit: p.limit.Load(), InFlight: p.used.Load(), Connections: int(p.active.Load()), RTT: p.srtt, MinRTT: p.least, Losses: p.losses, Congested: p.notices, Delayed: p.delayed}
	if p.srtt > 0 {
		s.Rate = uint64(float64(s.Limit) / p.srtt.Seconds())
	}
	return s
}

// allows says whether a connection that has own packets in flight may send one more.
func (p *Path) allows(own uint64) bool {
	limit := p.limit.Load()
	return p.used.Load() < limit || int64(own)*p.unit < limit/int64(max(1, p.active.Load()))
}

// moved notes that a connection has other many packets in flight than before.
func (p *Path) moved(before, now uint64) {
	if before == now {
		return
	}
	p.used.Add((int64(now) - int64(before)) * p.unit)
	switch {
	case before == 0:
		p.active.Add(1)
	case now == 0:
		p.active.Add(-1)
	}
}

// answered notes that so many packets have arrived at the peer, and what a round trip took;
// 0: that was not measured.
func (p *Path) answered(packets uint64, rtt time.Duration) {
	if !p.adaptive {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if rtt > 0 {
		p.srtt = smooth(p.srtt, rtt)
		if p.least == 0 || rtt < p.least {
			p.least = rtt
		}
		if rtt > p.least+queueing {
			p.delayed++
		}
	}
	limit := p.limit.Load()
	// What did not use the bound says nothing about a larger one.
	if p.srtt > p.least+queueing || 2*p.used.Load() < limit {
		return
	}
	if n := int64(packets) * p.unit; !p.steady {
		limit += n
	} else if p.credit += n; p.credit >= limit {
		p.credit, limit = 0, limit+p.unit
	}
	p.limit.Store(min(limit, p.ceiling))
}

// lost notes that packets were lost.
func (p *Path) lost(now time.Duration) {
	if !p.adaptive {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cutLocked(now, p.limit.Load()/2) {
		p.losses++
	}
}

// congested notes that packets were marked on their way, and reports whether that is news.
func (p *Path) congested(now time.Duration) bool {
	if !p.adaptive {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	news := p.cutLocked(now, min(p.limit.Load(), p.used.Load())/2)
	if news {
		p.notices++
	}
	return news
}

// cutLocked takes the bound down; false if it was only a round trip ago: this is about what
// was in flight then.
func (p *Path) cutLocked(now time.Duration, limit int64) bool {
	if p.losses+p.notices > 0 && now-p.cut < p.srtt {
		return false
	}
	p.cut, p.steady, p.credit = now, true, 0
	p.limit.Store(max(p.floor, limit))
	return true
}

// smooth is the mean of round trips as TCP has it (RFC 6298 §2.3).
func smooth(mean, sample time.Duration) time.Duration {
	if mean == 0 {
		return sample
	}
	return mean + (sample-mean)/8
}

package rc

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"softiser/rdma/internal/roce/packet"
)

// linuxAsking does what the requester and the completer of rxe in Linux 6.1 do (rxe_req.c,
// rxe_comp.c), as far as the order of packets matters. Where its completer would end the
// connection, or complete a READ without its data, there is a fault.
type linuxAsking struct {
	jobs        []*linuxJob
	key         uint32
	now         time.Duration
	head, index int        // of the oldest request, of the next one to send
	psn, comp   packet.PSN // req.psn, comp.psn
	op, compOp  packet.Opcode
	reads       int // that may still be sent
	started     bool
	timedOut    bool
	rnr         bool
	retryAt     time.Duration // when the timers run out; 0: they do not run
	rnrAt       time.Duration
	oops        string
}

type linuxJob struct {
	job
	state       int
	first, last packet.PSN
	left        int // bytes
	va          int
	counted     bool // it is one of reads
}

// States of a request.
const (
	linuxPosted = iota
	linuxProcessing
	linuxPending
)

const (
	linuxNoOp    = packet.Opcode(0xff)
	linuxMTU     = 256
	linuxTimeout = 2147 * time.Millisecond
	linuxAhead   = 128 // RXE_MAX_UNACKED_PSNS
)

func newLinuxAsking(_ testing.TB, jobs []job, key uint32) asking {
	l := &linuxAsking{key: key, psn: eachPSN, comp: eachPSN, op: linuxNoOp, compOp: linuxNoOp, reads: 2}
	for _, j := range jobs {
		l.jobs = append(l.jobs, &linuxJob{job: j, left: len(j.data), va: j.at})
	}
	return l
}

func (l *linuxAsking) done() int     { return l.head }
func (l *linuxAsking) fault() string { return l.oops }

func (j *linuxJob) answered() bool { return j.op == 'r' || j.op == 'a' }

// opcode is next_opcode.
func (l *linuxAsking) opcode(j *linuxJob) packet.Opcode {
	var ops [4]packet.Opcode // first, middle, last, only
	switch j.op {
	case 'r':
		return packet.ReadRequest
	case 'a':
		return packet.FetchAdd
	case 's':
		ops = [4]packet.Opcode{packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly}
	case 'w':
		ops = [4]packet.Opcode{packet.WriteFirst, packet.WriteMiddle, packet.WriteLast, packet.WriteOnly}
	case 'i':
		ops = [4]packet.Opcode{packet.WriteFirst, packet.WriteMiddle, packet.WriteLastImm, packet.WriteOnlyImm}
	}
	switch begun, fits := l.op == ops[0] || l.op == ops[1], j.left <= linuxMTU; {
	case begun && fits:
		return ops[2]
	case begun:
		return ops[1]
	case fits:
		return ops[3]
	}
	return ops[0]
}

// retry is req_retry.
func (l *linuxAsking) retry() {
	l.index, l.psn, l.op = l.head, l.comp, linuxNoOp
	for i, j := range l.jobs[l.head:] {
		if j.state == linuxPosted {
			break
		}
		j.va = j.at
		if i > 0 || j.op != 'r' {
			j.left = len(j.data)
		}
		switch {
		case i > 0:
		case j.op == 'r':
			j.va += (len(j.data) - j.left) / linuxMTU * linuxMTU
		case j.op != 'a':
			for range l.comp.Sub(j.first) {
				l.op = l.opcode(j)
				j.left -= min(j.left, linuxMTU)
			}
		}
		j.state = linuxPosted
	}
}

func (l *linuxAsking) requests(now time.Duration) (ps []packet.Packet) {
	l.now = now
	for l.oops == "" && l.index < len(l.jobs) && l.psn.Sub(l.comp.Add(linuxAhead)) <= 0 {
		j := l.jobs[l.index]
		if j.answered() && !j.counted {
			if l.reads == 0 {
				break
			}
			l.reads--
			j.counted = true
		}
		ps = append(ps, l.request(j))
		if l.retryAt == 0 {
			l.retryAt = now + linuxTimeout
		}
	}
	return ps
}

// request is the next packet of a request.
func (l *linuxAsking) request(j *linuxJob) packet.Packet {
	op := l.opcode(j)
	t := op.Traits()
	p := packet.Packet{BTH: packet.BTH{Op: op, PSN: l.psn, AckReq: t&packet.Last != 0}}
	p.RETH = packet.RETH{VA: uint64(j.va), RKey: l.key, Len: uint32(j.left)}
	p.AtomicETH = packet.AtomicETH{RKey: l.key, SwapOrAdd: 1}
	packets := max(1, (j.left+linuxMTU-1)/linuxMTU)
	if !j.answered() {
		off := len(j.data) - j.left
		p.Payload = j.data[off : off+min(j.left, linuxMTU)]
		j.left -= len(p.Payload)
	}
	if t&packet.First != 0 {
		j.first, j.last = l.psn, l.psn.Add(packets-1)
	}
	l.psn = l.psn.Add(1)
	if j.op == 'r' {
		l.psn = j.last.Add(1)
	}
	l.op, j.state = op, linuxProcessing
	if t&packet.Last != 0 {
		j.state = linuxPending
		l.index++
	}
	return p
}

func (l *linuxAsking) deadline() (time.Duration, bool) {
	switch {
	case l.rnrAt != 0 && (l.retryAt == 0 || l.rnrAt < l.retryAt):
		return l.rnrAt, true
	case l.head == len(l.jobs): // what is left of the timer changes nothing
		return 0, false
	}
	return l.retryAt, l.retryAt != 0
}

func (l *linuxAsking) tick(now time.Duration) {
	if l.now = now; now == l.rnrAt {
		l.rnrAt, l.rnr = 0, false
		l.retry()
		return
	}
	l.retryAt, l.timedOut = 0, true
	l.idle()
	l.timedOut = false
}

// idle is the completer without a packet.
func (l *linuxAsking) idle() {
	switch {
	case l.timedOut && l.head < len(l.jobs):
		l.again(l.jobs[l.head])
	case l.psn.Sub(l.comp) > 0:
		l.retryAt = l.now + linuxTimeout
	}
}

// again is COMPST_ERROR_RETRY. A number of 7 retries means for ever.
func (l *linuxAsking) again(j *linuxJob) {
	if j.state == linuxPosted || l.started && !l.timedOut || l.psn.Sub(l.comp) <= 0 {
		return
	}
	l.started = true
	if !l.rnr {
		l.retry()
	}
}

func (l *linuxAsking) answer(p *packet.Packet, now time.Duration) {
	l.now = now
	l.complete(p)
	l.idle()
}

// complete is rxe_completer with a packet.
func (l *linuxAsking) complete(p *packet.Packet) {
	for l.head < len(l.jobs) && l.jobs[l.head].state != linuxPosted {
		j := l.jobs[l.head]
		if p.PSN.Sub(j.last) <= 0 {
			l.check(p, j)
			return
		}
		if j.state != linuxPending {
			return
		}
		if j.answered() {
			l.again(j)
			return
		}
		l.started = false
		if j.last.Sub(l.comp) >= 0 {
			l.comp, l.compOp = j.last.Add(1), linuxNoOp
		}
		l.over(j)
	}
}

// check is check_psn and what follows it, for a packet not behind the request.
func (l *linuxAsking) check(p *packet.Packet, j *linuxJob) {
	switch d := p.PSN.Sub(l.comp); {
	case d < 0 && p.PSN == j.last:
		l.acked(p, j)
	case d < 0, d > 0 && j.answered():
	case !l.inOrder(p, j):
		l.oops = fmt.Sprintf("%v with PSN %#06x is out of its order", p.Op, uint32(p.PSN))
	default:
		l.take(p, j)
	}
}

// inOrder is the first half of check_ack.
func (l *linuxAsking) inOrder(p *packet.Packet, j *linuxJob) bool {
	if l.compOp == linuxNoOp {
		return p.Op.Traits()&packet.First != 0
	}
	return p.Op == packet.ReadResponseMid || p.Op == packet.ReadResponseLast || p.Op == packet.ReadResponseFirst && p.PSN == j.first ||
		p.Op == packet.ReadResponseOnly && j.first == j.last
}

// take is the second half of check_ack, and what follows it.
func (l *linuxAsking) take(p *packet.Packet, j *linuxJob) {
	switch t, s := p.Op.Traits(), p.AETH.Syndrome; {
	case t&packet.Read != 0 && (j.op != 'r' || len(p.Payload) > j.left), t&packet.Atomic != 0 && j.op != 'a':
		l.oops = fmt.Sprintf("%v with %d bytes for a request %c of %d", p.Op, len(p.Payload), j.op, j.left)
	case t&packet.Read != 0:
		l.started = false
		copy(j.data[len(j.data)-j.left:], p.Payload)
		if j.left -= len(p.Payload); j.left == 0 && t&packet.Last != 0 {
			l.acked(p, j)
			return
		}
		l.update(p)
	case t&packet.Atomic != 0:
		l.started, j.left = false, 0
		binary.NativeEndian.PutUint64(j.data, p.Original)
		l.acked(p, j)
	case s.IsACK():
		l.started = false
		if j.state == linuxPending && j.last == p.PSN {
			l.acked(p, j)
			return
		}
		l.update(p)
	case s.IsRNR():
		l.rnr, l.rnrAt = true, l.now+s.Timer().Duration()
	case s == packet.NAKSequence:
		if p.PSN.Sub(l.comp) > 0 {
			l.comp = p.PSN
		}
		l.again(j)
	default:
		l.oops = fmt.Sprint("a NAK: ", s)
	}
}

// update is COMPST_UPDATE_COMP.
func (l *linuxAsking) update(p *packet.Packet) {
	if l.compOp = p.Op; p.Op.Traits()&packet.Last != 0 {
		l.compOp = linuxNoOp
	}
	if p.PSN.Sub(l.comp) >= 0 {
		l.comp = p.PSN.Add(1)
	}
}

// acked is complete_ack.
func (l *linuxAsking) acked(p *packet.Packet, j *linuxJob) {
	l.over(j)
	if p.PSN.Sub(l.comp) >= 0 {
		l.update(p)
	}
}

// over is do_complete.
func (l *linuxAsking) over(j *linuxJob) {
	if j.counted {
		l.reads++
	}
	if j.answered() && j.left != 0 {
		l.oops = fmt.Sprintf("a request %c completes without %d bytes of its answer", j.op, j.left)
	}
	l.head++
	l.index = max(l.index, l.head)
}

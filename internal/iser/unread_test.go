package iser

import (
	"errors"
	"sync"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/rdma"
)

// answerer answers each ping that comes up.
type answerer struct {
	c     *Conn
	ended chan error
}

func (a *answerer) ControlNotify(p *iscsi.PDU) {
	for p != nil {
		next := p.Unlink()
		var out iscsi.PDU
		q := out.BHS.NewNopOut()
		q.SetITT(iscsi.ReservedTag)
		q.SetTTT(p.BHS.TTT())
		p.Release()
		_ = a.c.SendControl(&out) // fails once the connection is ending
		p = next
	}
}
func (a *answerer) DataCompletionNotify(*iscsi.Transfer) {}
func (a *answerer) ConnectionTerminateNotify(err error)  { a.ended <- err }
func (a *answerer) Sequence() iscsi.Sequence             { return iscsi.Sequence{} }

// deaf takes nothing before it is told to.
type deaf struct {
	listen chan struct{}
	ended  chan error
}

func (d *deaf) ControlNotify(p *iscsi.PDU) {
	<-d.listen
	for p != nil {
		next := p.Unlink()
		p.Release()
		p = next
	}
}
func (d *deaf) DataCompletionNotify(*iscsi.Transfer) {}
func (d *deaf) ConnectionTerminateNotify(err error)  { d.ended <- err }
func (d *deaf) Sequence() iscsi.Sequence             { return iscsi.Sequence{} }

// A target that sends pings and never reads makes our initiator stop reading it; the
// answers that wait are bounded, and all are sent when it reads.
func TestTargetThatNeverReads(t *testing.T) {
	di, dt := device(t), device(t)
	small := ConnConfig{RDMA: rdma.ConnParams{SndBuf: 64 << 10, RcvBuf: 64 << 10}}
	i, g := connect(t, di, dt, small, small)
	p := iscsi.NewNegotiation(iscsi.RoleInitiator, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	p.RDMAExtensions, p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength = true, 8192, 8192
	up, below := &answerer{c: i, ended: make(chan error, 1)}, &deaf{listen: make(chan struct{}), ended: make(chan error, 1)}
	for _, c := range []*Conn{i, g} {
		c.NoticeKeyValues(&p)
		if err := c.Enable(); err != nil {
			t.Fatal(err)
		}
	}
	i.Start(up)
	g.Start(below)
	listen := sync.OnceFunc(func() { close(below.listen) })
	defer func() {
		listen()
		i.Terminate(errors.New("the test is over"))
		<-up.ended
		<-below.ended
	}()
	var first iscsi.PDU // the side that has accepted may not begin (RFC 5044 §7.1.3)
	first.BHS.NewNopOut().SetTTT(iscsi.ReservedTag)
	if err := i.SendControl(&first); err != nil {
		t.Fatal(err)
	}
	i.Push()
	flood := func() {
		// A target of ours that has too much to say itself would not read either.
		for g.Backlog().Answers < 16<<10 {
			var ping iscsi.PDU
			q := ping.BHS.NewNopIn()
			q.SetITT(iscsi.ReservedTag)
			q.SetTTT(1)
			if err := g.SendControl(&ping); err != nil {
				t.Fatal(err)
			}
		}
		g.Push()
	}
	await.True(t, "answers wait", func() bool { flood(); return i.Backlog().Answers > 16<<10 })
	// A slow machine makes the test see less of the flood, not fail.
	for range 200 {
		time.Sleep(time.Millisecond) // time in which what is bounded could grow
		flood()
		if n := i.Backlog().Answers; n > 1<<20 {
			t.Fatalf("%d bytes of answers wait for a target that does not read", n)
		}
	}
	if n := di.ReceivesOut(); n != 0 {
		t.Errorf("%d receive buffers, which all connections share, are kept for it", n)
	}
	listen()
	await.True(t, "the answers have been sent", func() bool { return i.Backlog().Answers == 0 && !g.Backlog().Waiting })
}

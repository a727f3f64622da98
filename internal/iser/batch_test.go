package iser

import (
	"slices"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/rdma"
)

// gathering keeps the lists that come up.
type gathering struct {
	*datamovertest.Recorder
	calls [][]*iscsi.PDU
}

func (g *gathering) ControlNotify(p *iscsi.PDU) {
	var list []*iscsi.PDU
	for ; p != nil; p = p.Unlink() {
		list = append(list, p)
	}
	g.calls = append(g.calls, list)
}

// TestBatch: messages that have come together go up in one call, in their order, as soon as none of them can
// change what the next one means. Of their buffers only those are held that somebody may need later.
func TestBatch(t *testing.T) {
	d := device(t)
	c, err := d.newConn(iscsi.RoleTarget, ConnConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.discard()
	up := &gathering{Recorder: datamovertest.NewRecorder()}
	c.Start(up)
	var wcs []rdma.WC
	for id, data := range []string{"", "ping", "", ""} {
		var p iscsi.PDU
		if p.BHS.NewSCSICommand(); data != "" || id == 3 {
			p.BHS.NewNopOut()
		}
		p.BHS.SetITT(uint32(id))
		p.BHS.SetDataLen(len(data))
		b := c.link.Received(&rdma.WC{ID: uint64(id)})
		msg := append(append(new(header).append(b.Msg(0)), p.BHS[:]...), data...)
		wcs = append(wcs, rdma.WC{ID: uint64(id), ByteLen: uint32(len(msg))})
	}
	if n := c.received(wcs, 1); n != 1 || len(up.calls) != 1 || len(up.calls[0]) != 1 {
		t.Errorf("during the login: %d of %d taken, %v", n, len(wcs), up.calls)
	}
	c.mu.Lock()
	c.setState(iscsi.ConnFull)
	c.mu.Unlock()
	up.calls = nil
	if n := c.received(wcs, 2); n != len(wcs) || len(up.calls) != 1 || len(up.calls[0]) != len(wcs) {
		t.Fatalf("%d of %d taken, %v", n, len(wcs), up.calls)
	}
	list := up.calls[0]
	if !slices.IsSortedFunc(list, func(a, b *iscsi.PDU) int { return int(a.BHS.ITT()) - int(b.BHS.ITT()) }) {
		t.Error("not in their order")
	}
	for i, stays := range []bool{false, true, false, true} {
		if p := list[i]; (p.Recycle != nil) != stays || p.Batch != 2 {
			t.Errorf("PDU %d: stays %v, batch %d", i, p.Recycle != nil, p.Batch)
		}
	}
	if string(list[1].Data) != "ping" || d.ReceivesOut() != 2 {
		t.Errorf("data %q, %d buffers held", list[1].Data, d.ReceivesOut())
	}
	for _, p := range list {
		p.Release()
	}
	if n := d.ReceivesOut(); n != 0 {
		t.Errorf("%d buffers are still held", n)
	}
}

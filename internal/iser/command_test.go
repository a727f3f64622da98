package iser

import (
	"bytes"
	"testing"

	"softiser/internal/iscsi"
)

// A command travels with its AHS and its immediate data behind it, which are counted at
// both ends.
func TestCommandWithEverything(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	ahs := iscsi.AppendExtendedCDB(nil, make([]byte, 32))
	data := bytes.Repeat([]byte{7}, 1000)
	p := iscsi.PDU{AHS: ahs, Bufs: &iscsi.TaskBuffers{Out: [][]byte{data[:10], data[10:]}, Immediate: 1000, Unsolicited: 1000}}
	c := p.BHS.NewSCSICommand()
	c.SetITT(3)
	c.SetWrite(true)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	_, bhs, gotAHS, gotData, err := split(r.recv())
	if err != nil {
		t.Fatal(err)
	}
	if bhs.ITT() != 3 || !bytes.Equal(gotAHS, ahs) || !bytes.Equal(gotData, data) {
		t.Errorf("% x with %d bytes of AHS, %d of data", *bhs, len(gotAHS), len(gotData))
	}
	if n := r.c.Stats().PayloadOut; n != 1000 {
		t.Errorf("the initiator counts %d bytes", n)
	}

	// One without data to write travels with its AHS too, up to the longest.
	p = iscsi.PDU{AHS: make([]byte, iscsi.MaxAHSLen), Bufs: &iscsi.TaskBuffers{In: [][]byte{data}}}
	p.BHS.NewSCSICommand().SetITT(4)
	p.AHS[0], p.AHS[iscsi.MaxAHSLen-1] = 1, 2
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	if _, _, gotAHS, gotData, err = split(r.recv()); err != nil || !bytes.Equal(gotAHS, p.AHS) || len(gotData) != 0 {
		t.Errorf("%v: %d bytes of AHS, %d of data", err, len(gotAHS), len(gotData))
	}

	g := newPeer(t, iscsi.RoleTarget, nil)
	var b iscsi.BHS
	b.NewSCSICommand().SetITT(3)
	g.send(control(header{}, &b, data))
	q := g.up.PDU(t, "command")
	if !bytes.Equal(q.Data, data) {
		t.Errorf("%d bytes arrived", len(q.Data))
	}
	q.Release()
	if n := g.c.Stats().PayloadIn; n != 1000 {
		t.Errorf("the target counts %d bytes", n)
	}
}

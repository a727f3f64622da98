package iscsitcp

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/faultmap"
	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
)

// half sends a PDU with n bytes of data at its end but for the second half of them, and waits
// until its header has been handled.
func (r *peer) half(f []byte, n int) (rest []byte) {
	r.t.Helper()
	cut, before := len(f)-n/2, r.c.Stats().PDUsIn
	r.send(f[:cut])
	await.True(r.t, "the header has come", func() bool { return r.c.Stats().PDUsIn > before })
	return f[cut:]
}

// TestAbortWithinAPDU: when the memory is taken away in the middle of a PDU the rest of it
// goes nowhere, not to what uses the same memory, tag or place in the tables next either, and
// the stream goes on behind it.
func TestAbortWithinAPDU(t *testing.T) {
	const n = 4096
	ones, twos := bytes.Repeat([]byte{1}, n), bytes.Repeat([]byte{2}, n)
	t.Run("target", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleTarget, nil)
		mem, next := make([]byte, n), make([]byte, n)
		x, q := r.getData(n, 0, mem)
		rest := r.half(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, ones), n)
		r.c.AbortTransfer(x)
		clear(mem)
		y, q := r.getData(n, 0, next)
		r.send(rest)
		r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, twos))
		if got := r.up.Completion(t); got != x || x.Err != iscsi.ErrAborted {
			t.Errorf("%v", got.Err)
		}
		if got := r.up.Completion(t); got != y || y.Err != nil || !bytes.Equal(next, twos) {
			t.Errorf("the next transfer: %v", got.Err)
		}
		if !bytes.Equal(mem, make([]byte, n)) {
			t.Error("the memory was written after AbortTransfer")
		}
	})
	t.Run("initiator", func(t *testing.T) {
		r := newPeer(t, iscsi.RoleInitiator, nil)
		mem, next := make([]byte, n), make([]byte, n)
		old := r.command(mem)
		in := func(itt uint32, data []byte) []byte {
			var b iscsi.BHS
			d := b.NewDataIn()
			d.SetITT(itt)
			d.SetFinal(true)
			d.SetHasStatus(true)
			return r.frame(b, nil, data)
		}
		rest := r.half(in(1, ones), n)
		r.c.ReleaseTask(old)
		clear(mem)
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{next}}}
		p.BHS.NewSCSICommand().SetITT(2)
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Push()
		r.recv()
		r.send(rest)
		r.send(in(2, twos))
		for itt := uint32(1); itt <= 2; itt++ { // the status of the first goes up for its StatSN
			q := r.up.PDU(t, "response")
			if q.BHS.ITT() != itt {
				t.Errorf("a response for task %d, want %d", q.BHS.ITT(), itt)
			}
			q.Release()
		}
		if !bytes.Equal(next, twos) || p.Bufs.InLen != n {
			t.Errorf("the next task has %d bytes, and wrong ones", p.Bufs.InLen)
		}
		if !bytes.Equal(mem, make([]byte, n)) {
			t.Error("the memory was written after ReleaseTask")
		}
	})
}

// TestShortReadIntoFaultyMemory: data that were read ahead and cannot be copied to their
// place are lost alone.
func TestShortReadIntoFaultyMemory(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, func(p *iscsi.Params) { p.DataDigest = iscsi.DigestCRC32C })
	for _, bad := range []bool{true, false} {
		mem := make([]byte, 100)
		if bad {
			mem = faultmap.New(t, 4096, 0)[:100]
		}
		r.command(mem)
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(1)
		d.SetFinal(true)
		d.SetHasStatus(true)
		r.send(r.frame(b, nil, filled(100)))
		p := r.up.PDU(t, "response")
		if got := p.BHS.SCSIResponse().Response() == iscsi.ResponseTargetFailure; got != bad {
			t.Errorf("failed %v, want %v", got, bad)
		}
		p.Release()
	}
}

// TestUnreadableData: data that cannot be read end the connection; what was queued before
// them goes out whole.
func TestUnreadableData(t *testing.T) {
	for _, digest := range []iscsi.Digest{iscsi.DigestNone, iscsi.DigestCRC32C} {
		for _, first := range []bool{true, false} {
			r := newPeer(t, iscsi.RoleTarget, func(p *iscsi.Params) { p.DataDigest = digest })
			if !first && digest == iscsi.DigestCRC32C {
				if err := r.c.PutData(transfer(4, filled(100))); err != nil {
					t.Fatal(err)
				}
			}
			x := transfer(5, faultmap.New(t, 4096, 0))
			if err := r.c.PutData(x); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			if !first && digest == iscsi.DigestCRC32C {
				if b, data := r.recv(); b.ITT() != 4 || !bytes.Equal(data, filled(100)) {
					t.Errorf("got %s with %d bytes", b.Opcode(), len(data))
				}
				r.up.Completion(t)
			}
			if err := r.up.End(t); !errors.Is(err, pdustream.ErrSendFault) {
				t.Errorf("digest %v: ended with %v", digest, err)
			}
			if got := r.up.Completion(t); got != x || !errors.Is(x.Err, iscsi.ErrConnectionLost) || !errors.Is(x.Err, pdustream.ErrSendFault) {
				t.Errorf("digest %v: %v", digest, got.Err)
			}
		}
	}
}

// TestR2TComesAgain: what is not sent is asked for again in the time that was set.
func TestR2TComesAgain(t *testing.T) {
	r := newPeerWith(t, iscsi.RoleTarget, Config{SequenceTimeout: time.Millisecond}, level1)
	x, q := r.getData(1024, 0, make([]byte, 1024))
	b, _ := r.recv()
	if b.Opcode() != iscsi.OpR2T || b.R2T().R2TSN() != 1 || b.R2T().Offset() != q.Offset() || b.R2T().Desired() != 1024 {
		t.Errorf("% x", b)
	}
	r.c.AbortTransfer(x)
	r.c.Push()
	r.up.Completion(t)
}

// TestSoundHeaderOfTooMuch: at level 1 lengths are looked at behind the digest of their
// header, and hold all the same.
func TestSoundHeaderOfTooMuch(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, level1)
	var b iscsi.BHS
	b.NewNopOut()
	r.send(r.frame(b, nil, make([]byte, 1028))[:52])
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "1028 bytes; 1024 is the limit") {
		t.Errorf("ended with %v", err)
	}
}

// TestConfigDefaults: what is left out has a value, what is given stays.
func TestConfigDefaults(t *testing.T) {
	m := &bound{}
	given := Config{LoginDataLimit: 100, Linger: 1, SequenceTimeout: 2, Memory: m}
	for _, c := range []struct{ cfg, want Config }{
		{Config{}, Config{LoginDataLimit: 8192, Linger: 2 * time.Second, SequenceTimeout: 3 * time.Second}}, {given, given},
	} {
		t.Run("", func(t *testing.T) {
			r := newPeerWith(t, iscsi.RoleInitiator, c.cfg, level1)
			if r.c.cfg != c.want || r.c.tx.unsent.Memory != c.want.Memory {
				t.Errorf("%+v, want %+v", r.c.cfg, c.want)
			}
			if r.c.Recovery() != nil {
				t.Error("an initiator keeps what it sends")
			}
		})
	}
}

// The connection ends while somebody waits to take memory away that a call was aimed at.
func TestReleaseWaitsForEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{role: iscsi.RoleInitiator, st: iscsi.ConnFull, enabled: true}
		c.cond.L = &c.mu
		b := &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}}
		k := c.tasks.add(1, b)
		k.aimed = true
		go c.ReleaseTask(b)
		synctest.Wait()
		c.mu.Lock()
		k.aimed = false
		c.tasks.purge()
		c.cond.Broadcast()
		c.mu.Unlock()
	})
}

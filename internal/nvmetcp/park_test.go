package nvmetcp_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	. "softiser/internal/nvmetcp"
)

func always() bool { return true }

// still parks the connection, and waits until it stands still.
func (h *host) still() {
	h.t.Helper()
	c := h.disk.C.(*Controller)
	await.True(h.t, "it stands still", func() bool { return c.Stands() && c.Still() })
}

// crossed goes on with a parked connection as another process does. The old one stays as it is
// until the end of the test.
func (h *host) crossed(mem []byte) {
	t := h.t
	t.Helper()
	old := h.disk
	k, nc := handovertest.Crossed(t, old.C.(*Controller).Carry)
	old.Fence()
	t.Cleanup(func() {
		old.C.Terminate(errors.New("end of the test"))
		old.Over()
	})
	c, err := Restore(nc, Config{}, &k)
	if err != nil {
		t.Fatal(err)
	}
	h.disk = queuetest.NewDisk(t, c, mem)
	c.Start(h.disk)
}

// answered reads the response to a command.
func (h *host) answered(cid uint16) {
	h.t.Helper()
	b, _ := h.next()
	if (*CH)(b).Type() != TypeCapsuleResp {
		h.t.Fatalf("%x instead of a response", b)
	}
	if e := (*CapsuleResp)(b).CQE(); e.CID() != cid || !e.Status().OK() {
		h.t.Fatalf("%x, want the answer to %d", b, cid)
	}
}

// TestPark: a parked connection stops between PDUs wherever the stream is cut, and what was
// read and has not begun reaches whoever goes on: the same process, or the next.
func TestPark(t *testing.T) {
	for _, next := range []bool{false, true} {
		for cut, n := 0, 1; cut < 2*n; cut += 3 {
			mem := make([]byte, 1000)
			h, d := start(t, Config{}, ICReq{Digests: DigestHeader | DigestData}, mem)
			data := [][]byte{queuetest.Pattern(100, 3), queuetest.Pattern(100, 4)}
			first := h.command(nvme.OpWrite, 0, data[0], 0)
			n = len(first)
			rest := slices.Concat(first, h.command(nvme.OpWrite, 500, data[1], 0))
			h.write(rest[:cut])
			rest = rest[cut:]
			if !d.C.(*Controller).Park(always) {
				t.Fatal("it cannot be parked")
			}
			if in := cut % n; in >= n-len(data[0])-4 { // what has begun behind its header is read to its end
				h.write(rest[:n-in])
				rest = rest[n-in:]
			}
			h.still()
			if next {
				h.crossed(mem)
			} else {
				d.C.(*Controller).Unpark()
			}
			h.write(rest)
			h.answered(1)
			h.answered(2)
			if !bytes.Equal(mem[:100], data[0]) || !bytes.Equal(mem[500:600], data[1]) {
				t.Fatalf("cut at %d: wrong data", cut)
			}
			h.close(h.disk)
		}
	}
}

// TestParkInData: a connection whose controller has asked for data reads on until it is there,
// keeps the command that comes between, and then stands.
func TestParkInData(t *testing.T) {
	for _, next := range []bool{false, true} {
		for cut, n := -1, 1; cut < n; cut += 7 {
			mem := make([]byte, 1000)
			h, d := start(t, Config{}, ICReq{Digests: DigestHeader | DigestData}, mem)
			c := d.C.(*Controller)
			data := [][]byte{queuetest.Pattern(100, 3), queuetest.Pattern(100, 4)}
			h.write(h.command(nvme.OpWrite, 0, nil, len(data[0])))
			q, _ := h.next()
			sent := h.h2c(h.cid, (*Data)(q).TTAG(), 0, data[0], true)
			n = len(sent)
			stream := slices.Concat(h.command(nvme.OpWrite, 500, data[1], 0), sent)
			at := len(stream) - n + cut
			if cut < 0 {
				at = 0 // nothing of it is there before
			}
			h.write(stream[:at])
			if !c.Park(always) || c.Park(always) {
				t.Fatal("it is parked twice, or not at all")
			}
			if c.Still() {
				t.Fatal("it stands still while data is due")
			}
			h.write(stream[at:])
			h.still()
			h.fence()
			if !bytes.Equal(mem[:100], data[0]) {
				t.Fatalf("cut at %d: wrong data", cut)
			}
			if cut < 0 && !bytes.Equal(mem[500:600], make([]byte, 100)) {
				t.Fatal("a command has begun that came after the connection was parked")
			}
			if next {
				h.crossed(mem)
			} else {
				c.Unpark()
			}
			// The command between has begun before it was parked, and has been answered first, or
			// it begins now.
			got := map[uint16]bool{}
			for range 2 {
				b, _ := h.next()
				if e := (*CapsuleResp)(b).CQE(); (*CH)(b).Type() == TypeCapsuleResp && e.Status().OK() {
					got[e.CID()] = true
				}
			}
			if !got[1] || !got[2] || !bytes.Equal(mem[500:600], data[1]) {
				t.Fatalf("cut at %d: answers %v", cut, got)
			}
			h.close(h.disk)
		}
	}
}

// TestRestoreRefuses: what no process of ours carries is refused.
func TestRestoreRefuses(t *testing.T) {
	good := Carried{Align: 4, MaxH2CData: 1 << 17, InCapsule: 8192, Entries: 2, Kept: []Kept{{SQE: make([]byte, nvme.SQELen)}}}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Carried){
		"digests":   func(k *Carried) { k.Digests = 0x80 },
		"alignment": func(k *Carried) { k.Align = 6 },
		"transfer":  func(k *Carried) { k.MaxH2CData = 100 },
		"capsule":   func(k *Carried) { k.InCapsule = 1 << 30 },
		"entries":   func(k *Carried) { k.Entries = 0 },
		"many":      func(k *Carried) { k.Kept = make([]Kept, 5) },
		"command":   func(k *Carried) { k.Kept = []Kept{{SQE: make([]byte, 63)}} },
		"data":      func(k *Carried) { k.Kept = []Kept{{SQE: make([]byte, 64), Data: make([]byte, 8193)}} },
		"unread":    func(k *Carried) { k.Unread = make([]byte, 4<<20) },
	} {
		k := good
		spoil(&k)
		if k.Check() == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := Restore(nil, Config{}, &k); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}

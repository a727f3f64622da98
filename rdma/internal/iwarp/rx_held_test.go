package iwarp

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"testing"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// heldReads are outstanding Reads of n bytes each and the stream of their answers. told notes how many
// of them have completed at a time.
type heldReads struct {
	*rxRig
	mem    [][]byte
	data   [][]byte
	stream []byte
	told   []int
}

func newHeldReads(t *testing.T, crc bool, count, n int) *heldReads {
	h := &heldReads{rxRig: newRig(t, crc)}
	if err := h.peer.(*net.UnixConn).SetWriteBuffer(1 << 20); err != nil { // they lie in the socket together
		t.Fatal(err)
	}
	for i := range count {
		buf, data := make([]byte, n), fill(n, uint64(i))
		stag, base := h.post(uint64(i), buf)
		h.mem, h.data = append(h.mem, buf), append(h.data, data)
		h.stream = append(h.stream, h.message(wire.ReadResponse, stag, base, data, 60<<10)...)
	}
	h.qp.SendCQ.Init(1024, h.hear)
	return h
}

// post posts a Read into p, and sends it as far as the receiver is concerned.
func (h *heldReads) post(id uint64, p []byte) (stag uint32, base uint64) {
	h.qp.Mu.Lock()
	defer h.qp.Mu.Unlock()
	e, err := h.qp.PostLocked(id, verbs.OpRead)
	if err != nil || !h.qp.reads.roomLocked() {
		h.t.Fatal("no room for another Read")
	}
	e.Flags, e.Length = verbs.FlagSignaled, uint32(len(p))
	h.qp.SQ.Next++
	return h.qp.reads.sentLocked(e).Open(&h.qp.Mem, [][]byte{p}, mem.Sink)
}

// hear takes the completions.
func (h *heldReads) hear() {
	h.cq.Lock()
	defer h.cq.Unlock()
	n := 0
	for wc := h.cq.NextLocked(); wc != nil; wc = h.cq.NextLocked() {
		if wc.Status != verbs.StatusSuccess || !bytes.Equal(h.mem[wc.ID], h.data[wc.ID]) {
			h.t.Errorf("Read %d has ended with %v, or has other data", wc.ID, wc.Status)
		}
		n++
	}
	if n > 0 {
		h.told = append(h.told, n)
	}
}

// come puts the answers into the socket and lets the machine run.
func (h *heldReads) come() {
	h.t.Helper()
	if _, err := h.peer.Write(h.stream); err != nil {
		h.t.Fatal(err)
	}
	h.over = h.qp.rx.Ready()
}

// TestHeld: of long payloads that lie in the socket together several are told of at a time, though each is received
// by a call of its own, and none is left over.
func TestHeld(t *testing.T) {
	for _, crc := range rigModes {
		for _, tc := range []struct {
			count, n int
			want     []int
		}{
			{1, 16 << 10, []int{1}},
			{2, 16 << 10, []int{1, 1}}, // the first is looked at before it is read
			{8, 16 << 10, []int{1, 4, 3}},
			{2, 60 << 10, []int{1, 1}},
		} {
			t.Run(fmt.Sprintf("%d of %d/crc=%v", tc.count, tc.n, crc), func(t *testing.T) {
				h := newHeldReads(t, crc, tc.count, tc.n)
				h.come()
				if h.over || !slices.Equal(h.told, tc.want) {
					t.Errorf("told of %v Reads at a time, want %v; ended: %v", h.told, tc.want, h.over)
				}
			})
		}
	}
}

// TestHeldAtTheEnd: what has been received is told of when the peer closes the connection behind it.
func TestHeldAtTheEnd(t *testing.T) {
	h := newHeldReads(t, true, 8, 16<<10)
	if _, err := h.peer.Write(h.stream); err != nil {
		t.Fatal(err)
	}
	h.peer.Close()
	h.over = h.qp.rx.Ready()
	if want := []int{1, 4, 3}; !h.over || !slices.Equal(h.told, want) {
		t.Errorf("told of %v Reads at a time, want %v; ended: %v", h.told, want, h.over)
	}
}

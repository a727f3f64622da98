package iwarp

import (
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Read Responses and the send queue take turns, message by message, in one round as well.
func TestTurnsOfARound(t *testing.T) {
	r := newRig(t, true)
	qp, tx := r.qp, &r.qp.tx
	w, stag, base := r.window(fill(4096, 3), mem.RemoteRead)
	defer w.close()
	tx.allowed = true
	qp.reads.irq = slices.Repeat([]irqEntry{{size: 100, sinkSTag: 1, srcSTag: stag, srcTO: base}}, 3)
	qp.reads.irqTail = uint32(len(qp.reads.irq))
	src := fill(100, 4)
	qp.Mu.Lock()
	for i := range 6 {
		e, err := qp.PostLocked(uint64(i), verbs.OpWrite)
		if err != nil {
			t.Fatal(err)
		}
		e.Flags, e.Remote = verbs.FlagSignaled, verbs.RemoteAddr{STag: 9}
		e.Add(src, mem.LocalKey)
	}
	qp.Mu.Unlock()

	tx.io.Lock()
	defer tx.io.Unlock()
	tx.buildRound()
	if tx.reason != nil {
		t.Fatal(tx.reason)
	}
	var b []byte
	for _, v := range tx.iov {
		b = append(b, unsafe.Slice(v.Base, v.Len)...)
	}
	tx.taken(tx.bytes)
	var got []wire.Opcode
	for len(b) > 0 {
		got = append(got, wire.Control(binary.BigEndian.Uint16(b[wire.LenField:])).Op())
		b = b[wire.FPDULen(int(binary.BigEndian.Uint16(b))):]
	}
	const resp, write = wire.ReadResponse, wire.Write
	if want := []wire.Opcode{resp, write, resp, write, resp, write, write, write, write}; !slices.Equal(got, want) {
		t.Errorf("messages of the round: %v, want %v", got, want)
	}
}

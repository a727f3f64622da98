package rdmamsg

import (
	"bytes"
	"testing"

	"softiser/rdma"
)

// TestWindowsExpose: a window shows the peer its segments from the byte on that it is told,
// in their order, and not a byte more, whatever was shown before.
func TestWindowsExpose(t *testing.T) {
	client, server := pair(t, 4, Config{})
	data := make([]byte, 300)
	for i := range data {
		data[i] = byte(i) ^ byte(i>>8)
	}
	segs := [][]byte{data[:100], data[100:150], data[150:]}
	for _, from := range []uint32{0, 1, 99, 100, 101, 149, 150, 151, 299} {
		w, stag, base, err := client.w.Open(segs, from, rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data)-int(from))
		server.do(func(p *Pump) { p.Get(&got, [][]byte{got}, uint32(len(got)), rdma.RemoteAddr{STag: stag, TO: base}) })
		if r := recv(t, "the end of the Read", server.over); r.err != nil || !bytes.Equal(got, data[from:]) {
			t.Errorf("from %d: %v, % x", from, r.err, got[:min(len(got), 4)])
		}
		if !client.w.Close(w) || w.Valid() {
			t.Error("not closed")
		}
	}
	if len(client.w.all) != 1 || len(client.w.closed) != 1 {
		t.Errorf("%d windows were made one after the other, %d are closed", len(client.w.all), len(client.w.closed))
	}
	// A byte more is refused, and ends the connection.
	w, stag, base, err := client.w.Open(segs, 150, rdma.AccessRemoteRead)
	if err != nil || w == nil {
		t.Fatal(err)
	}
	more := make([]byte, 151)
	server.do(func(p *Pump) { p.Get(&more, [][]byte{more}, 151, rdma.RemoteAddr{STag: stag, TO: base}) })
	if r := recv(t, "the end of the Read", server.over); r.err == nil {
		t.Error("a byte beyond the window was read")
	}
}

package initiator

import (
	"bytes"
	"context"
	"testing"
)

// A Request that was used is copied, and both are outstanding at once: each has its own state.
func TestCopiedRequest(t *testing.T) {
	ft := newFakeTarget(t, 1<<20)
	l, err := Open(context.Background(), ft.config())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan *Request, 2)
	a := &Request{Op: OpWrite, Off: 4096, Buf: bytes.Repeat([]byte{1}, 4096), Done: func(r *Request) { done <- r }}
	l.Submit(a)
	if r := <-done; r.Err != nil {
		t.Fatal(r.Err)
	}
	b := *a
	b.Off, b.Buf = 8192, bytes.Repeat([]byte{2}, 4096)
	l.SubmitBatch([]*Request{a, &b})
	if r, q := <-done, <-done; r == q || r.Err != nil || q.Err != nil {
		t.Fatalf("ended: %p (%v) and %p (%v)", r, r.Err, q, q.Err)
	}
}

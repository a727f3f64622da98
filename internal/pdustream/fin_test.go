package pdustream_test

import (
	"io"
	"testing"
	"time"

	"softiser/internal/loopback"
	. "softiser/internal/pdustream"
	"softiser/internal/sockio"
)

// TestFin: the peer sees the end of the stream, and its time to close its own side runs.
func TestFin(t *testing.T) {
	a, b := loopback.Pair(t)
	sk, err := sockio.New(b, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer sk.Close()
	defer a.Close()
	var f Fin
	if f.Begun() || !f.Due() || f.Late() {
		t.Errorf("before: begun %v, due %v, late %v", f.Begun(), f.Due(), f.Late())
	}
	if !f.Send(sk, -time.Second) {
		t.Fatal("an empty socket is full")
	}
	if !f.Begun() || f.Due() || !f.Late() {
		t.Errorf("behind it: begun %v, due %v, late %v", f.Begun(), f.Due(), f.Late())
	}
	if _, err := a.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the peer reads: %v", err)
	}
}

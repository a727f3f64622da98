package terminal

import (
	"context"
	"errors"
	"os"
	"testing"
)

// A read that waits for a pipe ends with its context, and not before.
func TestReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	in, err := NewReader(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := w.WriteString("abc"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	if n, err := in.Read(buf); err != nil || string(buf[:n]) != "abc" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	got := make(chan error)
	go func() {
		_, err := in.Read(buf)
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Close ends a read that waits, and those that come.
func TestReaderClosed(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	in, err := NewReader(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	read := func() {
		_, err := in.Read(make([]byte, 8))
		got <- err
	}
	go read()
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-got; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		go read()
	}
	<-got
}

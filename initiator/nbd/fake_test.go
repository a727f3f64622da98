package nbd

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// memLUN is a volume in memory that completes requests on its own goroutine,
// in batches as a session does.
type memLUN struct {
	mu     sync.Mutex
	info   blockdev.Info
	data   []byte
	queue  chan []*blockio.Request
	flush  atomic.Int64
	fua    atomic.Int64
	hook   func(*blockio.Request) error
	closed chan struct{}
}

func newMemLUN(t testing.TB, size int64) *memLUN {
	l := &memLUN{
		info:   blockdev.Info{Size: size, BlockSize: 512, PhysBlockSize: 4096, Discard: true, ZeroesOnTrim: true},
		data:   make([]byte, size),
		queue:  make(chan []*blockio.Request, 4096),
		closed: make(chan struct{}),
	}
	go func() {
		defer close(l.closed)
		for b := range l.queue {
			for _, r := range b {
				l.do(r)
				r.Done(r)
			}
		}
	}()
	t.Cleanup(func() { close(l.queue); <-l.closed })
	return l
}

func (l *memLUN) NewFlusher() *blockio.Flusher { return new(blockio.Flusher) }

func (l *memLUN) Info() blockdev.Info { return l.info }

func (l *memLUN) SubmitBatch(rs []*blockio.Request) {
	l.queue <- append([]*blockio.Request(nil), rs...)
}

func (l *memLUN) do(r *blockio.Request) {
	r.Err = nil
	if l.hook != nil {
		if r.Err = l.hook(r); r.Err != nil {
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.FUA {
		l.fua.Add(1)
	}
	switch r.Op {
	case blockio.OpRead:
		copy(r.Buf, l.data[r.Off:])
	case blockio.OpWrite:
		copy(l.data[r.Off:], r.Buf)
	case blockio.OpDiscard, blockio.OpWriteZeroes:
		clear(l.data[r.Off : r.Off+r.Len])
	case blockio.OpFlush:
		l.flush.Add(1)
	}
}

// content is a copy of the volume.
func (l *memLUN) content() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]byte(nil), l.data...)
}

// holds reports whether l has what want is, from its beginning to its end.
func (l *memLUN) holds(want []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Equal(l.data, want)
}

// Extents: 64 KiB regions that are all zero count as holes.
func (l *memLUN) Extents(off, n int64) (ext []blockdev.Extent, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := off; at < off+n; {
		end := min((at/65536+1)*65536, off+n)
		data := false
		for _, b := range l.data[at:end] {
			if b != 0 {
				data = true
				break
			}
		}
		if k := len(ext) - 1; k >= 0 && ext[k].Data == data {
			ext[k].Len += end - at
		} else {
			ext = append(ext, blockdev.Extent{Off: at, Len: end - at, Data: data})
		}
		at = end
	}
	return ext, nil
}

// serveUnix serves cfg on a socket in a temporary directory.
func serveUnix(t testing.TB, cfg Config) (s *Server, path string) {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-done; err != ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
	})
	return s, path
}

func serveLUN(t testing.TB, l *memLUN) (s *Server, path string) {
	return serveUnix(t, Config{Exports: []*Export{{Name: "vol", Description: "a test", LUN: l}}})
}

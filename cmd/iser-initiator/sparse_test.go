package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/initiator/blockio"
)

// asProgram, set, makes this test binary the program itself, with its arguments.
const asProgram = "SOFTISER_TEST_INITIATOR"

func init() {
	if os.Getenv(asProgram) != "" {
		main()
	}
}

// Zeroes become holes only where stepping over them leaves zeroes: not in a file
// that is being appended to, and not over older content.
func TestReadSparseToStdout(t *testing.T) {
	addr, vol := serve(t, 1<<20, "")
	want := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{4}).Read(want[256<<10 : 512<<10]) // zeroes before and behind
	if _, err := vol.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	old := bytes.Repeat([]byte{0xee}, 2<<20)
	for _, c := range []struct {
		name  string
		flags int
		file  []byte // before
		at    int64
		want  []byte
	}{
		{"new", os.O_CREATE, nil, 0, want},
		{"append", os.O_APPEND, old[:4096], 0, append(old[:4096:4096], want...)},
		{"over older content", 0, old, 0, append(want[:len(want):len(want)], old[len(want):]...)},
		{"at the end", 0, old[:4096], 4096, append(old[:4096:4096], want...)},
	} {
		path := filepath.Join(t.TempDir(), "out")
		if c.file != nil {
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.OpenFile(path, os.O_WRONLY|c.flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(c.at, 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "read", "--sparse", "--quiet", "--chunk=64KiB", "iser://"+addr+"/"+testIQN+"/0")
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = f, &errs
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v: %s", c.name, err, errs.String())
		}
		f.Close()
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: the file of %d bytes is not what was to be %d bytes (%v)", c.name, len(got), len(c.want), err)
		}
	}
}

// cached is a volume with a volatile cache that counts how often all of it is flushed.
type cached struct {
	blockdev.Device
	flushes atomic.Int32
}

func (v *cached) Info() blockdev.Info {
	i := v.Device.Info()
	i.WriteCache = true
	return i
}

func (v *cached) Flush() error {
	v.flushes.Add(1)
	return v.Device.Flush()
}

// With --fua the zeroes of --sparse are durable like the data, without a flush at
// the end.
func TestWriteSparseWithFUA(t *testing.T) {
	mv, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	v := &cached{Device: mv}
	l, err := initiator.Open(t.Context(), initiator.Config{Address: serveVolume(t, v, ""), TargetName: testIQN})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // after which the target flushes by itself
	for _, fua := range []bool{false, true} {
		s := &stream{lun: l, length: -1, chunk: 16 << 10, depth: 2, sparse: true, fua: fua, prog: startProgress("written", 1<<20, false)}
		defer s.prog.stop()
		if err := s.write(t.Context(), bytes.NewReader(make([]byte, 64<<10))); err != nil || s.zeroes != 64<<10 {
			t.Fatal(err, s.zeroes)
		}
		if n := v.flushes.Load(); (n > 0) != fua {
			t.Errorf("%d flushes with fua %v", n, fua)
		}
	}
}

// zeroless is a volume whose target refuses the command for zeroes, which only that tells.
type zeroless struct {
	*initiator.LUN
	refused atomic.Int32
}

func (v *zeroless) Do(ctx context.Context, r *blockio.Request) error {
	if r.Op == blockio.OpWriteZeroes && v.refused.Add(1) == 1 {
		r.Err = fmt.Errorf("%w: WRITE SAME", blockdev.ErrNotSupported)
		return r.Err
	}
	return v.LUN.Do(ctx, r)
}

// Where the target has no command for zeroes, those of --sparse are written.
func TestWriteSparseWithoutWriteSame(t *testing.T) {
	mv, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l, err := initiator.Open(t.Context(), initiator.Config{Address: serveVolume(t, mv, ""), TargetName: testIQN})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.WriteAt(bytes.Repeat([]byte{1}, 64<<10), 0); err != nil {
		t.Fatal(err)
	}
	s := &stream{lun: &zeroless{LUN: l}, length: -1, chunk: 16 << 10, depth: 1, sparse: true, prog: startProgress("written", 1<<20, false)}
	defer s.prog.stop()
	if err := s.write(t.Context(), bytes.NewReader(make([]byte, 64<<10))); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64<<10)
	if _, err := l.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, 64<<10)) {
		t.Errorf("the volume does not hold zeroes: %v", err)
	}
}

package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/await"
	"softiser/internal/terminal/ptytest"
	"softiser/internal/usage"
)

// A disk that an interrupted vgreduce has left with the mark and the metadata of its group is not used by
// mistake, and can be made one of the group again.
func TestInterruptedReduce(t *testing.T) {
	for _, again := range [][]string{{"pvremove", "-ff"}, {"pvcreate", "-ff"}} {
		s := newShell(t)
		s.group()
		before := filepath.Join(t.TempDir(), "before")
		s.copyMetadata(before, s.disks[1])
		s.run("vgreduce", "vg0", s.disks[1])
		s.copyMetadata(s.disks[1], before)                    // its part of that is not done
		s.fails("-ff overrides", again[0], "-ff", s.disks[0]) // the group has it
		s.fails("is not in volume group", "vgreduce", "vg0", s.disks[1])
		s.fails("pvcreate -ff", "vgextend", "vg0", s.disks[1])
		s.fails("-ff overrides", "pvremove", s.disks[1])
		s.fails("-ff overrides", "pvremove", "-f", s.disks[1])
		s.fails("-ff overrides", "pvcreate", "-f", s.disks[1])
		s.run(append(again, s.disks[1])...)
		s.run("vgextend", "vg0", s.disks[1])
		s.says("2", "vgs", "--noheadings", "-o", "pv_count", "vg0")
	}
}

// An import from a pipe whose writer is at rest ends with the command, here and in a target. A terminal is read only
// where it is asked for.
func TestInterruptedImport(t *testing.T) {
	s := newShell(t)
	s.group()
	args := []string{"import", "vg0/x", "--devices", strings.Join(s.disks, ",")}
	remote := func(_ context.Context, _ []string, in io.Reader, _, _ io.Writer) (bool, error) {
		_, err := io.Copy(io.Discard, in)
		return true, err
	}
	for name, env := range map[string]Env{"here": s.env, "in a target": {Config: s.env.Config, Remote: remote}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			var out bytes.Buffer
			ended <- Run(ctx, env, args, r, &out, &out)
		}()
		if _, err := w.Write([]byte("SOFT")); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the import reads", func() bool {
			n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
			return err == nil && n == 0
		})
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the import waits for its input", name)
			w.Close()
			<-ended
		}
	}
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Skip(err)
	}
	if _, err := person.Write([]byte{4}); err != nil { // Ctrl-D, for a command that reads it
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), s.env, args, tty, &out, &out); !usage.Is(err) || !strings.Contains(err.Error(), "standard input is a terminal") {
		t.Errorf("from a terminal: %v", err)
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/terminal/ptytest"
)

// trapped is a volume whose reads call a function from a certain one on.
type trapped struct {
	blockdev.Device
	left atomic.Int32
	then func() error
}

func (d *trapped) ReadAt(p []byte, off int64) (int, error) {
	if d.left.Add(-1) < 0 {
		if err := d.then(); err != nil {
			return 0, err
		}
	}
	return d.Device.ReadAt(p, off)
}

func (d *trapped) LeaseRead(l *blockdev.Lease, off int64, n int, mode blockdev.Mode) error {
	if d.left.Add(-1) < 0 {
		if err := d.then(); err != nil {
			return err
		}
	}
	return d.Device.LeaseRead(l, off, n, mode)
}

// What read has replaced is whole; what it could not read whole replaces nothing.
func TestInterruptedReadKeepsTheOldFile(t *testing.T) {
	for _, how := range []string{"interrupted", "failed"} {
		t.Run(how, func(t *testing.T) {
			vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 8 << 20})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			d := &trapped{Device: vol, then: func() error {
				if how == "failed" {
					return errors.New("bad sector")
				}
				cancel()
				return nil
			}}
			url := "iser://" + serveVolume(t, d, "") + "/" + testIQN + "/0"
			dir := t.TempDir()
			old, link, fresh := filepath.Join(dir, "old"), filepath.Join(dir, "link"), filepath.Join(dir, "new")
			if err := os.WriteFile(old, []byte("what was there"), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("old", link); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{old, link, fresh} {
				d.left.Store(40)
				var out, errs bytes.Buffer
				if code := execute(ctx, []string{"read", url, name, "--force", "--chunk", "64KiB", "--depth", "2"}, &out, &errs); code == 0 {
					t.Fatalf("%s: success\n%s", name, &errs)
				}
			}
			if b, err := os.ReadFile(old); err != nil || string(b) != "what was there" {
				t.Errorf("the old file: %d bytes, %v", len(b), err)
			}
			if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
				t.Errorf("left behind: %v, %v", all, err)
			}
			// The next run gets through, and the old file's mode stays.
			d.left.Store(1 << 30)
			must(t, "read", url, link, "--force")
			st, err := os.Lstat(old)
			if err != nil || st.Size() != 8<<20 || st.Mode() != 0o640 {
				t.Errorf("after a whole run: %v, %v", st, err)
			}
			if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link: %v, %v", st, err)
			}
		})
	}
}

// A file that appears while a volume is read is not replaced unasked.
func TestFileAppearsMeanwhile(t *testing.T) {
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "disk.img")
	d := &trapped{Device: vol, then: func() error { return os.WriteFile(name, []byte("somebody else's"), 0o600) }}
	d.left.Store(4)
	url := "iser://" + serveVolume(t, d, "") + "/" + testIQN + "/0"
	if _, errs, code := run(t, "read", url, name, "--chunk", "64KiB"); code == 0 || !strings.Contains(errs, "exists") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "somebody else's" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// atTerminal makes standard input a terminal on which nobody types.
func atTerminal(t *testing.T) {
	t.Helper()
	tty, _, err := ptytest.Open(t)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	stdin := os.Stdin
	os.Stdin = tty
	t.Cleanup(func() { os.Stdin = stdin })
}

// write does not wait in silence for somebody to type a volume, and one who does
// wait is interrupted by the first Ctrl-C.
func TestWriteFromTerminal(t *testing.T) {
	addr, _ := serve(t, 1<<20, "")
	url := "iser://" + addr + "/" + testIQN + "/0"
	for _, verb := range []string{"write", "verify"} {
		atTerminal(t)
		if _, errs, code := run(t, verb, url); code != exitUsage || !strings.Contains(errs, "is a terminal") {
			t.Errorf("%s: exit %d, %s", verb, code, errs)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int)
		var out, errs bytes.Buffer
		go func() { ended <- execute(ctx, []string{verb, url, "-"}, &out, &errs) }()
		cancel()
		if code := <-ended; code == 0 || !strings.Contains(errs.String(), "interrupted") {
			t.Errorf("%s -: exit %d, %s", verb, code, &errs)
		}
	}
}

// read does not pour a volume onto a screen, where its bytes are commands of the terminal.
func TestReadToTerminal(t *testing.T) {
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	stdout := os.Stdout
	os.Stdout = tty
	t.Cleanup(func() { os.Stdout = stdout })
	addr, d := serve(t, 1<<20, "")
	if _, err := d.WriteAt(append([]byte("what the volume holds"), make([]byte, 512-21)...), 0); err != nil {
		t.Fatal(err)
	}
	args := []string{"read", "iser://" + addr + "/" + testIQN + "/0", "--length", "512"}
	if _, errs, code := run(t, args...); code != exitUsage || !strings.Contains(errs, "is a terminal") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if _, errs, code := run(t, append(args, "-")...); code != 0 {
		t.Errorf("read -: exit %d, %s", code, errs)
	}
	ptytest.Expect(t, person, "what the volume holds")
}

// A pipe that is full, and that nobody reads, does not keep a read from its end.
func TestReadToFullPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = writer
	t.Cleanup(func() { os.Stdout = stdout; reader.Close(); writer.Close() })
	addr, _ := serve(t, 1<<20, "")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		reader.Read(make([]byte, 1)) // it is being written; a pipe holds less than the volume
		cancel()
	}()
	var out, errs bytes.Buffer
	if code := execute(ctx, []string{"read", "iser://" + addr + "/" + testIQN + "/0", "-"}, &out, &errs); code == 0 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit %d, %s", code, &errs)
	}
}

// A report that could not be written has not been made.
func TestOutputCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	addr, _ := serve(t, 1<<20, "")
	url := "iser://" + addr + "/" + testIQN + "/0"
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"discover " + addr, "discover --json " + addr, "info " + url, "info --json " + url, "verify " + url + " " + file,
		"write " + url + " " + file, "bench " + url + " --rw=read --bs=4k --size=64k", "bench --output-format=json " + url + " --rw=read --bs=4k --size=64k",
		"rdma devinfo", "attach --list", "--help", "--version", "completion bash",
	} {
		var errs bytes.Buffer
		if code := execute(t.Context(), strings.Fields(line), full, &errs); code == 0 || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%s > /dev/full: exit %d, %s", line, code, &errs)
		}
	}
}

// A length that ends inside a block is filled up with --pad: so much of the input is taken, and no more.
func TestPaddedLength(t *testing.T) {
	addr, vol := serve(t, 1<<20, "")
	url := "iscsi://" + addr + "/" + testIQN + "/0"
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, bytes.Repeat([]byte("x"), 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := vol.WriteAt(bytes.Repeat([]byte("o"), 4096), 0); err != nil {
		t.Fatal(err)
	}
	must(t, "write", url, in, "--pad", "--length", "1000", "--chunk", "512")
	want := append(bytes.Repeat([]byte("x"), 1000), make([]byte, 24)...)
	want = append(want, bytes.Repeat([]byte("o"), 4096-1024)...)
	got := make([]byte, 4096)
	if _, err := vol.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the volume holds something else (%v)", err)
	}
	must(t, "verify", url, in, "--pad", "--length", "1000", "--chunk", "512")
	if _, errs, code := run(t, "verify", url, in, "--pad", "--length", "1025"); code != exitDiffer || !strings.Contains(errs, "byte 1000 ") {
		t.Errorf("zeroes instead of the file's bytes: exit %d, %s", code, errs)
	}
	must(t, "write", url, in, "--pad")
	// Zeroes are added to the end of the last block, not to that of the range.
	if _, errs, code := run(t, "verify", url, in, "--pad", "--length", "6144"); code != exitError || !strings.Contains(errs, "the input ended after 5120 bytes") {
		t.Errorf("a file that ends before the range: exit %d, %s", code, errs)
	}
}

// A file that is known to be shorter than what is to be written is refused while the volume is still whole.
func TestFileShorterThanLength(t *testing.T) {
	addr, vol := serve(t, 1<<20, "")
	url := "iscsi://" + addr + "/" + testIQN + "/0"
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, bytes.Repeat([]byte("x"), 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--length", "8KiB"}, {"--length", "8KiB", "--pad"}} {
		_, errs, code := run(t, append([]string{"write", url, in}, args...)...)
		if code == exitOK || !strings.Contains(errs, "in is 5000 bytes long, less than --length 8192") {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
	got := make([]byte, 5120)
	if _, err := vol.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, 5120)) {
		t.Errorf("the volume was written (%v)", err)
	}
	must(t, "write", url, in, "--length", "5KiB", "--pad")
	must(t, "verify", url, in, "--pad")
}

// A command has no more buffers than its range fills, and one at least.
func TestPieces(t *testing.T) {
	s := &stream{depth: 8, chunk: 64 << 10}
	for most, want := range map[int64]int{0: 1, 1: 1, 64 << 10: 1, 64<<10 + 1: 2, 448 << 10: 7, 448<<10 + 1: 8, 1 << 40: 8} {
		if got := len(s.pieces(most)); got != want {
			t.Errorf("%d buffers for %d bytes, want %d", got, most, want)
		}
	}
}

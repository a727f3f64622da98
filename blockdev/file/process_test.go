package file

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/leaktest"
)

// TestMain lets the test binary play other processes.
func TestMain(m *testing.M) {
	switch os.Getenv("FILE_TEST_CHILD") {
	case "":
		leaktest.Main(m, leaktest.Pool("bytes of staging memory", blockdev.DefaultPool().Out))
	case "write":
		childWrite()
	case "fsize":
		childFileSize()
	case "cache":
		childCache()
	case "lock":
		childLock()
	}
}

func child(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FILE_TEST_CHILD="+role, "FILE_TEST_PATH="+path)
	cmd.Stderr = os.Stderr
	return cmd
}

// childCache says which cache the volume has, and is killed.
func childCache() {
	d, err := Open(Config{Path: os.Getenv("FILE_TEST_PATH"), Size: 1 << 20, EpochDir: os.Getenv("FILE_TEST_RECORDS")})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Print("cache ", d.Info().CacheID)
	unix.Kill(os.Getpid(), unix.SIGKILL)
}

// childLock locks the file of descriptor 3, which is its parent's too, and ends.
func childLock() {
	if err := unix.Flock(3, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// childWrite writes numbered blocks through leases and says so after each.
func childWrite() {
	d, err := Open(Config{Path: os.Getenv("FILE_TEST_PATH"), Size: 1 << 20})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var l blockdev.Lease
	for i := uint64(1); ; i++ {
		if err := d.LeaseWrite(&l, int64(i%256)*4096, 4096, blockdev.Wait); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		err := store(&l, numbered(i))
		if err == nil {
			err = l.Commit(i%64 == 0)
		}
		l.Release()
		fmt.Println(i, err)
	}
}

func numbered(i uint64) []byte {
	p := make([]byte, 4096)
	for k := 0; k < len(p); k += 8 {
		binary.LittleEndian.PutUint64(p[k:], i)
	}
	return p
}

// The kernel names who has taken a lock, and not who has it since a handover: a process that
// has ended is not told as the one that serves the file.
func TestLockedByAPredecessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := child(t, "lock", path)
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.Output(); err != nil {
		t.Fatal(err, string(out))
	}
	_, err = Open(Config{Path: path, Size: 1 << 20})
	if !errors.Is(err, blockdev.ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("taken over from process %d", cmd.Process.Pid)) {
		t.Errorf("Open = %v, want ErrInUse, and that the process which took the lock has ended", err)
	}
}

// TestKill: what a process acknowledged before kill -9 is in the file, and the
// file can be opened at once.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	cmd := child(t, "write", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acked := uint64(0)
	sc := bufio.NewScanner(out)
	for sc.Scan() && acked < 1000 {
		var n uint64
		var msg string
		if _, err := fmt.Sscan(sc.Text(), &n, &msg); err != nil || msg != "<nil>" {
			t.Fatalf("the writer says %q", sc.Text())
		}
		acked = n
	}
	if _, err := Open(Config{Path: path}); !errors.Is(err, blockdev.ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("locked by process %d (", cmd.Process.Pid)) {
		t.Errorf("Open while another process serves it = %v, want ErrInUse and the process", err)
	}
	cmd.Process.Kill()
	for sc.Scan() {
		fmt.Sscan(sc.Text(), &acked)
	}
	cmd.Wait()
	d, err := Open(Config{Path: path})
	if err != nil {
		t.Fatalf("Open after kill -9: %v", err)
	}
	defer d.Close()
	p := make([]byte, 4096)
	for slot := range uint64(256) {
		// The last number acknowledged for this slot.
		want := acked - (acked-slot)%256
		if want == 0 {
			continue
		}
		if _, err := d.ReadAt(p, int64(slot)*4096); err != nil {
			t.Fatal(err)
		}
		got := binary.LittleEndian.Uint64(p)
		if got != want && got != want+256 || got%256 != slot {
			t.Errorf("slot %d holds %d, acknowledged was %d", slot, got, want)
		}
		// One write more may have begun, and be torn.
		if got == want && !bytes.Equal(p, numbered(want)) && want+256 != acked+1 {
			t.Errorf("slot %d is torn", slot)
		}
	}
}

// childFileSize runs into RLIMIT_FSIZE.
func childFileSize() {
	path := os.Getenv("FILE_TEST_PATH")
	d, err := Open(Config{Path: path})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, err = d.WriteAt(make([]byte, 4096), 2<<20)
	fmt.Println("beyond:", errors.Is(err, blockdev.ErrNoSpace), err)
	_, err = d.WriteAt(make([]byte, 4096), 0)
	fmt.Println("below:", err)
	fmt.Println("resize:", d.Resize(8<<20) != nil, d.Info().Size)
}

// TestFileSizeLimit: SIGXFSZ does not kill the process.
func TestFileSizeLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4<<20); err != nil {
		t.Fatal(err)
	}
	out, err := child(t, "fsize", path).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if len(lines) != 3 || !bytes.HasPrefix(lines[0], []byte("beyond: true")) || string(lines[1]) != "below: <nil>" || string(lines[2]) != "resize: true 4194304" {
		t.Errorf("the child says:\n%s", out)
	}
}

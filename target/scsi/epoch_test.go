package scsi

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softiser/blockdev"
	spc "softiser/internal/scsi"
)

// The epoch of volumes in the page cache is that of the boot, not of the process.
func TestBootEpochOfAnotherProcess(t *testing.T) {
	const env = "SOFTISER_TEST_EPOCH"
	ours := bootEpoch()
	if os.Getenv(env) != "" {
		os.Stdout.WriteString("epoch:" + string(ours[:]))
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBootEpochOfAnotherProcess$")
	cmd.Env = append(os.Environ(), env+"=1")
	out, err := cmd.Output()
	_, theirs, ok := strings.Cut(string(out), "epoch:")
	if err != nil || !ok || theirs != string(ours[:]) {
		t.Fatalf("%q, %v", out, err)
	}
	if newEpoch() == newEpoch() {
		t.Error("two new epochs are the same")
	}
}

// volatileVolume has a cache; its writes are the process's own unless kernel.
type volatileVolume struct {
	blockdev.Device
	kernel bool
	flush  error
}

func (v *volatileVolume) Info() blockdev.Info {
	i := v.Device.Info()
	i.WriteCache, i.PageCache = true, v.kernel
	return i
}

func (v *volatileVolume) Flush() error {
	if v.flush != nil {
		return v.flush
	}
	return v.Device.Flush()
}

// What an initiator finds after an orderly end of the target, and after a crash.
func TestCacheEpochs(t *testing.T) {
	dir := t.TempDir()
	epoch := func(v *volatileVolume, orderly bool) [16]byte {
		t.Helper()
		r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
		q, err := spc.ParseInquiryData(r.do(spc.AppendInquiry(nil, spc.InquiryLen), nil, spc.InquiryLen).good().data)
		if err != nil || q.Epoch == [16]byte{} {
			t.Fatalf("%+v, %v", q, err)
		}
		r.close()
		r.nx = nil
		if !orderly { // a crash leaves no file
			if err := os.Remove(r.dev.epochFiles(t)); err != nil {
				t.Fatal(err)
			}
		}
		return q.Epoch
	}
	own := func(flush error) *volatileVolume { return &volatileVolume{newNamed(t, "a"), false, flush} }
	first := epoch(own(nil), true)
	if again := epoch(own(nil), false); again != first {
		t.Error("an orderly end has lost nothing")
	}
	crashed := epoch(own(nil), true)
	if crashed == first {
		t.Error("the epoch of before the crash came back")
	}
	if epoch(own(errors.New("full")), true) != crashed {
		t.Error("the orderly end before this one has lost nothing")
	}
	if epoch(own(nil), true) == crashed {
		t.Error("the last flush had failed")
	}
	if got := epoch(&volatileVolume{newNamed(t, "b"), true, nil}, true); got != bootEpoch() {
		t.Errorf("page cache: % x", got)
	}
}

// epochFiles names the one epoch file there is.
func (d *Device) epochFiles(t *testing.T) string {
	all, err := filepath.Glob(filepath.Join(d.cfg.StateDir, "*.epoch"))
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}

package nbd

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"softiser/initiator/blockio"
)

// tool runs a client program, or skips the test where it is not installed.
func tool(t *testing.T, pkg, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (apt-get install %s)", name, pkg)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestClientNbdinfo(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	l.data[300_000] = 1
	_, path := serveLUN(t, l)
	uri := "nbd+unix:///vol?socket=" + path
	var info struct {
		Protocol   string
		Structured bool
		Exports    []struct {
			Name        string `json:"export-name"`
			Description string
			Size        int64       `json:"export-size"`
			Multi       bool        `json:"can_multi_conn"`
			FUA         bool        `json:"can_fua"`
			Flush       bool        `json:"can_flush"`
			Trim        bool        `json:"can_trim"`
			Zero        bool        `json:"can_zero"`
			FastZero    bool        `json:"can_fast_zero"`
			DF          bool        `json:"can_df"`
			Min         json.Number `json:"block_size_minimum"`
			Contexts    []string
		}
	}
	if err := json.Unmarshal([]byte(tool(t, "libnbd-bin", "nbdinfo", "--json", uri)), &info); err != nil {
		t.Fatal(err)
	}
	e := info.Exports[0]
	if info.Protocol != "newstyle-fixed" || !info.Structured || e.Name != "vol" || e.Size != 1<<20 || e.Description != "a test" ||
		!e.Multi || !e.FUA || !e.Flush || !e.Trim || !e.Zero || !e.FastZero || !e.DF || len(e.Contexts) != 1 || e.Min != "512" {
		t.Errorf("%+v", info)
	}
	if out := tool(t, "libnbd-bin", "nbdinfo", "--list", "nbd+unix:///?socket="+path); !strings.Contains(out, `export="vol"`) {
		t.Errorf("list: %s", out)
	}
	if out := tool(t, "libnbd-bin", "nbdinfo", "--map", uri); !strings.Contains(out, "262144       65536    0  data") {
		t.Errorf("map: %s", out)
	}
}

func TestClientNbdcopy(t *testing.T) {
	l := newMemLUN(t, 16<<20)
	_, path := serveLUN(t, l)
	uri := "nbd+unix:///vol?socket=" + path
	src, dst := filepath.Join(t.TempDir(), "src"), filepath.Join(t.TempDir(), "dst")
	data := make([]byte, 16<<20)
	rand.NewChaCha8([32]byte{1}).Read(data[:10<<20])
	if err := os.WriteFile(src, data, 0o644); err != nil {
		t.Fatal(err)
	}
	tool(t, "libnbd-bin", "nbdcopy", "--connections=4", "--flush", src, uri)
	if !l.holds(data) {
		t.Fatal("nbdcopy wrote something else")
	}
	if l.flush.Load() == 0 {
		t.Error("--flush did not arrive")
	}
	tool(t, "libnbd-bin", "nbdcopy", "--connections=4", uri, dst)
	if got, err := os.ReadFile(dst); err != nil || !bytes.Equal(got, data) {
		t.Errorf("nbdcopy read something else (%v)", err)
	}
}

func TestClientQemu(t *testing.T) {
	l := newMemLUN(t, 16<<20)
	_, path := serveLUN(t, l)
	uri := "nbd+unix:///vol?socket=" + path
	out := tool(t, "qemu-utils", "qemu-io", "-f", "raw", uri,
		"-c", "write -P 0x5a 64k 128k", "-c", "write -f -P 0x11 4k 4k", "-c", "flush", "-c", "read -P 0x5a 64k 128k", "-c", "read -P 0x11 4k 4k",
		"-c", "write -z 64k 64k", "-c", "read -P 0 64k 64k", "-c", "discard 128k 64k", "-c", "read -P 0 128k 64k", "-c", "aio_write -P 7 1M 4M", "-c", "aio_flush", "-c", "read -P 7 1M 4M")
	if strings.Contains(out, "failed") || strings.Contains(out, "error") {
		t.Errorf("qemu-io:\n%s", out)
	}
	if l.fua.Load() == 0 || l.flush.Load() == 0 {
		t.Errorf("FUA %d, flush %d", l.fua.Load(), l.flush.Load())
	}
	img := filepath.Join(t.TempDir(), "img")
	tool(t, "qemu-utils", "qemu-img", "convert", "-f", "raw", "-O", "raw", uri, img)
	if got, err := os.ReadFile(img); err != nil || !l.holds(got) {
		t.Errorf("qemu-img convert (%v)", err)
	}
	if out := tool(t, "qemu-utils", "qemu-img", "compare", "-f", "raw", "-F", "raw", uri, img); !strings.Contains(out, "identical") {
		t.Errorf("compare: %s", out)
	}
	if out := tool(t, "qemu-utils", "qemu-img", "map", "-f", "raw", "--output=json", uri); !strings.Contains(out, `"zero": true`) {
		t.Errorf("map: %s", out)
	}
}

// A volume of 4 KiB blocks, under its default name: clients keep to the block
// size that they are told.
func TestClientsOfLargeBlocks(t *testing.T) {
	l := newMemLUN(t, 8<<20)
	l.info.BlockSize = 4096
	_, path := serveLUN(t, l)
	uri := "nbd+unix:///?socket=" + path
	out := tool(t, "qemu-utils", "qemu-io", "-f", "raw", uri, "-c", "write -P 0x33 512 1024", "-c", "read -P 0x33 512 1024", "-c", "read -P 0 0 512", "-c", "read -P 0 1536 2560",
		"-c", "write -z -n 4096 4096", "-c", "write -z -u 0 3584", "-c", "discard 5000 100000", "-c", "write -P 1 8388096 512")
	if strings.Contains(out, "failed") || strings.Contains(out, "error") {
		t.Errorf("qemu-io:\n%s", out)
	}
	src := filepath.Join(t.TempDir(), "src")
	data := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{2}).Read(data[1<<20 : 2<<20])
	if err := os.WriteFile(src, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "libnbd-bin", "nbdcopy", "--synchronous", src, uri)
	if !l.holds(data) {
		t.Error("nbdcopy wrote something else")
	}
	if out := tool(t, "libnbd-bin", "nbdinfo", "--map", uri); !strings.Contains(out, "1048576     1048576    0  data") {
		t.Errorf("map of the default export:\n%s", out)
	}
}

// A client that dies in the middle leaves nothing behind that hinders the next.
func TestClientKilled(t *testing.T) {
	l := newMemLUN(t, 16<<20)
	hit := make(chan struct{}, 1)
	var writes atomic.Int32
	l.hook = func(r *blockio.Request) error {
		if writes.Add(1) == 20 {
			hit <- struct{}{}
		}
		return nil
	}
	_, path := serveLUN(t, l)
	uri := "nbd+unix:///vol?socket=" + path
	src := filepath.Join(t.TempDir(), "src")
	data := make([]byte, 16<<20)
	rand.NewChaCha8([32]byte{3}).Read(data)
	if err := os.WriteFile(src, data, 0o600); err != nil {
		t.Fatal(err)
	}
	prog, err := exec.LookPath("nbdcopy")
	if err != nil {
		t.Skip("nbdcopy is not installed (apt-get install libnbd-bin)")
	}
	for range 3 {
		writes.Store(0)
		cmd := exec.Command(prog, src, uri)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-hit
		cmd.Process.Kill()
		cmd.Wait()
	}
	tool(t, "libnbd-bin", "nbdcopy", src, uri)
	if !l.holds(data) {
		t.Error("the last copy is not whole")
	}
}

func TestClientFio(t *testing.T) {
	l := newMemLUN(t, 16<<20)
	_, path := serveLUN(t, l)
	if out, err := exec.Command("fio", "--enghelp=nbd").CombinedOutput(); err != nil || strings.Contains(string(out), "not loadable") {
		t.Skipf("fio with the nbd engine is not installed (%v)", err)
	}
	out := tool(t, "fio", "fio", "--name=v", "--verify_state_save=0", "--ioengine=nbd", "--uri=nbd+unix:///vol?socket="+path, "--rw=randwrite", "--bs=4k", "--iodepth=32",
		"--size=16m", "--verify=crc32c", "--verify_fatal=1")
	if !strings.Contains(out, "err= 0") {
		t.Errorf("fio:\n%s", out)
	}
}

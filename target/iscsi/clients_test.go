package iscsi

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// client runs an outside program, or skips the test with the way to get it.
func client(t *testing.T, pkg, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed: apt-get install %s", name, pkg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if strings.Contains(out.String(), "block-iscsi not found") { // qemu-utils alone
			t.Skipf("%s cannot speak iSCSI: apt-get install %s", name, pkg)
		}
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func (s *server) url(auth string) string {
	return fmt.Sprintf("iscsi://%s%s/%s/0", auth, s.addr, testIQN)
}

func TestLibiscsiTools(t *testing.T) {
	s := serve(t, nil)
	if out := client(t, "libiscsi-bin", "iscsi-ls", "-s", "iscsi://"+s.addr); !strings.Contains(out, "Target:"+testIQN+" Portal:"+s.addr+",1") || !strings.Contains(out, "Lun:0") {
		t.Errorf("iscsi-ls: %s", out)
	}
	if out := client(t, "libiscsi-bin", "iscsi-inq", s.url("")); !strings.Contains(out, "Vendor:SOFTISER") {
		t.Errorf("iscsi-inq: %s", out)
	}
	for _, page := range []string{"0x00", "0x80", "0x83", "0xb0"} {
		client(t, "libiscsi-bin", "iscsi-inq", "-e", "1", "-c", page, s.url(""))
	}
	if out := client(t, "libiscsi-bin", "iscsi-readcapacity16", s.url("")); !strings.Contains(out, fmt.Sprintf("Total size:%d", volumeSize)) {
		t.Errorf("iscsi-readcapacity16: %s", out)
	}
}

func TestLibiscsiCHAP(t *testing.T) {
	s := serve(t, func(_ *serverConfig, tgt *Target) {
		tgt.Auth = Auth{Users: []Credential{{"alice", "initiator-secret"}}, Mutual: Credential{"target", "target-secret-2"}}
	})
	client(t, "libiscsi-bin", "iscsi-readcapacity16", s.url("alice%initiator-secret@"))
	client(t, "libiscsi-bin", "iscsi-readcapacity16", s.url("alice%initiator-secret@")+"?target_user=target&target_password=target-secret-2")
	out, err := exec.Command("iscsi-readcapacity16", s.url("alice%wrong-secret-00@")).CombinedOutput()
	if err == nil || !strings.Contains(strings.ToLower(string(out)), "auth") {
		t.Errorf("a wrong secret: %v, %s", err, out)
	}
}

func TestISCSIDD(t *testing.T) {
	s := serve(t, nil)
	if _, err := exec.LookPath("iscsi-dd"); err != nil {
		t.Skip("iscsi-dd is not installed: it is an example program of libiscsi that distributions leave out; build it from source")
	}
	data := pattern(4<<20, 11)
	if _, err := s.vol.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.AddTarget(Target{Name: "iqn.2026-11.softiser:copy", LUNs: []LUN{s.memory(t, "copy", volumeSize)}}); err != nil {
		t.Fatal(err)
	}
	client(t, "libiscsi-bin", "iscsi-dd", "-s", s.url(""), "-d", strings.Replace(s.url(""), testIQN, "iqn.2026-11.softiser:copy", 1))
	e, err := s.node("iqn.2026-11.softiser:copy")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if _, err := e.luns[0].Volume.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "the copy", got, data)
}

func TestQEMUImg(t *testing.T) {
	s := serve(t, nil)
	if out := client(t, "qemu-utils qemu-block-extra", "qemu-img", "info", s.url("")); !strings.Contains(out, fmt.Sprintf("%d bytes", volumeSize)) {
		t.Errorf("qemu-img info: %s", out)
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	data := append(pattern(10<<20, 13), make([]byte, volumeSize-10<<20)...)
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	client(t, "qemu-utils qemu-block-extra", "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", in, s.url(""))
	got := make([]byte, len(data))
	if _, err := s.vol.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "the volume after qemu-img convert", got, data)
	client(t, "qemu-utils qemu-block-extra", "qemu-img", "compare", "-f", "raw", "-F", "raw", in, s.url(""))
	client(t, "qemu-utils qemu-block-extra", "qemu-img", "convert", "-f", "raw", "-O", "raw", s.url(""), out)
	back, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "the volume read back by qemu-img", back, data)
}

package initiator_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// tgt is somebody else's target: Debian's tgt, over TCP.
type tgt struct {
	t    *testing.T
	addr string
	ctl  string
	cmd  *exec.Cmd
}

func startTGT(t *testing.T, addr, image string, settings ...string) *tgt {
	t.Helper()
	for _, name := range []string{"tgtd", "tgtadm"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed: apt-get install tgt", name)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("tgtd wants root")
	}
	g := &tgt{t: t, addr: addr, ctl: fmt.Sprint(20000 + os.Getpid()%10000)}
	g.cmd = exec.Command("tgtd", "-f", "-C", g.ctl, "--iscsi", "portal="+addr)
	var out bytes.Buffer
	g.cmd.Stdout, g.cmd.Stderr = &out, &out
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.kill)
	if !await.Until(func() bool {
		return exec.Command("tgtadm", "-C", g.ctl, "--lld", "iscsi", "--op", "new", "--mode", "target", "--tid", "1", "-T", testIQN).Run() == nil
	}) {
		g.kill()
		t.Skipf("tgtd does not run here:\n%s", out.String())
	}
	g.adm("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", image)
	for _, s := range settings {
		k, v, _ := strings.Cut(s, "=")
		g.adm("--op", "update", "--mode", "target", "--tid", "1", "--name", k, "--value", v)
	}
	g.adm("--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL")
	return g
}

func (g *tgt) adm(args ...string) {
	g.t.Helper()
	if out, err := exec.Command("tgtadm", append([]string{"-C", g.ctl, "--lld", "iscsi"}, args...)...).CombinedOutput(); err != nil {
		g.t.Fatalf("tgtadm %v: %v\n%s", args, err, out)
	}
}

func (g *tgt) kill() {
	if g.cmd != nil {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		g.cmd = nil
	}
}

func image(t *testing.T, size int64) string {
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

// CHAP with tgt, one way and mutual, with each algorithm that it has. What it
// calls algorithm 7 is SHA-1 and not SHA-256, so that a list with 7 fails: by
// default the initiator then tries again with MD5, which every target has.
func TestCHAPWithTGT(t *testing.T) {
	g := startTGT(t, loopback.FreeAddr(t), image(t, 1<<20))
	g.adm("--op", "new", "--mode", "account", "--user", "joe", "--password", "initiator-secret")
	g.adm("--op", "bind", "--mode", "account", "--tid", "1", "--user", "joe")
	g.adm("--op", "new", "--mode", "account", "--user", "disk", "--password", "targets-secret")
	g.adm("--op", "bind", "--mode", "account", "--tid", "1", "--user", "disk", "--outgoing")
	for _, mutual := range []bool{false, true} {
		for _, algs := range [][]string{nil, {"md5"}} {
			cfg := initiator.Config{Transport: initiator.TransportTCP, Address: g.addr, TargetName: testIQN, LUN: 1, LoginTimeout: 30 * time.Second}
			cfg.Auth = initiator.Auth{User: "joe", Secret: "initiator-secret", Algorithms: algs}
			if mutual {
				cfg.Auth.TargetUser, cfg.Auth.TargetSecret = "disk", "targets-secret"
			}
			l := openLUN(t, cfg)
			if _, err := l.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Errorf("%v, mutual %v: %v", algs, mutual, err)
			}
		}
	}
	cfg := initiator.Config{Transport: initiator.TransportTCP, Address: g.addr, TargetName: testIQN, LUN: 1, LoginTimeout: 30 * time.Second}
	cfg.Auth = initiator.Auth{User: "joe", Secret: "not-the-secret-1"}
	if _, err := initiator.Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "0201") {
		t.Errorf("a wrong secret: %v", err)
	}
}

// Discovery, login with and without digests, every length, and a restart of
// the target under a write, against an implementation that is not ours.
func TestAgainstTGT(t *testing.T) {
	for name, settings := range map[string][]string{
		"default":      nil,
		"digests":      {"HeaderDigest=CRC32C", "DataDigest=CRC32C"},
		"unsolicited":  {"InitialR2T=No", "FirstBurstLength=262144", "MaxRecvDataSegmentLength=65536"},
		"no immediate": {"ImmediateData=No"},
	} {
		t.Run(name, func(t *testing.T) {
			disk := image(t, 16<<20)
			g := startTGT(t, loopback.FreeAddr(t), disk, settings...)
			cfg := initiator.Config{Transport: initiator.TransportTCP, Address: g.addr, LoginTimeout: 30 * time.Second}
			ts, err := initiator.Discover(context.Background(), cfg)
			if err != nil || len(ts) != 1 || ts[0].Name != testIQN {
				t.Fatalf("%+v, %v", ts, err)
			}
			cfg.TargetName, cfg.LUN = testIQN, 1
			cfg.SetBackoff(10*time.Millisecond, 100*time.Millisecond)
			if name == "digests" {
				cfg.HeaderDigest, cfg.DataDigest = []string{"CRC32C"}, []string{"CRC32C"}
			}
			l := openLUN(t, cfg)
			rnd := rand.New(rand.NewPCG(5, 6))
			want := make([]byte, 16<<20)
			for i, n := range []int{512, 4096, 8192, 65536, 100 << 10, 256 << 10, 1 << 20, 3 << 20} {
				p := want[i<<20:][:n]
				if n > 1<<20 {
					p = want[8<<20:][:n]
				}
				for k := range p {
					p[k] = byte(rnd.Uint32())
				}
				off := int64(i) << 20
				if n > 1<<20 {
					off = 8 << 20
				}
				if _, err := l.WriteAt(p, off); err != nil {
					t.Fatalf("write %d: %v", n, err)
				}
				got := make([]byte, n)
				if _, err := l.ReadAt(got, off); err != nil || !bytes.Equal(got, p) {
					t.Fatalf("read %d: different, %v", n, err)
				}
			}
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			if onDisk, err := os.ReadFile(disk); err != nil || !bytes.Equal(onDisk, want) {
				t.Errorf("the file holds something else (%v)", err)
			}
			if name != "default" {
				return
			}
			g.kill()
			done := make(chan error, 1)
			go func() {
				_, err := l.WriteAt(want[:4096], 12<<20)
				done <- err
			}()
			startTGT(t, g.addr, disk)
			if err := <-done; err != nil {
				t.Errorf("a WRITE across a restart: %v", err)
			}
		})
	}
}

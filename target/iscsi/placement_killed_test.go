package iscsi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev/file"
	"softiser/internal/iscsi"
	"softiser/internal/iser"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// victimEnv makes this test binary a target that can be killed: the placement and the
// path of its volume.
const victimEnv = "SOFTISER_TEST_VICTIM"

// victim serves until its standard input ends.
func victim(args string) error {
	name, path, _ := strings.Cut(args, ",")
	var p scsi.Placement
	if err := p.UnmarshalText([]byte(name)); err != nil {
		return err
	}
	vol, err := file.Open(file.Config{Path: path})
	if err != nil {
		return err
	}
	s, err := newServer(serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0"}}})
	if err != nil {
		return err
	}
	if err := s.AddTarget(Target{Name: testIQN, LUNs: []LUN{{Name: "disk0", LUConfig: scsi.LUConfig{Volume: vol, Placement: p}}}}); err != nil {
		return err
	}
	if err := s.Listen(); err != nil {
		return err
	}
	fmt.Println(s.Addrs()[0])
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return s.Serve(ctx)
}

// startVictim returns a target in a process of its own, and what kills it.
func startVictim(t *testing.T, p scsi.Placement, path string) (s *server, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+p.String()+","+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := false
	kill = func() {
		if !gone {
			gone = true
			cmd.Process.Kill()
			cmd.Wait()
			in.Close()
		}
	}
	t.Cleanup(kill)
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the target did not start: %v", err)
	}
	return &server{t: t, addr: strings.TrimSpace(addr)}, kill
}

// keptIn returns a directory whose files are kept in memory alone, or on a disk.
func keptIn(t *testing.T, memory bool) string {
	dir := t.TempDir()
	if memory {
		var err error
		if dir, err = os.MkdirTemp("/dev/shm", "softiser-test"); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if (fs.Type == unix.TMPFS_MAGIC) != memory {
		t.Skipf("%s is of the other kind", dir)
	}
	return dir
}

// TestPlacementKilled: the target is killed while half of a block has arrived, and
// while many WRITEs are on their way to its file.
func TestPlacementKilled(t *testing.T) {
	before, after := pattern(placeLen, 1), pattern(placeLen, 2)
	const regions = 8
	volume := func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "disk")
		if err := os.WriteFile(path, bytes.Repeat(before, regions), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	look := func(t *testing.T, path string, region int) (old, now, neither int) {
		all, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return blocksOf(all[region*placeLen:][:placeLen], before, after)
	}
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		for _, tc := range []struct {
			placement scsi.Placement
			memory    bool
		}{{scsi.PlacementDirect, true}, {scsi.PlacementDirect, false}, {scsi.PlacementVerified, true}, {scsi.PlacementVerified, false}} {
			t.Run(fmt.Sprintf("%v/half a block, memory=%v", tc.placement, tc.memory), func(t *testing.T) {
				path := volume(t, keptIn(t, tc.memory))
				s, kill := startVictim(t, tc.placement, path)
				sc := pausing(placeLen/2 + placeBlock/2)
				m := s.behind(t, sc).connect(kind, iser.ConnConfig{})
				m.login("ImmediateData=No")
				m.ready()
				m.cmd(cdbRW10(0x2a, 0, placeLen/placeBlock), nil, after)
				sc.waitPaused(t)
				want := 0
				if tc.placement == scsi.PlacementDirect && tc.memory {
					want = 1
					eventually(t, "half a block is in the volume", func() bool { _, _, n := look(t, path, 0); return n == 1 })
				} else {
					s.session().read10(0, 8) // the target serves; what has come is where it belongs
				}
				kill()
				if _, _, n := look(t, path, 0); n != want {
					t.Errorf("%d blocks are neither old nor new, want %d", n, want)
				}
			})
		}
		t.Run("verified/many", func(t *testing.T) {
			path := volume(t, t.TempDir())
			s, kill := startVictim(t, scsi.PlacementVerified, path)
			m := s.connect(kind, iser.ConnConfig{})
			m.login("ImmediateData=No")
			m.ready()
			// As many as fit are under way until the kill, and more come for each that
			// has ended.
			out := [][]byte{after, before}
			next := 0
			send := func() {
				m.cmd(cdbRW10(0x2a, uint32(next%regions*placeLen/placeBlock), placeLen/placeBlock), nil, out[next/regions%2])
				next++
			}
			for range regions {
				send()
			}
			for range 3 * regions {
				if p := m.recv(); p.BHS.Opcode() != iscsi.OpSCSIResponse || p.BHS.SCSIResponse().Status() != 0 {
					t.Fatalf("WRITE: %v", p.BHS.Opcode())
				}
				send()
			}
			kill()
			for r := range regions {
				if _, _, n := look(t, path, r); n > 0 {
					t.Errorf("region %d: %d blocks are neither old nor new", r, n)
				}
			}
		})
	})
}

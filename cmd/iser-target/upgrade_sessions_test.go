package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/initiator/nvmf"
	"softiser/internal/certs/certtest"
	"softiser/internal/handover/handovertest"
	"softiser/target/iscsi"
)

// disk is a volume as an initiator sees it.
type disk interface {
	io.ReaderAt
	io.WriterAt
	Stats() initiator.Stats
}

// verifier writes to a volume and reads back, in areas of its own, until it is told to stop.
type verifier struct {
	lun   disk
	stop  atomic.Bool
	wg    sync.WaitGroup
	mu    sync.Mutex
	err   error           // guarded by mu: the first one
	times []time.Duration // guarded by mu: of each operation
	worst time.Duration   // guarded by mu: since slowest
	turns atomic.Int64
}

const upgradedNQN = "nqn.2026-11.softiser:"

const verifierArea = 1 << 20

// verify starts a verifier with a number of areas.
func verify(l disk, areas int) *verifier {
	v := &verifier{lun: l}
	for i := range areas {
		v.wg.Go(func() {
			if err := v.run(i); err != nil {
				v.mu.Lock()
				v.err = errors.Join(v.err, fmt.Errorf("area %d: %w", i, err))
				v.mu.Unlock()
			}
		})
	}
	return v
}

// run works on one area: each turn writes a range of another length, which comes with the
// command or is asked for, and reads it and one that was written before.
func (v *verifier) run(area int) error {
	base := int64(area) * verifierArea
	want, got := make([]byte, verifierArea), make([]byte, verifierArea)
	if err := v.timed(func() error { _, err := v.lun.WriteAt(want, base); return err }); err != nil {
		return err
	}
	lengths := []int{512, 4096, 65536, 262144}
	for turn := uint64(1); !v.stop.Load(); turn++ {
		n := lengths[turn%uint64(len(lengths))]
		off := rand.IntN((verifierArea-n)/512+1) * 512
		for i := 0; i < n; i += 8 {
			binary.LittleEndian.PutUint64(want[off+i:], turn<<32|uint64(off+i))
		}
		if err := v.timed(func() error { _, err := v.lun.WriteAt(want[off:off+n], base+int64(off)); return err }); err != nil {
			return fmt.Errorf("turn %d: write: %w", turn, err)
		}
		for _, off := range []int{off, rand.IntN((verifierArea-n)/512+1) * 512} {
			b := got[:n]
			if err := v.timed(func() error { _, err := v.lun.ReadAt(b, base+int64(off)); return err }); err != nil {
				return fmt.Errorf("turn %d: read: %w", turn, err)
			}
			if !bytes.Equal(b, want[off:off+n]) {
				return fmt.Errorf("turn %d: wrong data at %d", turn, off)
			}
		}
		v.turns.Add(1)
	}
	return nil
}

func (v *verifier) timed(f func() error) error {
	begin := time.Now()
	err := f()
	took := time.Since(begin)
	v.mu.Lock()
	v.times = append(v.times, took)
	v.worst = max(v.worst, took)
	v.mu.Unlock()
	return err
}

// slowest returns how long the slowest operation took since it was asked before.
func (v *verifier) slowest() (d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d, v.worst = v.worst, 0
	return d
}

// end ends it, and checks that there was no error and no second login.
func (v *verifier) end(t *testing.T) {
	t.Helper()
	v.stop.Store(true)
	v.wg.Wait()
	if v.err != nil {
		t.Error(v.err)
	}
	if st := v.lun.Stats(); st.Logins != 1 {
		t.Errorf("%d logins", st.Logins)
	}
	slices.Sort(v.times)
	t.Logf("%d turns; slowest operations %v", v.turns.Load(), v.times[max(0, len(v.times)-5):])
}

// open attaches a volume of the target with options of a URL.
func (s *served) open(iqn, options string) *initiator.LUN {
	s.t.Helper()
	return s.openOver("iscsi", iqn, options)
}

// openOver is open over the transport that a scheme names.
func (s *served) openOver(scheme, iqn, options string) *initiator.LUN {
	s.t.Helper()
	cfg, err := initiator.ParseURL(scheme + "://" + s.addr + "/" + iqn + "/0" + options)
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := initiator.Open(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

// connect attaches the namespace of the target, with or without digests.
func (s *served) connect(nqn string, digests bool) *nvmf.Namespace {
	return s.connectOver("nvme+tcp", nqn, digests)
}

// connectOver is connect over the transport that a scheme names.
func (s *served) connectOver(scheme, nqn string, digests bool) *nvmf.Namespace {
	s.t.Helper()
	cfg, err := nvmf.ParseURL(scheme + "://" + s.addr + "/" + nqn + "/1")
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.HeaderDigest, cfg.DataDigest = digests, digests
	n, err := nvmf.Open(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { n.Close() })
	return n
}

// TestUpgradeControllers: controllers over TCP go from process to process under load, as
// sessions do.
func TestUpgradeControllers(t *testing.T) {
	img := filepath.Join(t.TempDir(), "d.img")
	s := serveProgram(t, "--export", "m=memory,size=8MiB", "--export", "d="+img+",size=8MiB")
	idle := s.connect(upgradedNQN+"m", false)
	all := []*verifier{
		verify(s.connect(upgradedNQN+"m", false), 4),
		verify(s.connect(upgradedNQN+"d", true), 4),
	}
	s.upgradeUnder(all, "3 controllers of NVMe over TCP")
	if _, err := idle.ReadAt(make([]byte, 512), 0); err != nil || idle.Stats().Logins != 1 {
		t.Errorf("an idle controller: %v, %d logins", err, idle.Stats().Logins)
	}
	if n := len(statusOf(t, s.socket).Controllers); n != 3 {
		t.Errorf("%d controllers are there", n)
	}
}

// TestUpgradeNVMeRDMA: the same over RDMA.
func TestUpgradeNVMeRDMA(t *testing.T) {
	img := filepath.Join(t.TempDir(), "d.img")
	s := serveProgram(t, "--export", "m=memory,size=8MiB", "--export", "d="+img+",size=8MiB")
	idle := s.connectOver("nvme+rdma", upgradedNQN+"m", false)
	all := []*verifier{
		verify(s.connectOver("nvme+rdma", upgradedNQN+"m", false), 4),
		verify(s.connectOver("nvme+rdma", upgradedNQN+"d", false), 4),
	}
	s.upgradeUnder(all, "3 controllers of NVMe over RDMA")
	if _, err := idle.ReadAt(make([]byte, 512), 0); err != nil || idle.Stats().Logins != 1 {
		t.Errorf("an idle controller: %v, %d logins", err, idle.Stats().Logins)
	}
}

// TestUpgradeSessions: sessions over TCP go from process to process under load, with and
// without digests: no initiator logs in again or sees an error, and every block is right.
func TestUpgradeSessions(t *testing.T) {
	img := filepath.Join(t.TempDir(), "d.img")
	s := serveProgram(t, "--export", "m=memory,size=8MiB", "--export", "d="+img+",size=8MiB")
	idle := s.open("iqn.2026-11.softiser:m", "")
	all := []*verifier{
		verify(s.open("iqn.2026-11.softiser:m", ""), 4),
		verify(s.open("iqn.2026-11.softiser:d", ""), 4),
	}
	s.upgradeUnder(all, "3 sessions of iSCSI over TCP")
	if _, err := idle.ReadAt(make([]byte, 512), 0); err != nil || idle.Stats().Logins != 1 {
		t.Errorf("an idle session: %v, %d logins", err, idle.Stats().Logins)
	}
	if n := len(statusOf(t, s.socket).Sessions); n != 3 {
		t.Errorf("%d sessions are there", n)
	}
}

// TestUpgradeISER: the same over iSER.
func TestUpgradeISER(t *testing.T) {
	img := filepath.Join(t.TempDir(), "d.img")
	s := serveProgram(t, "--export", "m=memory,size=8MiB", "--export", "d="+img+",size=8MiB")
	idle := s.openOver("iser", "iqn.2026-11.softiser:m", "")
	all := []*verifier{
		verify(s.openOver("iser", "iqn.2026-11.softiser:m", ""), 4),
		verify(s.openOver("iser", "iqn.2026-11.softiser:d", ""), 4),
	}
	s.upgradeUnder(all, "3 sessions of iSER")
	if _, err := idle.ReadAt(make([]byte, 512), 0); err != nil || idle.Stats().Logins != 1 {
		t.Errorf("an idle session: %v, %d logins", err, idle.Stats().Logins)
	}
	if n := len(statusOf(t, s.socket).Sessions); n != 3 {
		t.Errorf("%d sessions are there", n)
	}
}

// percentiles are the median, the 99th percentile and the largest.
func percentiles(all []time.Duration) string {
	slices.Sort(all)
	at := func(p int) time.Duration { return all[(len(all)*p+99)/100-1].Round(10 * time.Microsecond) }
	return fmt.Sprintf("p50 %v, p99 %v, max %v", at(50), at(99), at(100))
}

// upgradeUnder upgrades again and again under load, which is verified, and wants just that
// carried beside portals and volumes.
func (s *served) upgradeUnder(all []*verifier, carried string) {
	t := s.t
	t.Helper()
	var pauses, seen []time.Duration
	for range handovertest.Upgrades(t, 10) {
		before := make([]int64, len(all))
		for i, v := range all {
			before[i] = v.turns.Load()
			v.slowest()
		}
		u, err := s.upgrade()
		if err != nil {
			t.Fatal(err)
		}
		pauses = append(pauses, u.Pause)
		if !slices.Contains(u.Carried, carried) || len(u.Closed) != 0 {
			t.Fatalf("carried %v, closed %v", u.Carried, u.Closed)
		}
		for i, v := range all {
			for v.turns.Load() < before[i]+8 && !t.Failed() {
				v.mu.Lock()
				err := v.err
				v.mu.Unlock()
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond) // the load goes on meanwhile; it is what is waited for
			}
			seen = append(seen, v.slowest())
		}
	}
	for _, v := range all {
		v.end(t)
	}
	t.Logf("%d upgrades: pauses of the target %s; slowest operations of each initiator %s", len(pauses), percentiles(pauses), percentiles(seen))
}

// TestUpgradeLibiscsi: the session of libiscsi, in qemu, goes through ten upgrades under load: it
// keeps its connection, and reads what it has written.
func TestUpgradeLibiscsi(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	q := startQemuIO(t, "iscsi://"+s.addr+"/iqn.2026-11.softiser:m/0")
	q.verify(10)
	session := func() iscsi.SessionStatus {
		all := statusOf(t, s.socket).Sessions
		if len(all) != 1 {
			t.Fatalf("%d sessions", len(all))
		}
		return all[0]
	}
	before := session()
	for range 10 {
		done := make(chan error, 1)
		go func() { _, err := s.upgrade(); done <- err }()
		for upgraded := false; !upgraded; {
			q.verify(10)
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				upgraded = true
			default:
			}
		}
		q.verify(10)
	}
	if after := session(); after.TSIH != before.TSIH || after.Connection != before.Connection {
		t.Errorf("session %d at %s is session %d at %s", before.TSIH, before.Connection, after.TSIH, after.Connection)
	}
}

// qemuIO is qemu-io with a disk.
type qemuIO struct {
	t    *testing.T
	in   io.Writer
	out  *bufio.Reader
	turn int
}

func startQemuIO(t *testing.T, url string) *qemuIO {
	t.Helper()
	path, err := exec.LookPath("qemu-io")
	if err != nil {
		t.Skip("qemu-io is not installed: qemu-utils")
	}
	if out, _ := exec.Command(path, "-f", "raw", "-c", "quit", "iscsi://127.0.0.1:1/none/0").CombinedOutput(); bytes.Contains(out, []byte("Unknown protocol")) {
		t.Skip("qemu has no driver for iSCSI here: qemu-block-extra")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, path, "-f", "raw", url)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return &qemuIO{t: t, in: in, out: bufio.NewReader(out)}
}

// verify writes n ranges of other patterns and lengths, and reads each back.
func (q *qemuIO) verify(n int) {
	q.t.Helper()
	for range n {
		q.turn++
		length, pattern := 4096<<(q.turn%7), q.turn%255
		q.do(fmt.Sprintf("write -P %d 1048576 %d", pattern, length), fmt.Sprintf("wrote %d/%d bytes", length, length))
		q.do(fmt.Sprintf("read -P %d 1048576 %d", pattern, length), fmt.Sprintf("read %d/%d bytes", length, length))
	}
}

// do gives a command, and wants a line. qemu-io says that a pattern differs before it says that it
// has read.
func (q *qemuIO) do(command, want string) {
	q.t.Helper()
	if _, err := io.WriteString(q.in, command+"\n"); err != nil {
		q.t.Fatal(err)
	}
	var all strings.Builder
	for {
		line, err := q.out.ReadString('\n')
		all.WriteString(line)
		if strings.Contains(line, "failed") || strings.Contains(line, "rror") || err != nil {
			q.t.Fatalf("%s: %v\n%s", command, err, all.String())
		}
		if strings.Contains(line, want) {
			return
		}
	}
}

// TestUpgradeSessionsCut: a new process that has been offered sessions and controllers and vanishes
// leaves them to the old one, which goes on with them under load.
func TestUpgradeSessionsCut(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB", "--export", "r=memory,size=8MiB", "--export", "n=memory,size=8MiB")
	all := []*verifier{
		verify(s.open("iqn.2026-11.softiser:m", ""), 3),
		verify(s.openOver("iser", "iqn.2026-11.softiser:r", ""), 3),
		verify(s.connect(upgradedNQN+"n", false), 3),
	}
	for range 5 {
		for _, refuse := range []bool{false, true} {
			got := offered(t, s.socket)
			for _, part := range []string{`"exp_cmdsn"`, `"queue_pair"`, `"max_h2c_data"`} {
				if !strings.Contains(string(got.State), part) {
					t.Errorf("%s was not offered: %s", part, got.State)
				}
			}
			if refuse {
				got.Refuse(errors.New("no"))
			}
			got.Close()
		}
	}
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		v.end(t)
	}
}

// TestUpgradeListsTLS: a session over TLS is named as one that does not go over, and goes on at
// a process that stays.
func TestUpgradeListsTLS(t *testing.T) {
	b := newTLSBed(t)
	l, err := initiator.Open(t.Context(), b.config(b.addr, b.client(b.ca, certtest.Leaf{})))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := offered(t, b.sock)
	var st handedOver
	err = json.Unmarshal(got.State, &st)
	got.Refuse(errors.New("no"))
	got.Close()
	if err != nil {
		t.Fatal(err)
	}
	named := func(line string) bool {
		return strings.HasPrefix(line, "session ") && strings.Contains(line, "it is over TLS")
	}
	if !slices.ContainsFunc(st.Closed, named) || len(st.Carried.ISCSI.Sessions) != 0 {
		t.Errorf("closed %v, carried %v", st.Closed, st.Carried.ISCSI.Sessions)
	}
	if _, err := l.ReadAt(make([]byte, 512), 0); err != nil || l.Stats().Logins != 1 {
		t.Errorf("%v, %d logins", err, l.Stats().Logins)
	}
}

// TestUpgradeMany: 256 sessions of both kinds go over together in one pause, and every one of
// them goes on.
func TestUpgradeMany(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	n := 256
	if testing.Short() {
		n = 32
	}
	luns := make([]*initiator.LUN, n)
	for i := range luns {
		cfg, err := initiator.ParseURL([]string{"iscsi", "iser"}[i%2] + "://" + s.addr + "/iqn.2026-11.softiser:m/0")
		if err != nil {
			t.Fatal(err)
		}
		if luns[i], err = initiator.Open(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		defer luns[i].Close()
	}
	u, err := s.upgrade()
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Closed) != 0 || !slices.Contains(u.Carried, fmt.Sprintf("%d sessions of iSER", n/2)) || !slices.Contains(u.Carried, fmt.Sprintf("%d sessions of iSCSI over TCP", n/2)) {
		t.Fatalf("carried %v, closed %v", u.Carried, u.Closed)
	}
	if st := statusOf(t, s.socket).TakenOver; st == nil || st.PID != u.Old || st.Pause != u.Pause {
		t.Errorf("the status says %+v; the pause was %v", st, u.Pause)
	}
	t.Logf("pause %v", u.Pause)
	for i, l := range luns {
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil || l.Stats().Logins != 1 {
			t.Fatalf("session %d: %v, %d logins", i, err, l.Stats().Logins)
		}
	}
}

package iscsi

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/await"
	"softiser/internal/iscsitcp"
	"softiser/internal/leaktest"
	"softiser/target/portal"
	"softiser/target/scsi"
)

const testIQN = "iqn.2026-11.softiser:disk0"

// TestMain fails when tests leave goroutines, file descriptors or pool buffers
// behind.
func TestMain(m *testing.M) {
	if v := os.Getenv(victimEnv); v != "" {
		if err := victim(v); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m,
		leaktest.After(func() {
			for _, f := range atExit {
				f()
			}
		}),
		leaktest.Pool("receive buffers", iscsitcp.BuffersOut),
		leaktest.Pool("bytes of staging memory", blockdev.DefaultPool().Out))
}

// atExit runs after the tests.
var atExit []func()

func shutdown(s *testServer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.Shutdown(ctx)
}

// server is a running server with one target.
type server struct {
	*testServer
	t    testing.TB
	addr string
	vol  blockdev.Device
	dev  *slowDevice
	more []blockdev.Device
}

// slowDevice is a volume whose reads can be held up.
type slowDevice struct {
	blockdev.Device

	mu      sync.Mutex
	gate    chan struct{} // guarded by mu; not nil: reads wait for it
	waiting int           // guarded by mu
}

// hold makes every read from now on wait until the returned function is called.
func (d *slowDevice) hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate = gate
	return sync.OnceFunc(func() {
		d.mu.Lock()
		d.gate = nil
		d.mu.Unlock()
		close(gate)
	})
}

func (d *slowDevice) held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting
}

func (d *slowDevice) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	d.mu.Lock()
	gate := d.gate
	if gate == nil {
		d.mu.Unlock()
		return d.Device.LeaseRead(l, off, n, m)
	}
	if m == blockdev.NoWait {
		d.mu.Unlock()
		return blockdev.ErrWouldBlock
	}
	d.mu.Unlock()
	d.wait(gate)
	return d.Device.LeaseRead(l, off, n, m)
}

// ReadAt is what self-tests use, for one.
func (d *slowDevice) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	gate := d.gate
	d.mu.Unlock()
	if gate != nil {
		d.wait(gate)
	}
	return d.Device.ReadAt(p, off)
}

func (d *slowDevice) wait(gate chan struct{}) {
	d.mu.Lock()
	d.waiting++
	d.mu.Unlock()
	<-gate
	d.mu.Lock()
	d.waiting--
	d.mu.Unlock()
}

const volumeSize = 32 << 20

// serve starts a server; change may adapt its configuration.
func serve(t testing.TB, change func(*serverConfig, *Target)) *server {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: volumeSize})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, vol: vol, dev: &slowDevice{Device: vol}}
	cfg := serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0"}}, Log: testLog(t)}
	// No time-out ends a connection: a test that waits for its end would take that for the one that it means.
	cfg.Timeouts.NopInterval, cfg.Timeouts.DataOut = time.Hour, time.Hour
	tgt := Target{Name: testIQN, LUNs: []LUN{{Name: "disk0", LUConfig: scsi.LUConfig{LUN: 0, Volume: s.dev}}}}
	if change != nil {
		change(&cfg, &tgt)
	}
	if s.testServer, err = newServer(cfg); err != nil {
		t.Fatal(err)
	}
	if err := s.AddTarget(tgt); err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	s.addr = s.Addrs()[0]
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		done, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer stop()
		s.Shutdown(done)
		<-served
		if n := s.bursts.outstanding(); n != 0 {
			t.Errorf("%d buffers of unsolicited data are still out", n)
		}
		if n := s.listening.Pending(); n != 0 {
			t.Errorf("%d places for logins are still taken", n)
		}
		if n := len(s.sessionList(nil)); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
		for _, v := range append(s.more, vol) {
			if err := v.Close(); err != nil {
				t.Errorf("closing a volume: %v", err)
			}
		}
	})
	return s
}

// testLog prints only when a test asks for it: the log is not what is tested.
func testLog(t testing.TB) *zap.Logger {
	if os.Getenv("TARGET_TEST_LOG") == "" {
		return zap.NewNop()
	}
	l, err := zap.NewDevelopment()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// observedLog is a logger whose lines a test can read.
func observedLog() (*zap.Logger, func() []map[string]any) {
	core, logs := observer.New(zap.DebugLevel)
	return zap.New(core), func() []map[string]any {
		var all []map[string]any
		for _, e := range logs.All() {
			all = append(all, e.ContextMap())
		}
		return all
	}
}

// dial connects a raw initiator.
func (s *server) dial() *rawInitiator {
	s.t.Helper()
	return dialRaw(s.t, s.addr)
}

// memory makes another volume in memory, which lives as long as the test.
func (s *server) memory(t testing.TB, name string, size int64) LUN {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: name, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	s.more = append(s.more, vol)
	return LUN{Name: name, LUConfig: scsi.LUConfig{Volume: vol}}
}

// session logs in and takes the first unit attentions.
func (s *server) session(kv ...string) *rawInitiator {
	s.t.Helper()
	r := s.dial()
	r.mustLogin(testIQN, kv...)
	r.ready()
	return r
}

// eventually waits for a condition that another goroutine brings about.
var eventually = await.True

// outstanding is how many buffers have not come back.
func (p *burstPool) outstanding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

package initiator_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev/file"
	"softiser/initiator"
	"softiser/internal/await"
	"softiser/rdma/rdmatest"
	"softiser/target"
	"softiser/target/scsi"
)

// childEnv makes this test binary a target instead: "listen address,volume file".
const childEnv = "SOFTISER_TEST_TARGET"

func init() {
	initiator.ChildMain = func() bool {
		spec, ok := os.LookupEnv(childEnv)
		if !ok {
			return false
		}
		if err := childTarget(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return true
	}
}

// childTarget serves a file, from the first byte of its standard input on, until it is killed
// or that ends.
func childTarget(spec string) error {
	addr, path, _ := strings.Cut(spec, ",")
	fmt.Println("ready")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	vol, err := file.Open(file.Config{Path: path, EpochDir: filepath.Dir(path)})
	if err != nil {
		return err
	}
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: addr}}})
	if err != nil {
		return err
	}
	if err := srv.AddTarget(target.Target{Name: testIQN, LUNs: []target.LUN{{Name: "disk0", LUConfig: scsi.LUConfig{Volume: vol}}}}); err != nil {
		return err
	}
	if err := srv.Listen(); err != nil {
		return err
	}
	fmt.Println("serving", srv.Addrs()[0])
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return srv.Serve(ctx)
}

// child is a target in its own process.
type child struct {
	t    testing.TB
	addr string
	path string
	cmd  *exec.Cmd
	in   io.WriteCloser // its standard input
	out  *bufio.Reader
	errs bytes.Buffer
}

func startChild(t testing.TB, addr, path string, wrap ...string) *child {
	t.Helper()
	c := prepareChild(t, addr, path, wrap...)
	c.serve()
	return c
}

// prepareChild starts a process that serves when serve is called, however long it takes a
// loaded machine to start one.
func prepareChild(t testing.TB, addr, path string, wrap ...string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, path: path}
	args := append(wrap, self)
	c.cmd = exec.Command(args[0], args[1:]...)
	c.cmd.Env = append(os.Environ(), childEnv+"="+addr+","+path)
	c.cmd.Stderr = &c.errs
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	c.out = bufio.NewReader(out)
	c.said("ready")
	return c
}

// said returns what follows a word in the line that comes from the child next.
func (c *child) said(word string) string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.kill()
		c.t.Fatalf("the target did not start: %v\n%s", err, c.errs.String())
	}
	return strings.TrimSpace(strings.TrimPrefix(line, word))
}

// serve has a prepared child serve, and waits until it listens.
func (c *child) serve() {
	c.t.Helper()
	if _, err := c.in.Write([]byte{'\n'}); err != nil {
		c.t.Fatal(err)
	}
	c.addr = c.said("serving")
}

// kill ends the target as SIGKILL does: at once, wherever it is.
func (c *child) kill() {
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.cmd = nil
	}
}

// A target that is killed again and again during a write run, and restarted,
// loses nothing that was acknowledged, and the initiator goes on by itself. Over RoCE nothing
// tells of the end of a process; a second connection finds the one that has taken its place
// before the queue pair has repeated its requests for long enough.
func TestTargetKilled(t *testing.T) {
	everywhere(t, func(t *testing.T, tr initiator.Transport) {
		const size, depth = 16 << 20, 32
		const most = 3
		kills := 0
		var mute atomic.Bool // a loss was found by a second connection
		path := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		at, from := "127.0.0.1:0", netip.Addr{}
		if tr == initiator.TransportRoCE {
			at, from = rocePortal().Listen, rdmatest.RoCEAddr()
		}
		c := startChild(t, at, path)
		cfg := initiator.Config{Transport: tr, Address: c.addr, LocalAddress: from, TargetName: testIQN, LoginTimeout: 30 * time.Second}
		cfg.OnEvent = func(e initiator.Event) {
			if e.Kind == initiator.EventLost && strings.Contains(e.Err.Error(), "it takes new connections") {
				mute.Store(true)
			}
		}
		cfg.SetBackoff(5*time.Millisecond, 50*time.Millisecond)
		l := openLUN(t, cfg)

		// depth slots write blocks of their own, as fast as they are acknowledged.
		stop := make(chan struct{})
		want := make([]byte, size)
		var wg sync.WaitGroup
		for w := range depth {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(uint64(w), 11))
				lo := w * size / depth
				buf := make([]byte, 16<<10)
				for {
					select {
					case <-stop:
						return
					default:
					}
					p := buf[:512*(1+rnd.IntN(32))]
					for i := range p {
						p[i] = byte(rnd.Uint32())
					}
					off := lo + 512*rnd.IntN((size/depth-len(p))/512)
					if _, err := l.WriteAt(p, int64(off)); err != nil {
						t.Error(err)
						return
					}
					copy(want[off:], p)
				}
			}()
		}
		for ; kills < most; kills++ {
			wrote := l.Stats().WriteBytes
			await.True(t, fmt.Sprintf("something is written after kill %d", kills), func() bool { return l.Stats().WriteBytes >= wrote+256<<10 })
			if tr == initiator.TransportRoCE && mute.Load() {
				break // each takes seconds
			}
			if at = c.addr; tr == initiator.TransportRoCE {
				at = "roce://" + at
			}
			next := prepareChild(t, at, path)
			c.kill()
			next.serve()
			c = next
		}
		wrote := l.Stats().WriteBytes
		await.True(t, "something is written after the last kill", func() bool { return l.Stats().WriteBytes >= wrote+64<<10 })
		close(stop)
		wg.Wait()
		// The writes are in the kernel's page cache, which has not gone with the target: no
		// false alarm.
		if err := l.Flush(); err != nil {
			t.Error(err)
		}
		got := make([]byte, size)
		if _, err := l.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Error("what was acknowledged is not there")
		}
		if onDisk, err := os.ReadFile(path); err != nil || !bytes.Equal(onDisk, want) {
			t.Errorf("the file does not hold it (%v)", err)
		}
		st := l.Stats()
		if st.Losses < uint64(kills) || st.Replayed == 0 {
			t.Errorf("%d losses, %d commands replayed: the test tested nothing", st.Losses, st.Replayed)
		}
		if tr == initiator.TransportRoCE && !mute.Load() {
			t.Error("no second connection has found the new target")
		}
		// The target goes before what openLUN has opened, and to log out of one that has gone
		// takes seconds over RoCE.
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("%d losses, %d failed logins, %d commands replayed of %d", st.Losses, st.LoginFailures, st.Replayed, st.Commands)
	})
}

// strace shows that data and status leave in one system call: the RDMA Write
// and the Send of a READ's response, or Data-In with its status.
func TestOneSystemCallPerResponse(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: apt-get install strace")
	}
	both(t, func(t *testing.T, tr initiator.Transport) {
		dir := t.TempDir()
		path, trace := filepath.Join(dir, "disk"), filepath.Join(dir, "trace")
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		c := startChild(t, "127.0.0.1:0", path, strace, "-f", "-qq", "-e", "trace=sendmsg,sendto,write,writev", "-o", trace)
		l, err := initiator.Open(context.Background(), initiator.Config{Transport: tr, Address: c.addr, TargetName: testIQN, LoginTimeout: time.Minute, NopInterval: -1})
		if err != nil {
			c.kill()
			if strings.Contains(err.Error(), "ptrace") {
				t.Skip(err)
			}
			t.Fatal(err)
		}
		buf := make([]byte, 16<<10)
		const reads = 20
		for range reads {
			if _, err := l.ReadAt(buf, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		c.stop() // and strace with it
		text, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		// A call that carries data and status returns more than the data alone.
		calls, whole := 0, 0
		for _, line := range strings.Split(string(text), "\n") {
			i := strings.LastIndex(line, "= ")
			var n int
			if i < 0 || !strings.Contains(line, "sendmsg") {
				continue
			}
			if _, err := fmt.Sscan(line[i+2:], &n); err == nil && n >= 4096 {
				calls++
				if n >= len(buf)+48 {
					whole++
				}
			}
		}
		if calls != reads || whole != reads {
			t.Errorf("%d READs of %d bytes took %d calls with data, %d of them with all of it and the status", reads, len(buf), calls, whole)
		}
	})
}

// stop ends the target by the end of its standard input, so that what traces it
// ends too.
func (c *child) stop() {
	c.in.Close()
	done := make(chan struct{})
	go func() {
		_ = c.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Kill()
		<-done
	}
	c.cmd = nil
}

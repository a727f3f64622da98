package handover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/await"
)

// pair is a connection between an old process and a new one.
func pair(t *testing.T) (old, now *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// memfds makes descriptors with their index as content.
func memfds(t *testing.T, n int) (fds []int) {
	t.Helper()
	for i := range n {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		if err == nil {
			_, err = unix.Pwrite(fd, fmt.Appendf(nil, "%d", i), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return fds
}

// giver is an old process that counts what happens to it.
type giver struct {
	frozen, thawed atomic.Int32
	given          bool
	err            error
	over           chan struct{}
}

var soon = Patience{Hello: patience, Ready: patience}

// patience is for what does happen.
const patience = await.Deadline

func give(c *net.UnixConn, version int, p Patience, o *Offer, fail error) *giver {
	return giveMade(c, version, p, func() *Offer { return o }, fail)
}

// giveMade is give for an offer that is made when it is asked for.
func giveMade(c *net.UnixConn, version int, p Patience, offer func() *Offer, fail error) *giver {
	g := &giver{over: make(chan struct{})}
	go func() {
		defer close(g.over)
		g.given, g.err = Give(c, version, p, func() (*Offer, error) {
			g.frozen.Add(1)
			if fail != nil {
				return nil, fail
			}
			o := offer()
			o.Thaw = func() { g.thawed.Add(1) }
			return o, nil
		})
	}()
	return g
}

// goesOn checks that the old process goes on as if nothing had happened.
func (g *giver) goesOn(t *testing.T) {
	t.Helper()
	<-g.over
	if g.given || g.err == nil {
		t.Fatalf("given %v, error %v: it has not gone on", g.given, g.err)
	}
	if f, th := g.frozen.Load(), g.thawed.Load(); f != th {
		t.Fatalf("frozen %d times, thawed %d times (%v)", f, th, g.err)
	}
}

func TestHandover(t *testing.T) {
	for _, files := range []int{0, 1, perFrame, 2*perFrame + 3} {
		old, now := pair(t)
		state := []byte(strings.Repeat("state", 50_000))
		g := give(old, 7, soon, &Offer{State: state, Files: memfds(t, files)}, nil)
		got, err := Take(now, "test", 8, patience) // reads the version before its own
		if err != nil {
			t.Fatal(err)
		}
		if string(got.State) != string(state) || got.Files() != files {
			t.Fatalf("%d bytes and %d descriptors have come", len(got.State), got.Files())
		}
		for i := range files {
			fd, err := got.File(i)
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 8)
			n, err := unix.Pread(fd, b, 0)
			if err != nil || string(b[:n]) != fmt.Sprint(i) {
				t.Fatalf("descriptor %d says %q, %v", i, b[:n], err)
			}
			if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
				t.Fatalf("descriptor %d would go to programs that are started (%v)", i, err)
			}
			unix.Close(fd)
			if _, err := got.File(i); err == nil {
				t.Fatal("a descriptor was given out twice")
			}
		}
		if g.thawed.Load() != 0 {
			t.Fatal("thawed in between")
		}
		if err := got.Accept(); err != nil {
			t.Fatal(err)
		}
		<-g.over
		if !g.given || g.err != nil || g.thawed.Load() != 0 {
			t.Fatalf("given %v, %v, thawed %d times", g.given, g.err, g.thawed.Load())
		}
		if err := got.Gone(20 * time.Millisecond); err == nil {
			t.Fatal("this process counts as one that has ended")
		}
		got.Close()
	}
}

// TestVersions: N reads N and N-1; an older process is refused before anything has happened.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		old, now int
		good     bool
	}{{4, 4, true}, {3, 4, true}, {2, 4, false}, {5, 4, false}} {
		old, now := pair(t)
		g := give(old, c.old, soon, &Offer{State: []byte("x")}, nil)
		got, err := Take(now, "test", c.now, patience)
		if (err == nil) != c.good {
			t.Fatalf("version %d to %d: %v", c.old, c.now, err)
		}
		if c.good {
			got.Close()
		} else if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), fmt.Sprintf("version %d", c.old)) {
			t.Fatalf("version %d to %d: %v", c.old, c.now, err)
		}
		g.goesOn(t)
		if !c.good && g.frozen.Load() != 0 {
			t.Fatal("frozen for a version that the other does not read")
		}
	}
}

func TestFreezeFails(t *testing.T) {
	old, now := pair(t)
	g := give(old, 1, soon, nil, errors.New("volume x does not answer"))
	if _, err := Take(now, "test", 1, patience); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "volume x does not answer") {
		t.Fatal(err)
	}
	<-g.over
	if g.given || g.thawed.Load() != 0 {
		t.Fatal(g.given, g.thawed.Load())
	}
}

// TestNewOneVanishes cuts at every step of the new process: the old one goes on.
func TestNewOneVanishes(t *testing.T) {
	for name, leave := range map[string]func(c *net.UnixConn){
		"before hello":  func(c *net.UnixConn) { c.Close() },
		"within hello":  func(c *net.UnixConn) { c.Write([]byte(magic)); c.Close() },
		"instead of it": func(c *net.UnixConn) { send(c, frame{kind: kindReady}); c.Close() },
		"after hello":   func(c *net.UnixConn) { send(c, helloFrame(1)); c.Close() },
		"within the data": func(c *net.UnixConn) {
			send(c, helloFrame(1))
			f, _ := receive(c)
			closeAll(f.files)
			c.Close()
		},
		"with the data": func(c *net.UnixConn) {
			got, _ := Take(c, "test", 1, patience)
			got.Close()
		},
		"refusing": func(c *net.UnixConn) {
			got, _ := Take(c, "test", 1, patience)
			got.Refuse(errors.New("no"))
			got.Close()
		},
		"within ready": func(c *net.UnixConn) {
			got, _ := Take(c, "test", 1, patience)
			h := (&frame{kind: kindReady}).header()
			c.Write(h[:headerLen-1])
			got.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := pair(t)
			g := giveMade(old, 1, soon, func() *Offer { return &Offer{State: make([]byte, 4<<20), Files: memfds(t, 2)} }, nil)
			leave(now)
			g.goesOn(t)
		})
	}
}

func helloFrame(v int) frame {
	return frame{kind: kindHello, payload: fmt.Appendf(nil, `{"program":"test","oldest":%d,"newest":%d}`, v, v)}
}

// TestReadyAndGone: the new one says that it is ready and dies. If the old one's word still
// gets into its socket nobody serves, as after any crash of the only process; if not, the old
// one goes on. Never both, never with a second owner.
func TestReadyAndGone(t *testing.T) {
	for range 50 {
		old, now := pair(t)
		g := give(old, 1, soon, &Offer{State: []byte("x"), Files: memfds(t, 1)}, nil)
		got, err := Take(now, "test", 1, patience)
		if err != nil {
			t.Fatal(err)
		}
		send(now, frame{kind: kindReady})
		got.Close()
		<-g.over
		if g.given == (g.thawed.Load() == 1) {
			t.Fatalf("given %v, thawed %d times", g.given, g.thawed.Load())
		}
	}
}

// TestSilence: a new process that says nothing any more is given up, and one that waits for
// the word of the old one then learns that nothing is its own.
func TestSilence(t *testing.T) {
	old, now := pair(t)
	g := give(old, 1, Patience{Hello: 20 * time.Millisecond, Ready: time.Second}, &Offer{State: []byte("x")}, nil)
	g.goesOn(t)
	if g.frozen.Load() != 0 {
		t.Fatal("frozen for nobody")
	}
	old.Close()
	now.Close()

	old, now = pair(t)
	send(now, helloFrame(1))
	g = give(old, 1, Patience{Hello: patience, Ready: 20 * time.Millisecond}, &Offer{State: []byte("x")}, nil)
	g.goesOn(t)
	old.Close()
	now.Close()

	old, now = pair(t)
	g = give(old, 1, soon, &Offer{State: []byte("x")}, nil)
	got, err := Take(now, "test", 1, patience)
	if err != nil {
		t.Fatal(err)
	}
	old.SetDeadline(time.Now()) // as if its patience had run out now: all has been sent
	g.goesOn(t)
	old.Close() // as who has called Give does
	if err := got.Accept(); err == nil {
		t.Fatal("accepted from a process that goes on")
	}
	got.Close()
}

// TestOldOneVanishes cuts at every step of the old process: the new one owns nothing.
func TestOldOneVanishes(t *testing.T) {
	for name, leave := range map[string]func(c *net.UnixConn){
		"at once":         func(*net.UnixConn) {},
		"after the files": func(c *net.UnixConn) { receive(c); (&Offer{}).sendFiles(c) },
		"before the word": func(c *net.UnixConn) { receive(c); send(c, frame{kind: kindState}); receive(c) },
		"another word": func(c *net.UnixConn) {
			receive(c)
			send(c, frame{kind: kindState})
			receive(c)
			send(c, frame{kind: kindReady})
		},
		"within the word": func(c *net.UnixConn) { receive(c); send(c, frame{kind: kindState}); receive(c); c.Write([]byte(magic)) },
		"damaged": func(c *net.UnixConn) {
			receive(c)
			h := (&frame{kind: kindState, payload: []byte("x")}).header()
			c.Write(append(h[:], 'y'))
		},
		"files that lack": func(c *net.UnixConn) {
			receive(c)
			h := (&frame{kind: kindFiles, files: []int{1}}).header()
			c.Write(h[:])
		},
		"too many at once": func(c *net.UnixConn) {
			receive(c)
			h := (&frame{kind: kindFiles, files: make([]int, perFrame+1)}).header()
			c.Write(h[:])
		},
		"too long": func(c *net.UnixConn) {
			receive(c)
			c.Write([]byte(magic + "\x04\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := pair(t)
			go func() { leave(old); old.Close() }()
			got, err := Take(now, "test", 1, patience)
			if err == nil {
				err = got.Accept()
				got.Close()
			}
			if err == nil {
				t.Fatal("accepted")
			}
		})
	}
}

// sendFiles sends one descriptor and no state.
func (o *Offer) sendFiles(c *net.UnixConn) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		return
	}
	send(c, frame{kind: kindFiles, files: []int{fd}})
	unix.Close(fd)
}

// FuzzReceive: whatever comes, receive ends with a frame within the limits or an error.
func FuzzReceive(f *testing.F) {
	for _, s := range []frame{helloFrame(1), {kind: kindState, payload: []byte("{}")}, {kind: kindReady}, {kind: kindFiles, files: []int{1}}, {kind: kindRefuse, payload: []byte("no")}} {
		h := s.header()
		f.Add(append(h[:], s.payload...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 32<<10 {
			return // more than the socket takes without a reader
		}
		old, now := pair(t)
		defer old.Close()
		defer now.Close()
		if _, err := old.Write(b); err != nil {
			t.Fatal(err)
		}
		old.CloseWrite()
		got, err := receive(now)
		if err != nil {
			return
		}
		most, _ := got.kind.limits()
		if len(got.payload) > most || len(got.files) > 0 || got.kind.String() == "" {
			t.Fatalf("%v with %d bytes and %d descriptors", got.kind, len(got.payload), len(got.files))
		}
	})
}

// A listener that is held and released at once accepts as before: who accepts may see the
// end of the pause before he has seen the pause.
func TestHeldForAMoment(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	l := Pausable(ln)
	accepted := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				accepted <- err
				return
			}
			c.Close()
		}
	}()
	for range 2000 {
		l.Hold()
		l.Release()
	}
	c, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("it was not accepted: %v", err)
	}
	c.Close()
	l.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// An old process with nothing to offer says why, though the new one is in the middle of what it
// says; one that says nothing is left alone.
func TestRefuse(t *testing.T) {
	why := errors.New("not now")
	old, now := pair(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		Refuse(old, why)
		old.Close()
	}()
	if _, err := Take(now, "new", 1, patience); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), why.Error()) {
		t.Error(err)
	}
	<-over
	old, now = pair(t)
	now.Close()
	Refuse(old, why)
}

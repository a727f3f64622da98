package attach

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// fakeNBD is a /dev/nbdN without a driver.
type fakeNBD struct {
	conns   []net.Conn // the driver's ends
	missing error      // why the node does not appear
	ended   int        // times that it was disconnected
}

func (d *fakeNBD) WaitReady(time.Duration) error { return d.missing }
func (d *fakeNBD) Resize(int64) error            { return nil }
func (d *fakeNBD) Disconnect() error {
	d.ended++
	for _, c := range d.conns {
		c.Close()
	}
	return nil
}

// socketPair is what a kernel device has in common with its server.
func socketPair(t *testing.T) (ends [2]net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "nbd")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Cleanup(func() { ends[1].Close() })
	return ends
}

// A device whose node does not appear is given back; where any way will do, the socket serves without it.
func TestNoNodeForNBD(t *testing.T) {
	missing := errors.New("no node")
	for device, want := range map[string]error{"auto": nil, "/dev/nbd": missing, "/dev/nbd77": missing} {
		a, _, err := Attach(t.Context(), options(t, &fakeLUN{data: make([]byte, 1<<20)}))
		if err != nil {
			t.Fatal(err)
		}
		a.opt.Device = device
		ends := socketPair(t)
		d := &fakeNBD{conns: ends[1:], missing: missing}
		if err := a.useNBD(d, "/dev/nbd77", 1<<20, ends[:1]); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", device, err)
		}
		if d.ended != 1 || a.Record.Device != "" {
			t.Errorf("%s: disconnected %d times, the record has %q", device, d.ended, a.Record.Device)
		}
		if err := a.undo(); err != nil || d.ended != 1 {
			t.Errorf("%s: at the end: %v; disconnected %d times", device, err, d.ended)
		}
	}
}

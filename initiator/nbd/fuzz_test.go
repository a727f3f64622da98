package nbd

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// script plays a hostile client's bytes and swallows what the server says.
type script struct {
	io.Reader
	io.Writer
}

func FuzzNegotiation(f *testing.F) {
	flags := []byte{0, 0, 0, 3}
	seed := func(parts ...[]byte) { f.Add(append(append([]byte(nil), flags...), bytes.Join(parts, nil)...)) }
	seed(optionBytes(optStructuredReply, nil), optionBytes(optSetMeta, metaQuery("vol", contextAllocation)), optionBytes(optGo, goData("vol", 3, 1)))
	seed(optionBytes(optList, nil), optionBytes(optInfo, goData("", 0)), optionBytes(optExportName, []byte("vol")))
	seed(optionBytes(optListMeta, metaQuery("vol")), optionBytes(optAbort, nil))
	seed(optionBytes(optGo, []byte{0xff, 0xff, 0xff, 0xff}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	s, err := NewServer(Config{Exports: []*Export{{Name: "vol", LUN: &memLUN{info: blockdev.Info{Size: 1 << 20, BlockSize: 512}}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		g := &negotiation{srv: s, rw: script{bytes.NewReader(in), &out}}
		a, err := g.run()
		if (a.export != nil) == (err != nil) {
			t.Errorf("export %v and error %v", a.export, err)
		}
		if out.Len() < 18 {
			t.Errorf("no greeting")
		}
	})
}

// Whatever a client sends after the negotiation, the server answers or hangs
// up, and gives back everything.
func FuzzTransmission(f *testing.F) {
	f.Add(requestBytes(0, CmdRead, 1, 0, 4096), true)
	f.Add(append(requestBytes(cmdFUA, CmdWrite, 1, 512, 512), make([]byte, 512)...), true)
	f.Add(requestBytes(0, CmdWrite, 1, 0, 1<<31), false)
	f.Add(append(requestBytes(0, CmdBlockStatus, 1, 0, 1<<20), requestBytes(cmdFastZero, CmdWriteZeroes, 2, 1<<63, 7)...), true)
	f.Add(append(requestBytes(0, CmdTrim, 1, 0, 512), requestBytes(0, CmdDisc, 2, 0, 0)...), false)
	f.Add(requestBytes(0, CmdWrite, 1, 1<<40, 600), false)
	f.Add(binary.BigEndian.AppendUint32(nil, 0xdeadbeef), true)
	f.Fuzz(func(t *testing.T, in []byte, structured bool) {
		if len(in) > 64<<10 {
			return
		}
		l := newMemLUN(t, 64<<10)
		s, err := NewServer(Config{Exports: []*Export{{LUN: l}}, Depth: 4})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := socketPair(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.begin(ours)
			defer s.end(ours)
			s.transmit(ours, agreed{export: s.exports[0], structured: structured, allocation: structured})
		}()
		theirs.SetDeadline(time.Now().Add(30 * time.Second))
		go func() {
			theirs.Write(in)
			theirs.(*net.UnixConn).CloseWrite()
		}()
		if _, err := io.Copy(io.Discard, theirs); os.IsTimeout(err) {
			t.Error("the server hangs")
		}
		theirs.Close()
		<-done
	})
}

func socketPair(t testing.TB) (a, b net.Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) net.Conn {
		f := os.NewFile(uintptr(fd), "socketpair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return conn(fds[0]), conn(fds[1])
}

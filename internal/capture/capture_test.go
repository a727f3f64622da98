package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/pcaptest"
	"softiser/internal/sockio"
)

var (
	client = netip.MustParseAddrPort("192.0.2.7:40000")
	server = netip.MustParseAddrPort("192.0.2.1:3260")
	noon   = time.Unix(0x60000000, 0x12345678)
)

// writeFile makes a file of what write does, and reads it back.
func writeFile(t *testing.T, write func(*file) error) (raw []byte, conns []*pcaptest.Conn) {
	t.Helper()
	var b bytes.Buffer
	f, err := newFile(&b)
	if err == nil {
		err = write(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if conns, err = pcaptest.Read(name); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), conns
}

// The bytes of a file with a handshake, a question and an answer, in pieces. The checksums are
// those that tshark finds right.
func TestGolden(t *testing.T) {
	raw, _ := writeFile(t, func(f *file) error {
		s := newStream(client, server)
		if err := f.open(noon, s); err != nil {
			return err
		}
		if err := f.stream(noon, s, fromClient, 0, []byte("ask")); err != nil {
			return err
		}
		if err := f.stream(noon, s, fromServer, 0, []byte("answer")); err != nil {
			return err
		}
		return f.end(noon, s, fromClient, 3)
	})
	const packet = "00000060 78563412 "
	want := strings.Join([]string{
		"4d3cb2a1 0200 0400 00000000 00000000 00000400 01000000",
		packet + "3e000000 3e000000 020000000002 020000000001 0800 4500 0030 0000 4000 4006 b6bf c0000207 c0000201 9c40 0cbc 00000000 00000000 7002 ffff 5ce8 0000 0204ffd7 0103030e",
		packet + "3e000000 3e000000 020000000001 020000000002 0800 4500 0030 0000 4000 4006 b6bf c0000201 c0000207 0cbc 9c40 00000000 00000001 7012 ffff 5cd7 0000 0204ffd7 0103030e",
		packet + "36000000 36000000 020000000002 020000000001 0800 4500 0028 0000 4000 4006 b6c7 c0000207 c0000201 9c40 0cbc 00000001 00000001 5010 ffff 82cd 0000",
		packet + "39000000 39000000 020000000002 020000000001 0800 4500 002b 0000 4000 4006 b6c4 c0000207 c0000201 9c40 0cbc 00000001 00000001 5018 ffff b64e 0000 61736b",
		packet + "3c000000 3c000000 020000000001 020000000002 0800 4500 002e 0000 4000 4006 b6c1 c0000201 c0000207 0cbc 9c40 00000001 00000004 5018 ffff 4864 0000 616e73776572",
		packet + "36000000 36000000 020000000002 020000000001 0800 4500 0028 0000 4000 4006 b6c7 c0000207 c0000201 9c40 0cbc 00000004 00000007 5011 ffff 82c3 0000",
	}, " ")
	b, err := hex.DecodeString(strings.ReplaceAll(want, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, b) {
		t.Errorf("got\n%x\nwant\n%x", raw, b)
	}
}

// Long data goes in segments of 65,495 bytes, over IPv6 too, and a gap stays one.
func TestSegments(t *testing.T) {
	long := make([]byte, 2*maxSegment+1)
	for i := range long {
		long[i] = byte(i / 7)
	}
	for _, ends := range [][2]string{{"192.0.2.7:40000", "192.0.2.1:3260"}, {"[2001:db8::7]:40000", "[2001:db8::1]:3260"}} {
		s := newStream(netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1]))
		_, conns := writeFile(t, func(f *file) error {
			if err := f.open(noon, s); err != nil {
				return err
			}
			return f.stream(noon, s, fromServer, 0, long)
		})
		c := conns[0]
		if !c.Complete || c.Client != s.client || c.Server != s.server || !bytes.Equal(c.S2C, long) {
			t.Errorf("%v: complete %v, %d bytes", ends, c.Complete, len(c.S2C))
		}
		var sizes []int
		for _, g := range c.Segs {
			sizes = append(sizes, g.Len)
		}
		if !slices.Equal(sizes, []int{65495, 65495, 1}) {
			t.Errorf("%v: segments of %v", ends, sizes)
		}
	}
	_, conns := writeFile(t, func(f *file) error {
		s := newStream(client, server)
		if err := f.open(noon, s); err != nil {
			return err
		}
		if err := f.stream(noon, s, fromClient, 0, []byte("before")); err != nil {
			return err
		}
		return f.stream(noon, s, fromClient, 100, []byte("after"))
	})
	if conns[0].Complete || string(conns[0].C2S) != "before" {
		t.Errorf("a gap: complete %v, %q", conns[0].Complete, conns[0].C2S)
	}
}

// FPDUs begin where segments do, however they were read: a byte at a time, all at once, behind
// an iSCSI login; and nothing is lost of what is not whole at the end.
func TestFPDUs(t *testing.T) {
	frame := append(slices.Clone(requestKey), 0x40, 1, 0, 3, 'p', 'r', 'i')
	var b []byte
	starts := map[int]bool{0: true}
	for _, n := range []int{18, 1, 60000, 6000, 0xfff0, 2} {
		starts[len(frame)+len(b)] = true
		if n == 0xfff0 { // larger than a segment
			starts[len(frame)+len(b)+maxSegment] = true
		}
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		b = append(b, make([]byte, (2+n+3)&^3+4-2)...)
	}
	last := len(frame) + len(b)
	b = append(b, 1, 0, 'n', 'o', 't')
	for _, before := range []string{"", "login"} {
		for _, piece := range []int{1, 7, 4096, len(b)} {
			_, conns := writeFile(t, func(f *file) error {
				s := newStream(client, server)
				if err := f.open(noon, s); err != nil {
					return err
				}
				off := uint64(len(before))
				if err := f.stream(noon, s, fromClient, 0, []byte(before)); err != nil {
					return err
				}
				if err := f.stream(noon, s, fromClient, off, frame); err != nil {
					return err
				}
				off += uint64(len(frame))
				for p := range slices.Chunk(b, piece) {
					if err := f.stream(noon, s, fromClient, off, p); err != nil {
						return err
					}
					off += uint64(len(p))
				}
				return f.end(noon, s, fromClient, off)
			})
			c := conns[0]
			if want := before + string(frame) + string(b); !c.Complete || string(c.C2S) != want {
				t.Fatalf("pieces of %d: complete %v, %d of %d bytes", piece, c.Complete, len(c.C2S), len(want))
			}
			n := 0
			for _, g := range c.Segs {
				if at := g.Off - len(before); at >= 0 && !starts[at] && at != last {
					t.Errorf("pieces of %d: a segment of %d bytes begins at %d", piece, g.Len, at)
				}
				n++
			}
			if n < 5 || n > 10 {
				t.Errorf("pieces of %d: %d segments", piece, n)
			}
		}
	}
}

// discard is a file that nobody reads.
type discard struct{ n int }

func (d *discard) Write(p []byte) (int, error) { d.n += len(p); return len(p), nil }
func (d *discard) Flush() error                { return nil }

// A capture ends with its bytes, with its time, and with its connection.
func TestRunEnds(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int64
		time  time.Duration
		close bool
	}{
		"bytes": {10, time.Hour, false}, "time": {1 << 20, 2 * time.Second, false}, "connection": {1 << 20, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := loopback.Pair(t)
			here := near.LocalAddr().String()
			q := Request{Filter: sockio.TapFilter{Local: netip.MustParseAddrPort(here), New: true, Most: 1}, Bytes: c.bytes, Time: c.time}
			var d discard
			begun, ended := make(chan struct{}), make(chan Result, 1)
			go func() {
				res, err := Run(t.Context(), q, begins{&d, begun})
				if err != nil {
					t.Error(err)
				}
				ended <- res
			}()
			<-begun
			conn, err := sockio.New(near, sockio.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if n, err := conn.Send([]byte("not of a stream")); n == 0 || err != nil { // below a layer
				t.Fatal(n, err)
			}
			v := make([]sockio.Vec, 1)
			sockio.Set(&v[0], []byte("a question"))
			if n, err := conn.Writev(v, true); n != 10 || err != nil {
				t.Fatal(n, err)
			}
			if c.close {
				conn.Close()
			}
			res := <-ended
			if res != (Result{Connections: 1, Bytes: 10}) || d.n < fileHeader+4*(packetHeader+54)+10 {
				t.Errorf("%+v, %d bytes", res, d.n)
			}
			far.Close()
		})
	}
}

// begins says when the head of the file has been written.
type begins struct {
	*discard
	begun chan struct{}
}

func (b begins) Write(p []byte) (int, error) {
	if b.n == 0 {
		close(b.begun)
	}
	return b.discard.Write(p)
}

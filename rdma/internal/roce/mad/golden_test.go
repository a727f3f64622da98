package mad_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/roce/mad"
)

// mads are the MADs of a capture: what UD Sends to queue pair 1 carry.
func mads(t testing.TB, name string) (out [][]byte) {
	const bth, deth, udSendOnly = 12, 8, 0x64
	for _, d := range pcaptest.RoCE(t, name) {
		if p := d.Payload(); p[0] == udSendOnly && bytes.Equal(p[5:8], []byte{0, 0, mad.GSIQPN}) {
			out = append(out, p[bth+deth:len(p)-4])
		}
	}
	return out
}

// Everything that Linux's ib_cm and rdma_cm send is decoded and comes out as it was.
func TestCapturesRoundTrip(t *testing.T) {
	seen := map[mad.Attr]int{}
	for _, name := range pcaptest.RoCENames(t, "") {
		for i, b := range mads(t, name) {
			tid, m, err := mad.Parse(b)
			if err != nil {
				t.Fatalf("%s: MAD %d: %v", name, i, err)
			}
			if got := mad.Append(nil, tid, m); !bytes.Equal(got, b) {
				t.Errorf("%s: MAD %d, %v, encoded as\n%x, was\n%x", name, i, m.Attr(), got, b)
			}
			seen[m.Attr()]++
			switch m := m.(type) {
			case *mad.REQ:
				ipHeader(t, m.Private[:], m.ServiceID, mad.ProtocolTCP)
			case *mad.SIDRREQ:
				ipHeader(t, m.Private[:], m.ServiceID, mad.ProtocolUDP)
			}
		}
	}
	for _, a := range []mad.Attr{mad.AttrREQ, mad.AttrREP, mad.AttrRTU, mad.AttrREJ, mad.AttrDREQ, mad.AttrDREP, mad.AttrSIDRREQ, mad.AttrSIDRREP} {
		if seen[a] == 0 {
			t.Errorf("no %v in the captures", a)
		}
	}
	t.Log(seen)
}

func ipHeader(t *testing.T, private []byte, s mad.ServiceID, want mad.Protocol) {
	t.Helper()
	var h mad.IPHeader
	if err := h.Parse(private); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, mad.IPHeaderLen)
	h.Put(got)
	if !bytes.Equal(got, private[:mad.IPHeaderLen]) {
		t.Errorf("addresses encoded as\n%x, were\n%x", got, private[:mad.IPHeaderLen])
	}
	p, port, ok := s.Port()
	if !ok || p != want || mad.ServiceOf(p, port) != s {
		t.Errorf("service ID %#x: protocol %d, port %d, %v", uint64(s), p, port, ok)
	}
}

// The fields of one request, as another decoder shows them.
func TestRequestOfRping(t *testing.T) {
	_, m, err := mad.Parse(mads(t, "rping-v4")[0])
	if err != nil {
		t.Fatal(err)
	}
	r, ok := m.(*mad.REQ)
	if !ok {
		t.Fatalf("%v comes first", m.Attr())
	}
	var h mad.IPHeader
	if err := h.Parse(r.Private[:]); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(r.ServiceID, r.ResponderResources, r.InitiatorDepth, r.RemoteCMTimeout, r.LocalCMTimeout, r.RetryCount, r.RNRRetry, r.PathMTU,
		r.MaxCMRetries, r.Service, r.Primary.AckTimeout, r.Primary.HopLimit, h.Src, h.Dst, r.Primary.RemoteGID == mad.GID(h.Dst))
	if want := "tcp/7174 1 1 20 20 7 7 3 15 0 19 64 10.9.0.2 10.9.0.1 true"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Connections without rdma_cm are not a port's.
func TestServiceIDs(t *testing.T) {
	for s, want := range map[mad.ServiceID]string{
		0x0000000001060bcd: "tcp/3021", 0x0000000001110001: "udp/1",
		0x00000000013f1c06: "0x00000000013f1c06", 0x1000000001060bcd: "0x1000000001060bcd", 7: "0x0000000000000007",
	} {
		if s.String() != want {
			t.Errorf("%v, want %s", s, want)
		}
	}
	if _, _, ok := mad.ServiceID(0x1000000001060bcd).Port(); ok {
		t.Error("a service ID with other high bits is taken for a port")
	}
}

func TestReasons(t *testing.T) {
	for r, want := range map[mad.Reason]string{
		mad.ReasonConsumer: "rejected by the application (28)", mad.ReasonVendorOption: "vendor option not supported (35)",
		0: "unknown reason (0)", 34: "unknown reason (34)", 36: "unknown reason (36)", 65535: "unknown reason (65535)",
	} {
		if r.String() != want {
			t.Errorf("%v, want %s", r, want)
		}
	}
	if s := mad.SIDRStatus(6).String(); s != "unknown status (6)" {
		t.Error(s)
	}
	if s := mad.Attr(0x1b).String(); s != "Attr(0x001b)" {
		t.Error(s)
	}
	if mad.AttrAPR.String() != "APR" || mad.AttrREQ.String() != "REQ" {
		t.Error("names of attributes are out of step")
	}
}

func TestIPHeaderVersions(t *testing.T) {
	b := make([]byte, mad.IPHeaderLen)
	h := mad.IPHeader{SrcPort: 1, Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2")}
	h.Put(b)
	for _, change := range [][2]byte{{0, 0x10}, {0, 1}, {1, 0}, {1, 0x50}} {
		c := bytes.Clone(b)
		c[change[0]] = change[1]
		if err := new(mad.IPHeader).Parse(c); err == nil {
			t.Errorf("byte %d = %#x passed", change[0], change[1])
		}
	}
}

// Every bit of a message is a field's or reserved, and no field reaches into another.
func TestEveryBit(t *testing.T) {
	reserved := map[mad.Attr]map[int]byte{ // offset in the message: bits
		mad.AttrREQ: {4: 0xff, 24: 0xff, 25: 0xff, 26: 0xff, 27: 0xff, 36: 0xff, 37: 0xff, 38: 0xff, 40: 0xff, 41: 0xff, 42: 0xff, 50: 0x08,
			90: 0x0f, 91: 0xc0, 94: 0x07, 95: 0x07, 134: 0x0f, 135: 0xc0, 138: 0x07, 139: 0x07},
		mad.AttrREP: {16: 0xff, 17: 0xff, 18: 0xff, 27: 0x0f},
		mad.AttrRTU: {}, mad.AttrDREP: {}, mad.AttrSIDRREP: {},
		mad.AttrREJ:     {8: 0x3f, 9: 0x01},
		mad.AttrMRA:     {8: 0x3f, 9: 0x07},
		mad.AttrDREQ:    {11: 0xff},
		mad.AttrSIDRREQ: {6: 0xff, 7: 0xff},
	}
	for a, holes := range reserved {
		for bit := range 8 * (mad.Len - 24) {
			b := mad.Append(nil, 1, &mad.RTU{})
			b[17] = byte(a)
			at, one := bit/8, byte(1)<<(bit%8)
			b[24+at] |= one
			_, m, err := mad.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if holes[at]&one != 0 {
				b[24+at] = 0
			}
			if got := mad.Append(nil, 1, m); !bytes.Equal(got, b) {
				t.Errorf("%v: bit %#02x of byte %d comes out as\n%x, want\n%x", a, one, at, got, b)
			}
		}
	}
}

// What is not a whole MAD of the right kind is refused, in words that say what it is.
func TestParseRefuses(t *testing.T) {
	good := mad.Append(nil, 7, &mad.RTU{LocalCommID: 1, RemoteCommID: 2})
	for n := range good {
		if _, _, err := mad.Parse(good[:n]); err == nil {
			t.Fatalf("%d bytes were taken for a MAD", n)
		}
	}
	for _, at := range []int{0, 1, 2, 3, 16, 17} {
		b := bytes.Clone(good)
		b[at] ^= 0x20
		if _, _, err := mad.Parse(b); err == nil {
			t.Errorf("byte %d changed: no error", at)
		}
	}
	lap := bytes.Clone(good)
	lap[17] = byte(mad.AttrLAP)
	if _, _, err := mad.Parse(lap); err == nil || err.Error() != mad.ErrUnsupported.Error()+": LAP" {
		t.Error(err)
	}
}

// A message that has been parsed says everything about what is sent: encoded and
// parsed again it is the same.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"rping-v4", "rping-v6", "cm-rej-consumer", "cm-stale-conn", "udaddy-sidr"} {
		for _, b := range mads(f, name) {
			f.Add(b)
		}
	}
	f.Add(mad.Append(nil, 1, &mad.MRA{LocalCommID: 1, RemoteCommID: 2, Which: mad.WhichREP, ServiceTimeout: 20}))
	f.Fuzz(func(t *testing.T, b []byte) {
		tid, m, err := mad.Parse(b)
		if err != nil {
			return
		}
		once := mad.Append(nil, tid, m)
		tid2, m2, err := mad.Parse(once)
		if err != nil || tid2 != tid {
			t.Fatalf("%v, transaction %x, was %x", err, tid2, tid)
		}
		if twice := mad.Append(nil, tid2, m2); !bytes.Equal(once, twice) {
			t.Fatalf("%v: %x, then %x", m.Attr(), once, twice)
		}
		if r, ok := m.(*mad.REQ); ok {
			var h mad.IPHeader
			if h.Parse(r.Private[:]) == nil {
				h.Put(r.Private[:])
			}
		}
	})
}

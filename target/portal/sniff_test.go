package portal

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"softiser/rdma"
)

// mpaRequest is an MPA Request frame as Linux sends it, of revision 2 where enhanced says so.
func mpaRequest(enhanced bool, private ...byte) []byte {
	flags, rev := byte(0), byte(1)
	if enhanced {
		flags, rev = mpaEnhanced, 2
		private = append([]byte{0, 128, 0, 0}, private...)
	}
	b := binary.BigEndian.AppendUint16(append([]byte(mpaKey), flags, rev), uint16(len(private)))
	return append(b, private...)
}

// A portal for RoCE has the address of one interface, and speaks what there is over RDMA; its
// requests, whose private data has zeros behind it, are told apart as those of MPA are.
func TestRoCE(t *testing.T) {
	for _, c := range []struct{ listen, want, err string }{
		{"roce://127.0.0.2", "roce://127.0.0.2:3260", ""},
		{"roce://[::1]:4420", "roce://[::1]:4420", ""},
		{"roce://[::1]", "roce://[::1]:3260", ""},
		{"roce://", "", "one interface"},
		{"roce://0.0.0.0:3260", "", "one interface"},
	} {
		p := Config{Listen: c.listen, StreamLogin: true, IRD: MaxReads}
		err := p.fill()
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", c.listen, err)
			}
			continue
		}
		if err != nil || p.Listen != c.want || p.Provider() != rdma.ProviderRoCE || p.RDMA().IRD != maxRoCEReads || p.StreamLogin {
			t.Errorf("%+v, %v", p, err)
		}
		for h, off := range map[Hello]bool{{ISCSI, RoCE}: false, {NVMe, RoCE}: false, {ISCSI, TCP}: true, {NVMe, TCP}: true, {NVMe, TLS}: true} {
			if p.off(h) != off {
				t.Errorf("%s: %v is off: %t", c.listen, h, !off)
			}
		}
	}
	for _, c := range []Config{{Listen: "roce://127.0.0.1", Freebind: true}, {Listen: "roce://127.0.0.1", NoISER: true, NoNVMeRDMA: true}} {
		if c.fill() == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	padded := func(b ...byte) []byte { return append(b, make([]byte, 56-len(b))...) }
	for _, c := range []struct {
		p    []byte
		want Hello
	}{{padded(0x80), Hello{ISCSI, RoCE}}, {padded(), Hello{ISCSI, RoCE}}, {padded(0, 0, 1, 0, 32, 0, 31), Hello{NVMe, RoCE}}, {padded(7, 7, 7), Hello{NVMe, RoCE}}} {
		if got, err := classifyPrivate(c.p, RoCE); got != c.want || err != nil {
			t.Errorf("% x: %v, %v", c.p[:8], got, err)
		}
	}
}

// What a connection is about is known from the byte on that decides it, and not before.
func TestClassify(t *testing.T) {
	nvme := func(format, qid, recv, send byte) []byte {
		return append([]byte{format, 0, qid, 0, recv, 0, send, 0}, make([]byte, 24)...)
	}
	iser, rdma := Hello{ISCSI, RDMA}, Hello{NVMe, RDMA}
	for _, c := range []struct {
		name string
		b    []byte
		want Hello
		err  error
	}{
		{"login", []byte{0x43}, Hello{ISCSI, TCP}, nil},
		{"login, not immediate", []byte{0x03}, Hello{ISCSI, TCP}, nil},
		{"ICReq", []byte(icReq), Hello{NVMe, TCP}, nil},
		{"Linux' iSER", mpaRequest(true, 0x80, 0, 0, 0), iser, nil},
		{"without remote invalidation", mpaRequest(true, 0xC0, 0, 0, 0), iser, nil},
		{"nothing", mpaRequest(true), iser, nil},
		{"zeroes", mpaRequest(true, make([]byte, 40)...), iser, nil},
		{"iSER, revision 1", mpaRequest(false, 0x80, 0, 0, 0), iser, nil},
		{"Linux' NVMe, admin queue", mpaRequest(true, nvme(0, 0, 32, 31)...), rdma, nil},
		{"I/O queue", mpaRequest(true, nvme(0, 1, 128, 127)...), rdma, nil},
		{"NVMe, revision 1", mpaRequest(false, nvme(0, 1, 128, 127)...), rdma, nil},
		{"NVMe, too short", mpaRequest(true, 0, 0, 1, 0, 32, 0, 31, 0), rdma, nil},
		{"NVMe of another format", mpaRequest(true, nvme(1, 1, 32, 31)...), rdma, nil},
		{"NVMe without receive queue", mpaRequest(true, nvme(0, 0, 0, 31)...), rdma, nil},
		{"something else", mpaRequest(true, 1, 2, 3, 4), Hello{}, errPrivate},
		{"a flag that iSER does not have", mpaRequest(true, 0x20, 0, 0, 0), Hello{}, errPrivate},
		{"iSER and more", mpaRequest(true, 0x80, 0, 0, 0, 1), Hello{}, errPrivate},
		{"no word in revision 1", append([]byte(mpaKey), mpaEnhanced, 1, 0, 4, 0x80, 0, 0, 0), iser, nil},
		{"no word in revision 1, NVMe", append(append([]byte(mpaKey), mpaEnhanced, 1, 0, 32), nvme(0, 0, 32, 31)...), rdma, nil},
		{"no word in revision 2 without S", append([]byte(mpaKey), 0x40, 2, 0, 4, 0x80, 0, 0, 0), iser, nil},
		{"no word in revision 2 without S, NVMe", append(append([]byte(mpaKey), 0x40, 2, 0, 32), nvme(0, 0, 32, 31)...), rdma, nil},
		{"the word is missing", append([]byte(mpaKey), mpaEnhanced, 2, 0, 3), iser, nil}, // iSER refuses it
		{"too much", append([]byte(mpaKey), 0, 1, 2, 1), iser, nil},
		{"noise", []byte("GET / HTTP/1.1"), Hello{}, errUnknown},
		{"nearly MPA", []byte("MPA ID Rep Frame"), Hello{}, errUnknown},
	} {
		if got, err := classify(c.b); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
		if got, err := classify(append(c.b, 0xFF)); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s, and a byte more: %v, %v", c.name, got, err)
		}
		if c.err != nil {
			continue
		}
		for n := range c.b {
			if got, err := classify(c.b[:n]); got.known() || err != nil {
				t.Fatalf("%s is %v, %v after %d bytes", c.name, got, err, n)
			}
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(mpaRequest(true, 0x80, 0, 0, 0))
	f.Add(mpaRequest(false, make([]byte, 32)...))
	f.Add([]byte(icReq))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := classify(b)
		if h.known() == (err != nil) && err != nil {
			t.Errorf("%v, %v", h, err)
		}
		// More bytes do not change what has been said.
		if h.known() || err != nil {
			if again, err2 := classify(append(b, 0)); again != h || (err == nil) != (err2 == nil) {
				t.Errorf("%v, %v became %v, %v", h, err, again, err2)
			}
		}
	})
}

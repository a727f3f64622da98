package iscsi

import (
	"testing"

	"softiser/internal/iscsi"
)

func TestReadWrite(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	data := pattern(1<<20, 7)
	r.write10(100, data)
	mustEqual(t, "read back", r.read10(100, 2048), data)
	got := make([]byte, len(data))
	if _, err := s.vol.ReadAt(got, 100*512); err != nil {
		t.Fatal(err)
	}
	mustEqual(t, "the volume", got, data)
	r.logout()
}

func TestNop(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	ping := pattern(300, 1)
	p := r.nop(ping)
	if p.ITT() != r.itt || p.TTT() != iscsi.ReservedTag {
		t.Errorf("NOP-In: ITT %#x TTT %#x", p.ITT(), p.TTT())
	}
	mustEqual(t, "ping data", p.data, ping)
	r = s.dial()
	r.isid[5] = 77
	r.mustLogin(testIQN, "MaxRecvDataSegmentLength=512")
	ping = pattern(1000, 2)
	mustEqual(t, "ping data of an initiator that has not room for all of it", r.nop(ping).data, ping[:512])
}

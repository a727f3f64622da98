package iser

import (
	"net"
	"strings"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/iscsitcp"
	"softiser/internal/loopback"
)

func upgradePair(d *Device, hello bool) datamovertest.Pair {
	return func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
		a, b := loopback.Pair(t)
		i, err := d.Upgrade(a, iscsi.RoleInitiator, iscsitcp.Config{}, ConnConfig{RequireHello: hello})
		if err != nil {
			t.Fatal(err)
		}
		g, err := d.Upgrade(b, iscsi.RoleTarget, iscsitcp.Config{}, ConnConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return i, g
	}
}

// RFC 7145's own start-up passes the same suite.
func TestUpgradeConformance(t *testing.T) {
	for _, hello := range []bool{false, true} {
		t.Run(map[bool]string{false: "NoHello", true: "Hello"}[hello], func(t *testing.T) {
			d := device(t)
			datamovertest.Run(t, upgradePair(d, hello))
		})
	}
}

// After login the connection is RDMA, and says so.
func TestUpgradeDescribes(t *testing.T) {
	s := datamovertest.Open(t, upgradePair(device(t), false), datamovertest.DefaultOptions())
	if err := s.Initiator.Do(0x28, 0, [][]byte{make([]byte, 100)}, 0, 1); err != nil {
		t.Fatal(err)
	}
	if !s.Initiator.Params.RDMAExtensions || !s.Initiator.Params.TaggedBufferForSolicitedDataOnly {
		t.Errorf("%+v", s.Initiator.Params)
	}
	if d := s.Initiator.Datamover().Describe(); !strings.HasPrefix(d, "iSER") || !strings.Contains(d, "stream") {
		t.Errorf("described as %q", d)
	}
	s.Close()
}

// An upgradable end and a plain one agree on a plain session.
func TestUpgradeWithPlainPeer(t *testing.T) {
	d := device(t)
	for _, plain := range []iscsi.Role{iscsi.RoleInitiator, iscsi.RoleTarget} {
		t.Run(plain.String(), func(t *testing.T) {
			var initiator iscsi.Datamover
			s := datamovertest.Open(t, func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
				a, b := loopback.Pair(t)
				var dms [2]iscsi.Datamover
				for r, nc := range []net.Conn{a, b} {
					role := iscsi.Role(r)
					var err error
					if role == plain {
						dms[r], err = iscsitcp.New(nc, role, iscsitcp.Config{})
					} else {
						dms[r], err = d.Upgrade(nc, role, iscsitcp.Config{}, ConnConfig{})
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				initiator = dms[0]
				return dms[0], dms[1]
			}, datamovertest.DefaultOptions())
			defer s.Close()
			if s.Initiator.Params.RDMAExtensions {
				t.Error("RDMA with a plain peer")
			}
			for range 2 { // a command that is given up is forgotten, and its tag free
				b := &iscsi.TaskBuffers{In: [][]byte{make([]byte, 512)}}
				cmd := iscsi.PDU{Bufs: b}
				cmd.BHS.NewSCSICommand().SetITT(0x7777)
				if err := initiator.SendControl(&cmd); err != nil {
					t.Error(err)
				}
				initiator.ReleaseTask(b)
			}
			for _, op := range []byte{0x28, 0x2a} {
				if err := s.Initiator.Do(op, 0, [][]byte{make([]byte, 300000)}, 1, 3); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

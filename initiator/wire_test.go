package initiator

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// What leaves, byte by byte: a READ, a WRITE with all of its data, and one that
// the target has to ask for.
func TestCommandBytes(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		var seen []iscsi.BHS
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			seen = append(seen, p.BHS)
			return false
		}
		buf := make([]byte, 64<<10)
		for _, r := range []*Request{
			{Op: OpRead, Off: 512 * 0x0634, Buf: buf[:4096]},
			{Op: OpWrite, Off: 512, Buf: buf[:1024], FUA: true},
			{Op: OpWrite, Off: 512, Buf: buf},
		} {
			if err := l.Do(context.Background(), r); err != nil {
				t.Fatal(err)
			}
		}
		letGo(ft)
		want := []string{
			"\x01\xc1\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "....\x00\x00\x10\x00" + "........" + "\x28\x00\x00\x00\x06\x34\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00",
			"\x01\xa1\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "....\x00\x00\x04\x00" + "........" + "\x2a\x08\x00\x00\x00\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00",
			// InitialR2T=No: unsolicited Data-Out follows, so F is clear.
			"\x01\x21\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "....\x00\x01\x00\x00" + "........" + "\x2a\x00\x00\x00\x00\x01\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00",
		}
		for i, w := range want {
			b := seen[i]
			copy(b[16:20], "....")
			copy(b[24:32], "........")
			if !bytes.Equal(b[:], []byte(w)) {
				t.Errorf("command %d:\n got % x\nwant % x", i, b, w)
			}
		}
		for i := 1; i < len(seen); i++ {
			if seen[i].CmdSN() != seen[i-1].CmdSN()+1 || seen[i].ExpStatSN() != seen[i-1].ExpStatSN()+1 {
				t.Errorf("command %d: CmdSN %d, ExpStatSN %d after %d, %d", i, seen[i].CmdSN(), seen[i].ExpStatSN(), seen[i-1].CmdSN(), seen[i-1].ExpStatSN())
			}
		}
	})
}

// A CDB of 32 bytes travels in an additional header segment.
func TestLongCDB(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		var ahs []byte
		var head iscsi.BHS
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			ahs, head = p.AHS, p.BHS
			c.status(p, spc.StatusGood, nil, 0)
			return true
		}
		cdb := make([]byte, 32)
		for i := range cdb {
			cdb[i] = byte(i + 1)
		}
		if err := l.Do(context.Background(), &Request{Op: OpCDB, CDB: cdb}); err != nil {
			t.Fatal(err)
		}
		letGo(ft)
		rest, err := iscsi.ParseCommandAHS(ahs)
		if err != nil || !bytes.Equal(rest.CDB, cdb[16:]) || !bytes.Equal(head.SCSICommand().CDB(), cdb[:16]) {
			t.Errorf("header % x, segment % x, %v", head, ahs, err)
		}
	})
}

func TestDiscoverInPieces(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.TargetName = ""
		ts, err := Discover(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(ts) != 2 || ts[0].Name != "iqn.2026-11.softiser:a" || ts[1].Portals[0] != (Portal{"[2001:db8::1]:3261", 2}) {
			t.Fatalf("%+v", ts)
		}
	})
}

// A target that says one thing too many has told what it was asked for, although the logout is not answered as it should be.
func TestDiscoverWithoutLogout(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.onText = func(d *fakeDM, p *iscsi.PDU) {
			for range 2 {
				var r iscsi.PDU
				r.BHS.NewTextResponse().SetFinal(true)
				r.BHS.SetITT(p.BHS.ITT())
				r.BHS.SetTTT(iscsi.ReservedTag)
				r.Data = iscsi.AppendTarget(nil, &iscsi.DiscoveredTarget{Name: "iqn.2026-11.softiser:a"})
				d.win.Advance()
				d.answer(&r)
			}
		}
		cfg := ft.config()
		cfg.TargetName = ""
		if ts, err := Discover(context.Background(), cfg); err != nil || len(ts) != 1 {
			t.Errorf("%+v, %v", ts, err)
		}
	})
}

// A portal that is reached on a link, which initiators call what they like, tells of addresses there.
func TestDiscoverOnLink(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.onText = func(d *fakeDM, p *iscsi.PDU) {
			var r iscsi.PDU
			q := r.BHS.NewTextResponse()
			q.SetFinal(true)
			r.BHS.SetITT(p.BHS.ITT())
			r.BHS.SetTTT(iscsi.ReservedTag)
			r.Data = iscsi.AppendTarget(nil, &iscsi.DiscoveredTarget{Name: "iqn.2026-11.softiser:a", Portals: []iscsi.TargetPortal{
				{Address: "[fe80::1]:3260", PortalGroupTag: 1, HasTag: true}, {Address: "[2001:db8::1]:3260", PortalGroupTag: 1, HasTag: true}}})
			d.win.Advance()
			d.answer(&r)
		}
		cfg := ft.config()
		cfg.Address, cfg.TargetName = "[fe80::1%eth0]:3260", ""
		ts, err := Discover(context.Background(), cfg)
		if want := []Portal{{"[fe80::1%eth0]:3260", 1}, {"[2001:db8::1]:3260", 1}}; err != nil || len(ts) != 1 || !slices.Equal(ts[0].Portals, want) {
			t.Errorf("%+v, %v", ts, err)
		}
	})
}

// A target that has no end of targets, or that says that there are more and not how to ask for them, is not asked for ever.
func TestDiscoverEndless(t *testing.T) {
	for name, tt := range map[string]struct {
		tag  uint32
		data int
		most int // requests
	}{"endless": {77, 1 << 20, 5}, "no tag": {iscsi.ReservedTag, 0, 1}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				asked := 0
				ft.onText = func(d *fakeDM, p *iscsi.PDU) {
					asked++
					var r iscsi.PDU
					q := r.BHS.NewTextResponse()
					q.SetFinal(asked > 20) // so that the test ends whatever happens
					r.BHS.SetITT(p.BHS.ITT())
					r.BHS.SetTTT(tt.tag)
					r.Data = make([]byte, tt.data)
					d.win.Advance()
					d.answer(&r)
				}
				cfg := ft.config()
				cfg.TargetName = ""
				if _, err := Discover(context.Background(), cfg); err == nil || asked > tt.most {
					t.Errorf("asked %d times: %v", asked, err)
				}
			})
		})
	}
}

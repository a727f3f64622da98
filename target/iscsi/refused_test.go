package iscsi

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// Whose certificate fits a name: what the access list says counts first, and only the portal asks
// for more where that says nothing.
func TestCertificateFits(t *testing.T) {
	const name = "iqn.2026-11.test:host"
	shown := certificateOf([]*x509.Certificate{{
		Subject: pkix.Name{CommonName: "IQN.2026-11.test:HOST"}, DNSNames: []string{"host.test"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/host"}},
	}, {Subject: pkix.Name{CommonName: "the authority"}}}, true)
	if want := []string{"IQN.2026-11.test:HOST", "spiffe://test/host", "host.test"}; !slices.Equal(shown.names, want) || shown.subject != "CN=IQN.2026-11.test:HOST" {
		t.Errorf("%+v", shown)
	}
	other := certificate{names: []string{"other"}, namesInitiators: true}
	for _, c := range []struct {
		shown     certificate
		ok, bound bool
		want      string // ""; it fits
	}{
		{certificateOf(nil, false), true, false, ""},
		{certificateOf(nil, true), true, false, "is no name of"},
		{certificateOf(nil, false), false, true, "has shown none"},
		{shown, true, false, ""},
		{other, true, false, "is no name of"},
		{other, true, true, ""},
		{other, false, true, "to other certificates than"},
		{certificate{names: other.names}, true, false, ""},
	} {
		err := c.shown.fits(name, c.ok, c.bound)
		var le *iscsi.LoginError
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &le) || le.Status != iscsi.LoginForbidden || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Names that a rule binds to certificates belong to those alone, whatever other rules let in.
func TestACLOfCertificates(t *testing.T) {
	acl := ACL{
		{Initiator: "iqn.a:*", Certificates: []string{"A.test"}, Network: netip.MustParsePrefix("10.0.0.0/8")},
		{Initiator: "iqn.a:b", Certificates: []string{"b.test", "c.test"}},
		{}, // everybody
	}
	for _, c := range []struct {
		initiator, from string
		shown           []string
		ok, bound       bool
	}{
		{"iqn.a:x", "10.0.0.1", []string{"a.test"}, true, true},
		{"iqn.a:x", "::ffff:10.0.0.1", []string{"z.test", "a.test"}, true, true},
		{"iqn.a:x", "192.0.2.1", []string{"a.test"}, false, true}, // bound, and not from there
		{"iqn.a:x", "10.0.0.1", nil, false, true},
		{"iqn.a:x", "10.0.0.1", []string{"c.test"}, false, true},
		{"iqn.a:b", "192.0.2.1", []string{"c.test"}, true, true},
		{"iqn.other", "192.0.2.1", nil, true, false},
	} {
		if ok, bound := acl.allowCertificate(c.initiator, netip.MustParseAddr(c.from), c.shown); ok != c.ok || bound != c.bound {
			t.Errorf("%+v: %v, bound %v", c, ok, bound)
		}
	}
	if ok, bound := ACL(nil).allowCertificate("iqn.x", netip.Addr{}, nil); !ok || bound {
		t.Errorf("without a list: %v, bound %v", ok, bound)
	}
}

// The list of those who may discover is one of its own.
func TestDiscoveryRefused(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.DiscoveryACL = ACL{{Initiator: "iqn.good:*"}} })
	for name, want := range map[string]iscsi.LoginStatus{"iqn.2026-11.test:initiator": iscsi.LoginForbidden, "iqn.good:x": iscsi.LoginSuccess} {
		r := s.dial()
		r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+name, "SessionType=Discovery")
		if p, _ := r.loginResponse(); p.LoginResponse().Status() != want {
			t.Errorf("%s: status %04x", name, uint16(p.LoginResponse().Status()))
		}
	}
	s.session() // for which it does not count
}

// Additional header segments that a command cannot have are refused, and the session goes on.
func TestBadAdditionalHeaders(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	long := iscsi.AppendExtendedCDB(nil, make([]byte, 20))
	for name, ahs := range map[string][]byte{
		"of no type":       {0, 1, 0x3f, 0},
		"longer than sent": {0, 2, 1, 0},
		"of no length":     {0, 0, 1, 0},
		"twice":            append(bytes.Clone(long), long...),
		"an empty CDB":     {0, 1, 1, 0},
	} {
		var b iscsi.BHS
		c := b.NewSCSICommand()
		c.SetFinal(true)
		c.SetAttr(1)
		c.SetCDB(testUnitReady)
		c.SetITT(r.newTag())
		c.SetCmdSN(r.cmdSN)
		r.cmdSN++
		b.SetAHSLen(len(ahs))
		b.SetExpStatSN(r.expSN)
		if _, err := r.nc.Write(append(b[:], ahs...)); err != nil {
			t.Fatal(err)
		}
		if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectInvalidField {
			t.Errorf("%s: reason %v", name, p.Reject().Reason())
		}
	}
	r.ready()
}

// Text that breaks the protocol is rejected, and ends its exchange; the next one is as good as ever.
func TestBadText(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.TextData = 2048 })
	r := s.session()
	half := []byte("X-com.example.long=" + strings.Repeat("y", 1400))
	for name, send := range map[string]func(){
		"no value":        func() { r.text(iscsi.ReservedTag, true, false, keys("SendTargets")) },
		"no key":          func() { r.text(iscsi.ReservedTag, true, false, keys("=All")) },
		"to be continued": func() { r.text(iscsi.ReservedTag, false, true, nil) },
		"too much, in pieces": func() {
			r.text(iscsi.ReservedTag, false, true, half)
			r.text(r.expect(iscsi.OpTextResponse).TTT(), true, false, half)
		},
	} {
		r.newTag()
		send()
		if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectProtocol {
			t.Errorf("%s: reason %v", name, p.Reject().Reason())
		}
		if got := r.sendTargets(""); got != record(testIQN, s.addr) {
			t.Errorf("after %s: %q", name, got)
		}
	}
}

// The reserved tag is no tag of an exchange, also where the numbers wrap.
func TestTextTagsWrap(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	x := s.sessionByTSIH(r.tsih)
	c := x.conns.list()[0]
	x.mu.Lock()
	c.text.last = iscsi.ReservedTag - 1
	x.mu.Unlock()
	r.text(iscsi.ReservedTag, false, true, []byte("SendTar"))
	p := r.expect(iscsi.OpTextResponse)
	if p.TTT() != 0 {
		t.Errorf("tag %#x", p.TTT())
	}
	r.text(p.TTT(), true, false, keys("gets="))
	if p := r.expect(iscsi.OpTextResponse); string(p.data) != record(testIQN, s.addr) {
		t.Errorf("%q", p.data)
	}
}

// A piece of an answer ends between two pairs where it can; what goes on in the next one says so.
func TestCutText(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		part  string
		cut   bool
	}{
		{"", 4, "", false},
		{"a=b\x00", 4, "a=b\x00", false},
		{"a=b\x00c=d\x00", 7, "a=b\x00", false},
		{"a=b\x00c=d\x00", 4, "a=b\x00", false},
		{"a=b\x00c=d\x00", 8, "a=b\x00c=d\x00", false},
		{"a=bcd\x00", 3, "a=b", true},
		{"a=bcd\x00", 0, "a=bcd\x00", false},
	} {
		if part, cut := cutText([]byte(c.text), c.limit); string(part) != c.part || cut != c.cut {
			t.Errorf("%q in %d bytes: %q, goes on: %v", c.text, c.limit, part, cut)
		}
	}
}

// What a session may be told to negotiate has limits; what it does not say has defaults.
func TestSessionBounds(t *testing.T) {
	const maxLen = 1<<24 - 1
	for _, c := range []struct {
		p    SessionParams
		want string // "": it is fine
	}{
		{SessionParams{}, ""},
		{SessionParams{MaxConnections: maxConnections, ErrorRecoveryLevel: 2}, ""},
		{SessionParams{MaxConnections: maxConnections + 1}, "MaxConnections"},
		{SessionParams{MaxConnections: -1}, "MaxConnections"},
		{SessionParams{ErrorRecoveryLevel: 3}, "ErrorRecoveryLevel"},
		{SessionParams{ErrorRecoveryLevel: -1}, "ErrorRecoveryLevel"},
		{SessionParams{MaxBurstLength: 512, FirstBurstLength: 512, MaxRecvDataSegmentLength: 512}, ""},
		{SessionParams{MaxBurstLength: 511, FirstBurstLength: 512}, "MaxBurstLength is"},
		{SessionParams{FirstBurstLength: 511}, "FirstBurstLength is"},
		{SessionParams{MaxRecvDataSegmentLength: 511}, "MaxRecvDataSegmentLength is"},
		{SessionParams{MaxBurstLength: maxLen, FirstBurstLength: maxLen, MaxRecvDataSegmentLength: maxLen}, ""},
		{SessionParams{MaxBurstLength: maxLen + 1}, "MaxBurstLength is"},
		{SessionParams{MaxRecvDataSegmentLength: maxLen + 1}, "MaxRecvDataSegmentLength is"},
		{SessionParams{MaxBurstLength: 1024, FirstBurstLength: 1025}, "is above MaxBurstLength"},
		{SessionParams{DataDigest: []string{"None"}, HeaderDigest: []string{"CRC32C"}}, ""},
		{SessionParams{DataDigest: []string{"None", "crc32c"}}, "digest"},
	} {
		p := c.p
		if err := p.fill(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.p, err)
		}
	}
	var p SessionParams
	if err := p.fill(); err != nil || p.MaxConnections != 1 || p.FirstBurstLength != 64<<10 || p.MaxBurstLength != 1<<20 || p.MaxRecvDataSegmentLength != 256<<10 || p.ErrorRecoveryLevel != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// What an administrator asks for and cannot have is refused by name, and leaves nothing behind.
func TestTargetsRefused(t *testing.T) {
	const other = "iqn.2026-11.softiser:other"
	s := serve(t, nil)
	lun := s.memory(t, "more", 1<<20)
	for _, c := range []struct {
		err  error
		want string
	}{
		{s.AddTarget(Target{Name: "nobody"}), "nobody"},
		{s.AddTarget(Target{Name: other, Session: &SessionParams{MaxConnections: 99}}), other + ": target: MaxConnections is 99"},
		{s.AddTarget(Target{Name: other, Portals: []uint16{9}}), other + ": there is no portal with group 9"},
		{s.AddTarget(Target{Name: other, Listen: []string{"192.0.2.1:3260"}}), other + ": there is no portal 192.0.2.1:3260"},
		{s.AddTarget(Target{Name: testIQN}), testIQN},
		{s.AddLUN(other, lun), "there is no target " + other},
		{s.AddLUN(testIQN, lun), "LUN 0 exists already"},
		{s.Vacant(other, 0), "there is no target " + other},
		{s.Vacant(testIQN, 0), "LUN 0 exists already"},
		{s.RemoveLUN(t.Context(), other, 0), "there is no target " + other},
		{s.RemoveLUN(t.Context(), testIQN, 7), "7"},
		{s.RemoveTarget(t.Context(), other), other},
		{s.UpdateTarget(Target{Name: other}), "there is no target " + other},
		{s.SetAccessState(other, 0, 1, scsi.Standby), "there is no target " + other},
		{s.SetAccessState(testIQN, 7, 1, scsi.Standby), "7"},
		{s.SetAccessState(testIQN, 0, 9, scsi.Standby), "9"},
		{s.ReleaseInitiator(other, "iqn.x:y"), "there is no target " + other},
		{s.ReleaseInitiator(testIQN, "iqn.x:y"), "sessions are of: nobody"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v; want %q", c.err, c.want)
		}
	}
	if err := s.Vacant(testIQN, 7); err != nil {
		t.Error(err)
	}
	if st := s.Status(); len(st.Targets) != 1 || len(st.Targets[0].LUNs) != 1 {
		t.Errorf("%+v", st.Targets)
	}
}

// Portals of other nodes are told of to those who come by the same kind of network; their groups are the
// device server's, each once.
func TestRemotePortals(t *testing.T) {
	remote := []RemotePortal{{"192.0.2.1:3260", false, 5}, {"192.0.2.2:7174", true, 6}, {"192.0.2.3:3260", false, 5}}
	s := serve(t, func(_ *serverConfig, tgt *Target) { tgt.Remote = remote })
	if c := s.deviceConfig(&Target{Name: testIQN, Remote: remote}); len(c.Remote) != 2 || c.Remote[0].ID != 5 || !slices.Equal(c.Remote[0].Ports, []uint16{5}) || c.Remote[1].ID != 6 {
		t.Errorf("%+v", c.Remote)
	}
	want := record(testIQN, s.addr) + "TargetAddress=192.0.2.1:3260,5\x00TargetAddress=192.0.2.3:3260,5\x00"
	if got := s.discover().sendTargets("All"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The device server cannot move data beside what the initiator has announced.
func TestTransfersBesideTheBuffer(t *testing.T) {
	k := &task{}
	k.scsi.InLen, k.scsi.OutLen = 100, 100
	for _, c := range []struct {
		off uint32
		n   int
	}{{100, 1}, {101, 0}, {0, 101}, {1, 100}, {math.MaxUint32, 1}, {math.MaxUint32, 101}} {
		list := [][]byte{make([]byte, c.n/2), make([]byte, c.n-c.n/2)}
		if err := k.DataIn(&k.scsi, c.off, list); err != errDataOverrun {
			t.Errorf("%d bytes at %d to the initiator: %v", c.n, c.off, err)
		}
		if err := k.DataOut(&k.scsi, c.off, list); err != errDataOverrun {
			t.Errorf("%d bytes at %d of the initiator: %v", c.n, c.off, err)
		}
	}
	if err := k.DataIn(&k.scsi, 100, nil); err != nil {
		t.Errorf("nothing at the end: %v", err)
	}
}

// A numbered function that finds too many others waiting is answered, as its number must be.
func TestNumberedFunctionOfTooMany(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	m := &s.sessionByTSIH(r.tsih).manager
	m.open.Add(maxManaging)
	var b iscsi.BHS
	q := b.NewTaskRequest(iscsi.LogicalUnitReset)
	q.SetImmediate(false)
	q.SetITT(r.newTag())
	q.SetCmdSN(r.cmdSN)
	r.cmdSN++
	r.write(&b, nil)
	if p := r.expect(iscsi.OpTaskResponse); p.TaskResponse().Response() != iscsi.TaskRejected || p.ExpCmdSN() != r.cmdSN {
		t.Errorf("response %d, ExpCmdSN %d", p.TaskResponse().Response(), p.ExpCmdSN())
	}
	r.expectSilence() // it has been counted out by then
	if n := m.open.Load(); n != maxManaging {
		t.Errorf("%d wait", n)
	}
	m.open.Add(-maxManaging)
	r.ready()
}

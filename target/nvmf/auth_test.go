package nvmf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvme/dhchap"
	"softiser/target"
	"softiser/target/nvmf"
)

// secret is one of a test.
func secret(t testing.TB, s string) *dhchap.Secret {
	t.Helper()
	k, err := dhchap.ParseSecret(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const (
	hostSecret = "DHHC-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:"
	ctrlSecret = "DHHC-1:02:YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKDhIWGh4iJiouMjY6PbQqfxQ==:"
)

// openAuth serves a subsystem whose host has secrets.
func openAuth(t testing.TB, change func(*target.Config, *nvmf.SubsystemConfig)) *rig {
	return open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		s.Hosts = []nvmf.HostRule{{NQN: hostNQN, Secret: secret(t, hostSecret), CtrlSecret: secret(t, ctrlSecret)}, {NQN: "nqn.*"}}
		if change != nil {
			change(c, s)
		}
	})
}

func (q *queue) authSend(b []byte) error {
	var s nvme.SQE
	s.NewAuth(nvme.FabricsAuthSend, uint32(len(b)))
	_, err := q.do(s, nil, b)
	return err
}

func (q *queue) authReceive() ([]byte, error) {
	var s nvme.SQE
	b := make([]byte, 4096)
	s.NewAuth(nvme.FabricsAuthReceive, uint32(len(b)))
	_, err := q.do(s, b, nil)
	return b, err
}

// chap is the host's configuration that matches that of openAuth.
func chap(t testing.TB, sub string) dhchap.Config {
	return dhchap.Config{HostNQN: hostNQN, SubsystemNQN: sub, Host: secret(t, hostSecret), Controller: secret(t, ctrlSecret)}
}

// authenticate proves who the host is, as c says.
func (q *queue) authenticate(c dhchap.Config, tid uint16) error {
	h := dhchap.NewHost(c, tid)
	next := h.Negotiate()
	for {
		if next != nil {
			if err := q.authSend(next); err != nil {
				return err
			}
			if next[0] == 1 && next[1] == 4 || next[0] == 0 && next[1] == 0xF0 { // Success2, Failure2
				return nil
			}
		}
		b, err := q.authReceive()
		if err != nil {
			return err
		}
		var ok bool
		next, ok, err = h.Handle(b)
		if err != nil {
			if next != nil {
				_ = q.authSend(next)
			}
			return err
		}
		if ok && next == nil {
			return nil
		}
	}
}

func admin(sub string) nvme.ConnectData {
	return nvme.ConnectData{HostID: nvme.HostID{15: 10}, CntlID: nvme.CntlIDDynamic, Subsystem: sub, Host: hostNQN}
}

// unproved connects an admin queue whose host is asked for a proof.
func (r *rig) unproved(sub string) *host {
	r.t.Helper()
	h := &host{queue: dial(r.t, r.addr), r: r, data: admin(sub)}
	e, err := h.connect(0, h.data, time.Minute)
	if err != nil {
		r.t.Fatal(err)
	}
	c := nvme.ConnectResult(e.DW0())
	if c&nvme.AuthRequired == 0 || c&nvme.AuthSecureRequired != 0 {
		r.t.Fatalf("result %x of Connect: authentication is not asked for", uint32(c))
	}
	h.data.CntlID = c.CntlID()
	return h
}

// gone waits for the target to close the connection.
func (q *queue) gone() {
	<-q.done
	q.close()
}

// Every hash with every fast group, and every slow group, in one and both directions, on the
// admin queue and an I/O queue; and data flows afterwards.
func TestAuthentication(t *testing.T) {
	r := openAuth(t, nil)
	hashes := []dhchap.Hash{dhchap.SHA256, dhchap.SHA384, dhchap.SHA512}
	for _, both := range []bool{false, true} {
		for i, hash := range hashes {
			for _, group := range []dhchap.Group{dhchap.GroupNone, dhchap.FFDHE2048, dhchap.FFDHE3072} {
				r.proves(t, hash, group, both, true)
			}
			if slow := dhchap.FFDHE4096 + dhchap.Group(i); !testing.Short() {
				r.proves(t, hashes[(i+int(slow))%3], slow, both, false)
			}
		}
	}
}

// proves has a host authenticate itself, on an I/O queue too if io is set.
func (r *rig) proves(t *testing.T, hash dhchap.Hash, group dhchap.Group, both, io bool) {
	t.Run(fmt.Sprintf("%s, %s, both %t", hash, group, both), func(t *testing.T) {
		c := chap(t, subNQN)
		c.Hashes, c.Groups = []dhchap.Hash{hash}, []dhchap.Group{group}
		if !both {
			c.Controller = nil
		}
		h := r.unproved(subNQN)
		defer h.close()
		if err := h.authenticate(c, 7); err != nil {
			t.Fatal(err)
		}
		h.enable()
		if io {
			h.provesIO(t, c)
		}
		how, times := fmt.Sprintf("%s, %s, %s", hash, group, map[bool]string{true: "both", false: "the host"}[both]), uint64(1)
		if io {
			times = 4
		}
		if l := r.srv.Controllers(); len(l) != 1 || !l[0].Proved || l[0].ProvedBy != how || l[0].Proofs != times || l[0].Connection != "NVMe/TCP, digests: none" || l[0].TLS {
			t.Errorf("%+v; want %d proofs by %s", l, times, how)
		}
	})
	await.True(t, "the controller has gone", func() bool { return len(r.srv.Controllers()) == 0 })
}

func (h *host) provesIO(t *testing.T, c dhchap.Config) {
	io := dial(t, h.r.addr)
	defer io.close()
	if e, err := io.connect(1, h.data, 0); err != nil || nvme.ConnectResult(e.DW0())&nvme.AuthRequired == 0 {
		t.Fatalf("%+v, %v", e, err)
	}
	if _, err := io.readBlocks(0, 512); !errors.Is(err, nvme.AuthenticationRequired|nvme.DoNotRetry) {
		t.Errorf("a read before the proof: %v", err)
	}
	if err := io.authenticate(c, 8); err != nil {
		t.Fatal(err)
	}
	p := pattern(4096, byte(c.Groups[0]))
	if err := io.write(0, p); err != nil {
		t.Fatal(err)
	}
	if b, err := io.readBlocks(0, 4096); err != nil || !bytes.Equal(b, p) {
		t.Errorf("what was written is not read: %v", err)
	}
	// Once more, while the queues are at work.
	if err := io.authenticate(c, 9); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := h.authenticate(c, 9); err != nil {
		t.Errorf("again, on the admin queue: %v", err)
	}
	if _, err := io.readBlocks(0, 512); err != nil {
		t.Error(err)
	}
}

// Before the proof nothing is served, on no queue, whatever the wider rules let in.
func TestAuthRequired(t *testing.T) {
	r := openAuth(t, nil)
	h := r.unproved(subNQN)
	for name, make := range map[string]func(*nvme.SQE){
		"property":   func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCSTS) },
		"enable":     func(s *nvme.SQE) { s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true))) },
		"identify":   func(s *nvme.SQE) { s.NewIdentify(nvme.CNSController, 0) },
		"keep alive": func(s *nvme.SQE) { s.Init(nvme.AdminKeepAlive, 0) },
		"Connect":    func(s *nvme.SQE) { s.NewConnect() },
	} {
		var s nvme.SQE
		make(&s)
		if _, err := h.do(s, nil, nil); !errors.Is(err, nvme.AuthenticationRequired|nvme.DoNotRetry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The discovery service as well: who only says that he is this host learns nothing.
	d := r.unproved(nvme.DiscoveryNQN)
	var s nvme.SQE
	s.NewGetLogPage(nvme.LogDiscovery, 0, 0, 1024)
	if _, err := d.do(s, make([]byte, 1024), nil); !errors.Is(err, nvme.AuthenticationRequired|nvme.DoNotRetry) {
		t.Errorf("discovery log: %v", err)
	}
	if err := d.authenticate(chap(t, nvme.DiscoveryNQN), 1); err != nil {
		t.Fatal(err)
	}
	d.enable()
	if b := d.log(nvme.LogDiscovery, 4096); binary.LittleEndian.Uint64(b[8:]) != 4 { // both, over TCP and RDMA
		t.Errorf("%d entries", binary.LittleEndian.Uint64(b[8:]))
	}
	// A host without a secret is let in by the other rule, and not asked.
	if o := r.attach("nqn.other", 11, 1); o.write(0, pattern(512, 1)) == nil {
		t.Error("a write on an admin queue")
	} else if l := r.srv.Controllers(); len(l) != 3 {
		t.Errorf("%+v", l)
	}
	var a nvme.SQE
	a.NewAuth(nvme.FabricsAuthSend, 8)
	if _, err := r.attach("nqn.other", 12, 0).do(a, nil, make8()); !errors.Is(err, nvme.InvalidOpcode|nvme.DoNotRetry) {
		t.Errorf("a proof that nobody asks for: %v", err)
	}
}

func make8() []byte { return make([]byte, 8) }

// A Connect under a name that nobody has to prove does not let in the host of another one,
// which is under way on the same connection.
func TestAuthNotSkippedBySecondConnect(t *testing.T) {
	r := openAuth(t, nil)
	q := dial(t, r.addr)
	other := admin(subNQN)
	other.Host = "nqn.other"
	c := q.connectsAtOnce([2]uint16{0, 0}, [2]nvme.ConnectData{other, admin(subNQN)})
	if e, err := q.result(c[0]); err != nil || !e.Status().OK() || nvme.ConnectResult(e.DW0())&nvme.AuthRequired != 0 {
		t.Errorf("the first: %v, %v", e, err)
	}
	if e, err := q.result(c[1]); err != nil || e.Status() != nvme.CommandSequenceError|nvme.DoNotRetry {
		t.Errorf("the second: %v, %v", e, err)
	}
	(&host{queue: q, r: r}).enable()
	for _, l := range r.srv.Controllers() {
		if l.Host == hostNQN {
			t.Errorf("a host that has proved nothing has a controller, ready: %v", l.Ready)
		}
	}
}

// What is wrong with the commands, or comes at the wrong time.
func TestAuthCommands(t *testing.T) {
	r := openAuth(t, nil)
	for _, tt := range []struct {
		name   string
		typ    nvme.FabricsType
		length uint32
		change func(*nvme.SQE)
		data   int
		want   nvme.Status
	}{
		{"protocol", nvme.FabricsAuthSend, 72, func(s *nvme.SQE) { s[43] = 0xEA }, 72, nvme.InvalidField},
		{"SPSP0", nvme.FabricsAuthSend, 72, func(s *nvme.SQE) { s[41] = 0 }, 72, nvme.InvalidField},
		{"SPSP1", nvme.FabricsAuthReceive, 4096, func(s *nvme.SQE) { s[42] = 2 }, 4096, nvme.InvalidField},
		{"nothing sent", nvme.FabricsAuthSend, 0, nil, 0, nvme.InvalidField},
		{"no room", nvme.FabricsAuthReceive, 0, nil, 0, nvme.InvalidField},
		{"too much", nvme.FabricsAuthSend, 4097, nil, 4097, nvme.InvalidField},
		{"less than said", nvme.FabricsAuthSend, 100, nil, 72, nvme.SGLDataLengthInvalid},
		{"more than said", nvme.FabricsAuthReceive, 100, nil, 4096, nvme.SGLDataLengthInvalid},
		{"nothing to receive", nvme.FabricsAuthReceive, 4096, nil, 4096, nvme.CommandSequenceError},
	} {
		h := r.unproved(subNQN)
		var s nvme.SQE
		s.NewAuth(tt.typ, tt.length)
		if tt.change != nil {
			tt.change(&s)
		}
		var in, out []byte
		if tt.typ == nvme.FabricsAuthSend {
			out = make([]byte, tt.data)
		} else {
			in = make([]byte, tt.data)
		}
		if _, err := h.do(s, in, out); !errors.Is(err, tt.want|nvme.DoNotRetry) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.name != "nothing to receive" { // after all of them the host may do better
			if err := h.authenticate(chap(t, subNQN), 1); err != nil {
				t.Errorf("%s, and then: %v", tt.name, err)
			}
		}
		h.close()
	}
}

// Every reason of failure reaches the host, and the connection ends behind it.
func TestAuthFailures(t *testing.T) {
	r := openAuth(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Hosts = append(s.Hosts, nvmf.HostRule{NQN: "nqn.oneway", Secret: secret(t, hostSecret)})
	})
	negotiate := func(c dhchap.Config) []byte { return dhchap.NewHost(c, 5).Negotiate() }
	null := chap(t, subNQN)
	null.Groups = []dhchap.Group{dhchap.GroupNone}
	// reply is what the host says to a challenge, changed.
	reply := func(c dhchap.Config, change func([]byte) []byte) func(*host) {
		return func(h *host) {
			m := dhchap.NewHost(c, 5)
			if err := h.authSend(m.Negotiate()); err != nil {
				t.Fatal(err)
			}
			b, err := h.authReceive()
			if err != nil {
				t.Fatal(err)
			}
			next, _, err := m.Handle(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.authSend(change(next)); err != nil {
				t.Fatal(err)
			}
		}
	}
	send := func(b []byte) func(*host) {
		return func(h *host) {
			if err := h.authSend(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	same := func(b []byte) []byte { return b }
	set := func(at int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = v; return b }
	}
	wrong := null
	wrong.Host = dhchap.NewSecret()
	big := null
	big.Groups = []dhchap.Group{dhchap.FFDHE2048}
	for _, tt := range []struct {
		name string
		do   func(*host)
		want dhchap.Reason
	}{
		{"secret", reply(wrong, same), dhchap.Failed},
		{"response", reply(null, func(b []byte) []byte { b[16]++; return b }), dhchap.Failed},
		{"protocol", send(set(8, 2)(negotiate(null))), dhchap.ProtocolUnusable},
		{"two protocols", send(set(7, 2)(negotiate(null))), dhchap.ProtocolUnusable},
		{"secure channel", send(set(6, 1)(negotiate(null))), dhchap.ConcatMismatch},
		{"new TLS key", send(set(6, 2)(negotiate(null))), dhchap.ConcatMismatch},
		{"TLS key replaced", send(set(6, 3)(negotiate(null))), dhchap.ConcatMismatch},
		{"hash", send(set(10, 0)(negotiate(null))), dhchap.HashUnusable},
		{"group", send(set(11, 0)(negotiate(null))), dhchap.GroupUnusable},
		{"number of hashes", send(set(10, 31)(negotiate(null))), dhchap.BadPayload},
		{"short", send(negotiate(null)[:71]), dhchap.BadPayload},
		{"a few bytes", send([]byte{0, 0, 0}), dhchap.BadPayload},
		{"reply first", send([]byte{1, 2, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), dhchap.BadMessage},
		{"unknown message", send([]byte{1, 9, 0, 0, 5, 0, 0, 0}), dhchap.BadMessage},
		{"transaction", reply(null, set(4, 6)), dhchap.BadPayload},
		{"length of the hash", reply(null, set(6, 48)), dhchap.BadPayload},
		{"C2 valid 2", reply(null, set(8, 2)), dhchap.BadPayload},
		{"public value where there is none", reply(null, set(10, 1)), dhchap.BadPayload},
		{"public value 0", reply(big, func(b []byte) []byte { clear(b[16+64:]); return b }), dhchap.BadPayload},
		{"public value 1", reply(big, func(b []byte) []byte { clear(b[16+64:]); b[len(b)-1] = 1; return b }), dhchap.BadPayload},
		{"public value beyond p", reply(big, func(b []byte) []byte {
			for i := 16 + 64; i < len(b); i++ {
				b[i] = 0xFF
			}
			return b
		}), dhchap.BadPayload},
		{"negotiate again", func(h *host) { send(negotiate(null))(h); send(negotiate(null))(h) }, dhchap.BadMessage},
	} {
		h := r.unproved(subNQN)
		tt.do(h)
		b, err := h.authReceive()
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if want := []byte{0x00, 0xF1, 0, 0}; !bytes.Equal(b[:4], want) || b[6] != 1 || dhchap.Reason(b[7]) != tt.want {
			t.Errorf("%s: % x, want Failure1 with %s", tt.name, b[:8], tt.want)
		}
		h.gone()
	}
	await.True(t, "the controllers have gone", func() bool { return len(r.srv.Controllers()) == 0 })
	if a := r.srv.Authentications(); a.Succeeded != 0 || a.Failed != 22 {
		t.Errorf("%+v", a)
	}
	// A proof of the controller that it has no secret for.
	h := &host{queue: dial(t, r.addr), r: r}
	d := admin(subNQN)
	d.Host = "nqn.oneway"
	if _, err := h.connect(0, d, time.Minute); err != nil {
		t.Fatal(err)
	}
	c := null
	c.HostNQN = d.Host
	var e *dhchap.Error
	if err := h.authenticate(c, 1); !errors.As(err, &e) || !e.Peer || e.Reason != dhchap.Failed {
		t.Errorf("%v", err)
	}
	h.gone()
	// The host is not content with the controller's proof, and says so.
	h = r.unproved(subNQN)
	c = null
	c.Controller = dhchap.NewSecret()
	if err := h.authenticate(c, 1); !errors.As(err, &e) || e.Peer || e.Reason != dhchap.Failed {
		t.Errorf("%v", err)
	}
	h.gone()
}

// A host that may use some hashes and groups alone proves itself with the first that it
// offers too, and is refused without any of them, at a subsystem and at discovery.
func TestAuthAllowed(t *testing.T) {
	only := func(hashes []dhchap.Hash, groups ...dhchap.Group) dhchap.Allowed {
		return dhchap.Allowed{Hashes: hashes, Groups: groups}
	}
	rule := nvmf.HostRule{NQN: hostNQN, Secret: secret(t, hostSecret), CtrlSecret: secret(t, ctrlSecret)}
	rule.Proof = only([]dhchap.Hash{dhchap.SHA512, dhchap.SHA384}, dhchap.FFDHE2048)
	r := openAuth(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Hosts = []nvmf.HostRule{rule} })
	for _, tt := range []struct {
		offer  dhchap.Allowed
		reason dhchap.Reason // 0: it is proved
		how    string
	}{
		{dhchap.Allowed{}, 0, "SHA-512, ffdhe2048, both"},
		{only([]dhchap.Hash{dhchap.SHA256, dhchap.SHA384}, dhchap.GroupNone, dhchap.FFDHE2048), 0, "SHA-384, ffdhe2048, both"},
		{only([]dhchap.Hash{dhchap.SHA256}), dhchap.HashUnusable, ""},
		{only(nil, dhchap.GroupNone, dhchap.FFDHE3072), dhchap.GroupUnusable, ""},
	} {
		for _, sub := range []string{subNQN, nvme.DiscoveryNQN} {
			c := chap(t, sub)
			c.Allowed = tt.offer
			h := r.unproved(sub)
			err := h.authenticate(c, 7)
			var e *dhchap.Error
			switch {
			case tt.reason != 0:
				if !errors.As(err, &e) || !e.Peer || e.Reason != tt.reason {
					t.Errorf("%s, %v: %v, want %s", sub, tt.offer, err, tt.reason)
				}
				h.gone()
			case err != nil:
				t.Errorf("%s, %v: %v", sub, tt.offer, err)
			case sub == subNQN:
				if l := r.srv.Controllers(); len(l) != 1 || l[0].ProvedBy != tt.how {
					t.Errorf("%v: %+v, want %s", tt.offer, l, tt.how)
				}
			}
			h.close()
			await.True(t, "the controller has gone", func() bool { return len(r.srv.Controllers()) == 0 })
		}
	}
	// What is allowed now holds from the next authentication on.
	rule.Proof = only(nil, dhchap.GroupNone)
	if err := r.srv.SetHosts(subNQN, []nvmf.HostRule{rule}, nvmf.SecureAllowed); err != nil {
		t.Fatal(err)
	}
	h := r.unproved(subNQN)
	if err := h.authenticate(chap(t, subNQN), 7); err != nil {
		t.Error(err)
	}
	if l := r.srv.Controllers(); len(l) != 1 || l[0].ProvedBy != "SHA-256, no group, both" {
		t.Errorf("%+v", l)
	}
	h.close()
}

// A re-authentication that fails ends the queue, and commands behind it are refused.
func TestAuthAgainFails(t *testing.T) {
	r := openAuth(t, nil)
	h := r.unproved(subNQN)
	if err := h.authenticate(chap(t, subNQN), 1); err != nil {
		t.Fatal(err)
	}
	h.enable()
	c := chap(t, subNQN)
	c.Host = dhchap.NewSecret()
	var e *dhchap.Error
	if err := h.authenticate(c, 2); !errors.As(err, &e) || e.Reason != dhchap.Failed {
		t.Errorf("%v", err)
	}
	h.gone()
	await.True(t, "the controller has gone", func() bool { return len(r.srv.Controllers()) == 0 })
}

// Who does not get to the end of it in time is closed: the first time, and later.
func TestAuthTimeout(t *testing.T) {
	r := openAuth(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Timeouts.Login = 500 * time.Millisecond })
	q := dial(t, r.addr)
	_, _ = q.connect(0, admin(subNQN), time.Minute)
	_ = q.authSend(dhchap.NewHost(chap(t, subNQN), 1).Negotiate())
	q.gone()
	// Long enough for a proof on a loaded machine.
	r = openAuth(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Timeouts.Login = 3 * time.Second })
	h := r.unproved(subNQN)
	if err := h.authenticate(chap(t, subNQN), 1); err != nil {
		t.Fatal(err)
	}
	if err := h.authSend(dhchap.NewHost(chap(t, subNQN), 2).Negotiate()); err != nil {
		t.Fatal(err)
	}
	h.gone()
}

// Somebody who only says that he is the host cannot take a queue of its controller, keep
// it alive, or end it.
func TestUnprovedQueueDoesNoHarm(t *testing.T) {
	r := openAuth(t, nil)
	h := r.unproved(subNQN)
	if err := h.authenticate(chap(t, subNQN), 1); err != nil {
		t.Fatal(err)
	}
	h.enable()
	liar := dial(t, r.addr)
	if _, err := liar.connect(1, h.data, 0); err != nil {
		t.Fatal(err)
	}
	io := dial(t, r.addr)
	if _, err := io.connect(1, h.data, 0); err != nil {
		t.Fatalf("the number is taken by who has proved nothing: %v", err)
	}
	if err := io.authenticate(chap(t, subNQN), 2); err != nil {
		t.Fatal(err)
	}
	// A breach of the protocol on it is the liar's own.
	liar.send(make([]byte, 64), nil)
	liar.gone()
	if _, err := io.readBlocks(0, 512); err != nil {
		t.Error(err)
	}
	// One who is late finds the number taken.
	late := dial(t, r.addr)
	if _, err := late.connect(2, h.data, 0); err != nil {
		t.Fatal(err)
	}
	first := dial(t, r.addr)
	if _, err := first.connect(2, h.data, 0); err != nil {
		t.Fatal(err)
	}
	if err := first.authenticate(chap(t, subNQN), 3); err != nil {
		t.Fatal(err)
	}
	if err := late.authenticate(chap(t, subNQN), 4); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("a second queue 2: %v", err)
	}
	late.gone()
}

// Secrets change under hosts that are there: they count from the next proof on.
func TestSecretsChange(t *testing.T) {
	r := openAuth(t, nil)
	h := r.unproved(subNQN)
	if err := h.authenticate(chap(t, subNQN), 1); err != nil {
		t.Fatal(err)
	}
	h.enable()
	next := dhchap.NewSecret()
	if err := r.srv.SetHosts(subNQN, []nvmf.HostRule{{NQN: hostNQN, Secret: next}}, nvmf.SecureAllowed); err != nil {
		t.Fatal(err)
	}
	h.identify(nvme.CNSController, 0)
	var e *dhchap.Error
	if err := r.unproved(subNQN).authenticate(chap(t, subNQN), 1); !errors.As(err, &e) || e.Reason != dhchap.Failed {
		t.Errorf("the old secret: %v", err)
	}
	c := chap(t, subNQN)
	c.Host, c.Controller = next, nil
	if err := h.authenticate(c, 2); err != nil {
		t.Errorf("the new secret: %v", err)
	}
	if err := r.srv.SetHosts(subNQN, nil, nvmf.SecureRequired); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, r.addr).connect(0, admin(subNQN), 0); !errors.Is(err, nvme.ConnectInvalidHost|nvme.DoNotRetry) {
		t.Errorf("a plain Connect where TLS is required now: %v", err)
	}
	for name, rules := range map[string][]nvmf.HostRule{
		"pattern":          {{NQN: "nqn.*", Secret: next}},
		"everybody":        {{Secret: next}},
		"controller alone": {{NQN: hostNQN, CtrlSecret: next}},
	} {
		if err := r.srv.SetHosts(subNQN, rules, nvmf.SecureAllowed); err == nil {
			t.Errorf("%s: is taken", name)
		}
	}
	if err := r.srv.SetHosts("nqn.none", nil, nvmf.SecureAllowed); err == nil {
		t.Error("rules for no subsystem are taken")
	}
}

// However many connections ask for powers modulo a prime, few are computed at once, and
// two at most for each connection; those who are in are served meanwhile.
func TestAuthFlood(t *testing.T) {
	r := openAuth(t, nil)
	other := r.attach("nqn.other", 11, 1)
	c := chap(t, subNQN)
	c.Groups = []dhchap.Group{dhchap.FFDHE4096}
	const n = 24
	var wg sync.WaitGroup
	for range n {
		h := r.unproved(subNQN)
		wg.Go(func() {
			m := dhchap.NewHost(c, 1).Negotiate()
			var all []*command
			for range 8 {
				var s nvme.SQE
				s.NewAuth(nvme.FabricsAuthSend, uint32(len(m)))
				all = append(all, h.start(s, nil, m))
			}
			for _, k := range all {
				h.result(k)
			}
		})
	}
	if _, err := other.io[0].readBlocks(0, 4096); err != nil {
		t.Error(err)
	}
	wg.Wait()
	a := r.srv.Authentications()
	if a.AtOnce > a.Workers || a.Powers == 0 || a.Powers > 2*n || a.Succeeded != 0 {
		t.Errorf("%+v with %d connections", a, n)
	}
}

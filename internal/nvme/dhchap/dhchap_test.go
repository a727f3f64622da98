package dhchap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a"
	subNQN  = "nqn.2024-01.lab:disk0"

	plainKey = "DHHC-1:00:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:"
	hostKey  = "DHHC-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:"
	ctrlKey  = "DHHC-1:02:YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKDhIWGh4iJiouMjY6PbQqfxQ==:"

	sharedKey = "af616693574ae11dc924217c3c2345a660ad615d992ee0840d7c38bc4a803a455a0cdd1c4c0137efc1f52f8afa77777037b42a99518e2a93d2ee9c3ef59fdb6b0574580adf8de8ed64e1fbfc616b6e3f628ca07d826134c5e7561ff22316c2067c09307394cf139fa5b51c00dafb00db641c01edcbb679f7662c537bd45e5b36422a1cb8bdd4500e90df1c0d7ed309a34a51c60923592d7bcd439c97a559c5aac224f61cd797718cab1719ed267c52fa550d5be1b66cb12cc421602d305ef1f02c4d50a9d0216f8f2ba835a70679d41facd1414f085c58dbed131f0133f4b2070e6baa18136a32aa26efa6932d929e649e1983f697fd57de74212b669d1607d3"
)

func secret(t *testing.T, s string) *Secret {
	t.Helper()
	k, err := ParseSecret(s)
	if err != nil {
		t.Fatal(err)
	}
	if k.Reveal() != s {
		t.Errorf("%s is written again as %s", s, k.Reveal())
	}
	return k
}

func TestSecrets(t *testing.T) {
	if got, want := secret(t, hostKey).of(hostNQN), unhex(t, "230fa5f87e435207a55b59e7ee4bae76a11d6fddab87a35880681dd1dc7dbc37"); !bytes.Equal(got, want) {
		t.Errorf("host key %x, want %x", got, want)
	}
	if got, want := secret(t, ctrlKey).of(subNQN), unhex(t, "7fda1cc909389f46086b94a44d956828af835f961ba11b967923b825f82d74d903b29213229e84c4cb579f80e0aa152d"); !bytes.Equal(got, want) {
		t.Errorf("controller key %x, want %x", got, want)
	}
	if k := secret(t, plainKey).of(hostNQN); len(k) != 32 || k[0] != 0x20 || k[31] != 0x3F {
		t.Errorf("plain key %x", k)
	}
	secret(t, NewSecret().Reveal())
	if s := fmt.Sprintf("%v %+v %#v", secret(t, hostKey), secret(t, hostKey), secret(t, hostKey)); strings.Contains(s, "ICEi") || strings.Contains(s, "0x20") {
		t.Errorf("a secret prints as %s", s)
	}
	for name, s := range map[string]string{
		"empty": "", "prefix": "DHHC-2" + hostKey[6:], "hash 04": strings.Replace(hostKey, ":01:", ":04:", 1), "hash 11": strings.Replace(hostKey, ":01:", ":11:", 1),
		"no end": hostKey[:len(hostKey)-1], "base64": strings.Replace(hostKey, "ICEi", "I!Ei", 1), "check sum": strings.Replace(hostKey, "ICEi", "ICEj", 1),
		"length": "DHHC-1:00:AAAA:", "nothing": "DHHC-1:00::", "short": "DHHC-1:0",
	} {
		if _, err := ParseSecret(s); err == nil {
			t.Errorf("%s: is read", name)
		} else if strings.Contains(err.Error(), "ICE") {
			t.Errorf("%s: the error repeats the secret: %v", name, err)
		}
	}
}

// What Linux's host and target said to each other.
func TestResponses(t *testing.T) {
	host, ctrl := secret(t, hostKey), secret(t, ctrlKey)
	for _, tt := range []struct {
		name   string
		hash   Hash
		key    []byte
		shared string
		seq    uint32
		tid    uint16
		c      string
		role   string
		want   string
	}{
		{"admin queue", SHA256, secret(t, plainKey).of(hostNQN), "", 0x90e9455c, 0,
			"7c24dd207f09f6d3ba636b684bb9f2215e354a9e5d77610c44739d2cf82024fd", roleHost,
			"6453f8f848d2ae488e5898aa66813c8ea39d225328edfccf6b174f9ee4b2b389"},
		{"I/O queue", SHA256, secret(t, plainKey).of(hostNQN), "", 0x90e9455d, 1,
			"ada5e61300093efb4e433954d47cd7adda0f9c8d380366a3e14546689ffa90de", roleHost,
			"3b4c372b055fcf854e63f80238fa219a1fbcfcc5bb68348151c25351312db891"},
		{"both, host", SHA256, host.of(hostNQN), "", 0x90e9455f, 0,
			"90eb821ea43f7075fc2534f6365910fc0fa5c73202e7ebba98d8d198e2659fb2", roleHost,
			"d959c9c899d5ea4c500d785ec96a8bb8d87470c5600eff2b357f694eb5b0af55"},
		{"both, controller", SHA256, ctrl.of(subNQN), "", 0xc00bc064, 0,
			"bec54009d4626cdf5b0f72db033d08f79ce089cb17239c7e4ecd19428c01d51d", roleController,
			"983ea63fcfb1971aaf53a3e900f21ebfcf452e4c7b89c9ea4afbaee5ee7219c3"},
		{"ffdhe2048, host", SHA384, host.of(hostNQN), sharedKey, 0xa17dac50, 0,
			"d80e80c425539468b2bc805bbf8b6106dbffc32421950b247b16b9f02e1c31e3ce3f212c9b9cf20378d754f9c6baf75d", roleHost,
			"a6d2ccfcaf1425509436031469929972f93df0a875e56bc969d65dc95522ed0b33082ff44673c17d7d515ad12cd45c0e"},
		{"ffdhe2048, controller", SHA384, ctrl.of(subNQN), sharedKey, 0xb7a637c9, 0,
			"9c60577e08d22bb0b41de6f2d6b9f17382841f78a5a51184726e4dd45f15d45516eb40da4c1d016e8c888ae46548ab2d", roleController,
			"b2e172551391c6d76efc3029ca3a96753989edc7d97cbd25ff0d9fff1b16f9ffe0c7d631d8c0da5dc26f03355c1d8dbc"},
	} {
		var shared []byte
		if tt.shared != "" {
			shared = unhex(t, tt.shared)
		}
		first, second := hostNQN, subNQN
		if tt.role == roleController {
			first, second = subNQN, hostNQN
		}
		q := question{hash: tt.hash, c: tt.hash.augment(unhex(t, tt.c), shared), seq: tt.seq, tid: tt.tid}
		got := q.answer(tt.key, tt.role, first, second)
		if want := unhex(t, tt.want); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", tt.name, got, want)
		}
	}
}

// A challenge of Linux's target.
func TestChallengeBytes(t *testing.T) {
	c := challenge{hash: SHA256, seq: 0x90e9455c, c1: unhex(t, "7c24dd207f09f6d3ba636b684bb9f2215e354a9e5d77610c44739d2cf82024fd")}
	want := unhex(t, "0101000000002000 01000000 5c45e990 7c24dd207f09f6d3ba636b684bb9f2215e354a9e5d77610c44739d2cf82024fd")
	if got := c.encode(0); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if got := failure(msgFailure1, 3, Failed); !bytes.Equal(got, unhex(t, "00f1 0000 0300 01 01")) {
		t.Errorf("%x", got)
	}
	n := negotiate{hashes: []Hash{1, 2, 3}, groups: []Group{0, 1, 2, 3, 4, 5}}
	b := n.encode(1)
	if !bytes.Equal(b[:16], unhex(t, "0000 0000 0100 00 01 01 00 03 06 01 02 03 00")) || !bytes.Equal(b[42:49], []byte{0, 1, 2, 3, 4, 5, 0}) || len(b) != 72 {
		t.Errorf("%x", b)
	}
}

// The primes are RFC 7919's: their ends are written there, and they are safe primes.
func TestPrimes(t *testing.T) {
	ends := map[Group]string{
		FFDHE2048: "886b4238 61285c97 ffffffff ffffffff", FFDHE3072: "25e41d2b 66c62e37 ffffffff ffffffff",
		FFDHE4096: "5e655f6a ffffffff ffffffff", FFDHE6144: "a41d570d 7938dad4 a40e329c d0e40e65 ffffffff ffffffff",
		FFDHE8192: "d68c8bb7 c5c6424c ffffffff ffffffff",
	}
	for g, end := range ends {
		p := prime(groups[g].bits, groups[g].x)
		if p.BitLen() != groups[g].bits || !bytes.HasSuffix(p.Bytes(), unhex(t, end)) {
			t.Errorf("%s: %x", g, p)
		}
		if groups[g].bits > 4096 {
			continue // seconds under the race detector, for what the ends have said
		}
		if q := new(big.Int).Rsh(p, 1); !p.ProbablyPrime(1) || !q.ProbablyPrime(1) {
			t.Errorf("%s is no safe prime", g)
		}
	}
}

// run lets two ends talk. change sees each message before its receiver.
func run(t *testing.T, h *Host, c *Controller, change func(m message, b []byte) []byte) (hostErr error) {
	t.Helper()
	if change == nil {
		change = func(_ message, b []byte) []byte { return b }
	}
	up := h.Negotiate()
	for range 5 {
		if up != nil {
			m, _, _ := kind(up)
			if err := c.Send(change(m, up)); err != nil {
				t.Fatal(err)
			}
			if c.Done() || c.Failed() != nil {
				return hostErr
			}
		}
		if hostErr != nil {
			return hostErr
		}
		down, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		m, _, _ := kind(down)
		var ok bool
		up, ok, hostErr = h.Handle(change(m, down))
		if ok && up == nil {
			return nil
		}
	}
	t.Fatal("no end")
	return nil
}

func TestAuthentication(t *testing.T) {
	for _, hash := range allHashes {
		for _, group := range allGroups {
			for _, both := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s both=%t", hash, group, both), func(t *testing.T) {
					cfg := Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: secret(t, hostKey), Allowed: Allowed{Hashes: []Hash{hash}, Groups: []Group{group}}}
					if both {
						cfg.Controller = secret(t, ctrlKey)
					}
					c, host := NewController(cfg), cfg
					host.Hashes, host.Groups = nil, nil
					if err := run(t, NewHost(host, 7), c, nil); err != nil || !c.Done() {
						t.Errorf("%v, done %t, %v", err, c.Done(), c.Failed())
					}
				})
			}
		}
	}
}

// Names are those of Linux and SPDK, in the order in which they are to be taken.
func TestAllowed(t *testing.T) {
	a, err := ParseAllowed([]string{"sha512", "sha256", "sha384"}, []string{"ffdhe8192", "null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144"})
	if want := (Allowed{[]Hash{SHA512, SHA256, SHA384}, []Group{FFDHE8192, GroupNone, FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144}}); err != nil || !a.Equal(want) || a.Equal(Allowed{}) {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := ParseAllowed(nil, nil); err != nil || a.Hashes != nil || a.Groups != nil {
		t.Errorf("nothing named: %v, %v", a, err)
	}
	for want, names := range map[string][2][]string{
		`"sha1" is no hash; there are sha256, sha384, sha512`:                                                  {{"sha1"}, nil},
		`"" is no Diffie-Hellman group; there are null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192`: {nil, {"null", ""}},
		"sha384 is named twice":    {{"sha384", "sha256", "sha384"}, nil},
		"ffdhe2048 is named twice": {nil, {"ffdhe2048", "ffdhe2048"}},
	} {
		if a, err := ParseAllowed(names[0], names[1]); err == nil || !strings.Contains(err.Error(), want) || a.Hashes != nil || a.Groups != nil {
			t.Errorf("%q: %v, %v, want %q", names, a, err, want)
		}
	}
	// The controller takes the first of its own that the host offers, whatever comes first there.
	host := Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: secret(t, hostKey), Allowed: Allowed{[]Hash{SHA256, SHA512, SHA384}, []Group{GroupNone, FFDHE2048}}}
	ctrl := host
	ctrl.Allowed = Allowed{[]Hash{SHA384, SHA512}, []Group{FFDHE2048, GroupNone}}
	c := NewController(ctrl)
	if err := run(t, NewHost(host, 7), c, nil); err != nil || c.String() != "SHA-384, ffdhe2048, the host" {
		t.Errorf("%v, %s", err, c)
	}
}

// Whatever is wrong, neither end believes the other, and each knows why.
func TestRefusals(t *testing.T) {
	type ends struct{ host, ctrl Config }
	base := func(t *testing.T) ends {
		c := Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: secret(t, hostKey), Controller: secret(t, ctrlKey), Allowed: Allowed{Groups: []Group{FFDHE2048}}}
		return ends{c, c}
	}
	set := func(m message, at int, v byte) func(message, []byte) []byte {
		return func(k message, b []byte) []byte {
			if k == m {
				b[at] = v
			}
			return b
		}
	}
	cut := func(m message, n int) func(message, []byte) []byte {
		return func(k message, b []byte) []byte {
			if k == m {
				return b[:n]
			}
			return b
		}
	}
	for _, tt := range []struct {
		name   string
		setup  func(*ends)
		change func(message, []byte) []byte
		reason Reason
		peer   bool // the host found out
	}{
		{"the host's secret", func(e *ends) { e.host.Host = NewSecret() }, nil, Failed, false},
		{"the controller's secret", func(e *ends) { e.ctrl.Controller = NewSecret() }, nil, Failed, true},
		{"no secret of the controller", func(e *ends) { e.ctrl.Controller = nil }, nil, Failed, false},
		{"another host", func(e *ends) { e.host.HostNQN += "x" }, nil, Failed, false},
		{"another subsystem", func(e *ends) { e.host.SubsystemNQN += "x" }, nil, Failed, false},
		{"no common hash", func(e *ends) { e.ctrl.Hashes, e.host.Hashes = []Hash{SHA256}, []Hash{SHA512} }, nil, HashUnusable, false},
		{"no common group", func(e *ends) { e.ctrl.Groups, e.host.Groups = []Group{FFDHE2048}, []Group{GroupNone} }, nil, GroupUnusable, false},
		{"another protocol", nil, set(msgNegotiate, 8, 2), ProtocolUnusable, false},
		{"no protocol", nil, set(msgNegotiate, 7, 0), ProtocolUnusable, false},
		{"31 hashes", nil, set(msgNegotiate, 10, 31), BadPayload, false},
		{"31 groups", nil, set(msgNegotiate, 11, 31), BadPayload, false},
		{"secure channel", nil, set(msgNegotiate, 6, 1), ConcatMismatch, false},
		{"short negotiation", nil, cut(msgNegotiate, 71), BadPayload, false},
		{"a message of 7 bytes", nil, cut(msgNegotiate, 7), BadPayload, false},
		{"a hash that was not offered", func(e *ends) { e.host.Hashes = []Hash{SHA256} }, func(m message, b []byte) []byte {
			if m == msgChallenge {
				c, _ := parseChallenge(b)
				c.hash, c.c1 = SHA384, random(48)
				return c.encode(7)
			}
			return b
		}, HashUnusable, true},
		{"an unknown hash", nil, set(msgChallenge, 8, 9), HashUnusable, true},
		{"an unknown group", nil, set(msgChallenge, 9, 9), GroupUnusable, true},
		{"a group that was not offered", nil, func(m message, b []byte) []byte {
			if m == msgChallenge {
				return (&challenge{hash: SHA256, seq: 1, c1: random(32)}).encode(7)
			}
			return b
		}, GroupUnusable, true},
		{"another hash length", nil, set(msgChallenge, 6, 31), BadPayload, true},
		{"a short challenge", nil, cut(msgChallenge, 40), BadPayload, true},
		{"another transaction of the controller", nil, set(msgChallenge, 4, 8), BadPayload, true},
		{"another transaction of the host", nil, set(msgReply, 4, 8), BadPayload, false},
		{"g^x is 0", nil, func(m message, b []byte) []byte {
			if m == msgChallenge {
				clear(b[16+32:])
			}
			return b
		}, BadPayload, true},
		{"g^x is 1", nil, func(m message, b []byte) []byte {
			if m == msgChallenge {
				clear(b[16+32:])
				b[len(b)-1] = 1
			}
			return b
		}, BadPayload, true},
		{"g^x is p-1", nil, func(m message, b []byte) []byte {
			if m == msgChallenge {
				p := prime(2048, groups[FFDHE2048].x)
				copy(b[16+32:], p.Sub(p, big.NewInt(1)).Bytes())
			}
			return b
		}, BadPayload, true},
		{"g^y is beyond p", nil, func(m message, b []byte) []byte {
			if m == msgReply {
				copy(b[16+64:], bytes.Repeat([]byte{0xFF}, 256))
			}
			return b
		}, BadPayload, false},
		{"a short reply", nil, cut(msgReply, 100), BadPayload, false},
		{"C2 half valid", nil, set(msgReply, 8, 2), BadPayload, false},
		{"another message", nil, set(msgReply, 1, 4), BadMessage, false},
		{"no proof of the controller", nil, set(msgSuccess1, 8, 0), Failed, true},
		{"a short Success1", nil, cut(msgSuccess1, 40), BadPayload, true},
		{"another end", nil, set(msgSuccess2, 1, 2), BadMessage, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := base(t)
			if tt.setup != nil {
				tt.setup(&e)
			}
			c := NewController(e.ctrl)
			err := run(t, NewHost(e.host, 7), c, tt.change)
			if c.Done() {
				t.Fatal("the controller believes it")
			}
			if !tt.peer && c.Failed() == nil { // the host has gone as soon as it was told, or before
				if _, err := c.Receive(); err != nil {
					t.Fatal(err)
				}
			}
			f := c.Failed()
			if f == nil || f.Reason != tt.reason || f.Peer != tt.peer {
				t.Errorf("the controller says %v; want reason %d, found by the host: %t", f, tt.reason, tt.peer)
			}
			var he *Error
			if tt.name == "another end" {
				return // the host has ended well before
			}
			if !errors.As(err, &he) || he.Reason != tt.reason || he.Peer == tt.peer {
				t.Errorf("the host says %v; want reason %d", err, tt.reason)
			}
		})
	}
}

// A host that returns the controller's challenge does not get it answered.
func TestReflection(t *testing.T) {
	cfg := Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: secret(t, hostKey), Controller: secret(t, hostKey), Allowed: Allowed{Hashes: []Hash{SHA256}, Groups: []Group{GroupNone}}}
	c := NewController(cfg)
	c.Send(NewHost(cfg, 0).Negotiate())
	b, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	ch, _ := parseChallenge(b)
	r := reply{seq: 1, c2: ch.c1, r1: cfg.r1(question{hash: SHA256, c: ch.c1, seq: ch.seq})}
	c.Send(r.encode(0))
	if _, err := c.Receive(); err != nil || c.Failed() == nil || c.Failed().Reason != BadPayload {
		t.Errorf("%v, %v", err, c.Failed())
	}
}

func TestOutOfTurn(t *testing.T) {
	cfg := Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: secret(t, hostKey), Allowed: Allowed{Groups: []Group{GroupNone}}}
	c := NewController(cfg)
	if _, err := c.Receive(); err == nil {
		t.Error("a message before any was sent")
	}
	h := NewHost(cfg, 0)
	if _, _, err := h.Handle(success1(0, SHA256, nil)); err == nil {
		t.Error("the host takes Success1 first")
	}
	if err := run(t, NewHost(cfg, 0), c, nil); err != nil || !c.Done() {
		t.Fatal(err)
	}
	if err := c.Send(h.Negotiate()); err == nil {
		t.Error("a message after the end")
	}
}

func FuzzController(f *testing.F) {
	n := (&negotiate{hashes: []Hash{1}, groups: []Group{0}}).encode(0)
	f.Add(n, (&reply{r1: make([]byte, 32), c2: make([]byte, 32)}).encode(0))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		k := NewSecret()
		c := NewController(Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: k, Controller: k, Allowed: Allowed{Groups: []Group{GroupNone}}})
		c.Send(first)
		c.Receive()
		c.Send(second)
		c.Receive()
		if c.Done() {
			t.Fatal("a host that knows nothing is believed")
		}
	})
}

func FuzzHost(f *testing.F) {
	f.Add((&challenge{hash: SHA256, seq: 1, c1: make([]byte, 32)}).encode(0), success1(0, SHA256, make([]byte, 32)))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		k := NewSecret()
		h := NewHost(Config{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: k, Controller: k, Allowed: Allowed{Groups: []Group{GroupNone}}}, 0)
		h.Negotiate()
		h.Handle(first)
		if _, ok, _ := h.Handle(second); ok {
			t.Fatal("a controller that knows nothing is believed")
		}
	})
}

// FuzzMessages reads messages, writes them and reads them again.
func FuzzMessages(f *testing.F) {
	f.Add((&negotiate{concat: 1, hashes: []Hash{SHA256, SHA512}, groups: []Group{GroupNone, 4}}).encode(3), uint8(SHA256), uint8(0))
	f.Add((&challenge{hash: SHA384, group: 1, seq: 7, c1: make([]byte, 48), public: make([]byte, 256)}).encode(3), uint8(SHA384), uint8(1))
	f.Add((&reply{seq: 7, r1: make([]byte, 32), c2: make([]byte, 32), public: make([]byte, 256)}).encode(3), uint8(SHA256), uint8(1))
	f.Add((&reply{r1: make([]byte, 64)}).encode(3), uint8(SHA512), uint8(0))
	f.Add(success1(3, SHA256, make([]byte, 32)), uint8(SHA256), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, hash, group uint8) {
		h, g := Hash(hash), Group(group)
		_, tid, err := kind(b)
		if err != nil {
			return
		}
		if n, err := parseNegotiate(b); err == nil {
			if again, err := parseNegotiate(n.encode(tid)); err != nil || !reflect.DeepEqual(n, again) {
				t.Errorf("%+v became %+v, %v", n, again, err)
			}
		}
		if c, err := parseChallenge(b); err == nil {
			if again, err := parseChallenge(c.encode(tid)); err != nil || !reflect.DeepEqual(c, again) {
				t.Errorf("%+v became %+v, %v", c, again, err)
			}
		}
		if h.Size() == 0 || !g.Known() {
			return
		}
		if r, err := parseReply(b, h, g); err == nil {
			if again, err := parseReply(r.encode(tid), h, g); err != nil || !reflect.DeepEqual(r, again) {
				t.Errorf("%+v became %+v, %v", r, again, err)
			}
		}
		if r2, err := parseSuccess1(b, h); err == nil {
			if again, err := parseSuccess1(success1(tid, h, r2), h); err != nil || !bytes.Equal(r2, again) {
				t.Errorf("%x became %x, %v", r2, again, err)
			}
		}
	})
}

// FuzzSecret reads secrets. What is taken is written as it was, and no error repeats anything of it.
func FuzzSecret(f *testing.F) {
	f.Add(NewSecret().Reveal())
	f.Add((&Secret{key: make([]byte, 48), hash: SHA384}).Reveal())
	f.Add(" DHHC-1:00:AAAA:\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err != nil {
			if key, ok := strings.CutPrefix(text, secretPrefix+"00:"); ok && len(key) >= 16 && strings.Contains(err.Error(), key[:16]) {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := ParseSecret(s.Reveal())
		if err != nil || !s.Equal(again) || len(s.Reveal()) > len(text) || strings.Contains(fmt.Sprintf("%v %+v %#v", s, s, s), string(s.key)) {
			t.Errorf("%q became %q, %v", text, s.Reveal(), err)
		}
	})
}

// What nvme-cli makes is taken, for every hash and length, and what it does not take is not.
func TestKeysOfNVMeCLI(t *testing.T) {
	if _, err := exec.LookPath("nvme"); err != nil {
		t.Skip("nvme-cli is not installed")
	}
	for _, hmac := range []string{"0", "1", "2", "3"} {
		for _, args := range [][]string{{}, {"-l", "32"}, {"-l", "48"}, {"-l", "64"}} {
			out, err := exec.Command("nvme", append([]string{"gen-dhchap-key", "-m", hmac, "-n", hostNQN}, args...)...).CombinedOutput()
			if err != nil {
				continue // it ties some lengths to a hash
			}
			secret(t, strings.TrimSpace(string(out)))
		}
	}
	check := func(s string) bool { return exec.Command("nvme", "check-dhchap-key", "-k", s).Run() == nil }
	if !check(hostKey) {
		t.Skip("this nvme-cli checks no keys")
	}
	for _, s := range []string{plainKey, ctrlKey, NewSecret().Reveal()} {
		if !check(s) {
			t.Errorf("nvme-cli does not take %s", s)
		}
	}
}

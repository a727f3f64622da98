package nvmf_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvme/tls13psk"
	"softiser/internal/nvme/tlspsk"
	"softiser/target"
	"softiser/target/nvmf"
)

const tlsKeyText = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"

func tlsKey(t testing.TB, s string) *tlspsk.Key {
	t.Helper()
	k, err := tlspsk.ParseKey(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// names returns the keys that a host offers for a subsystem.
func names(t testing.TB, k *tlspsk.Key, host, sub string, versions ...tlspsk.Version) (l []tls13psk.Key) {
	t.Helper()
	own, err := k.For(host)
	if err != nil {
		t.Fatal(err)
	}
	suite := tls13psk.AES128GCMSHA256
	if k.Suite() == tlspsk.SHA384 {
		suite = tls13psk.AES256GCMSHA384
	}
	for _, v := range versions {
		id, psk, err := own.Identity(v, host, sub)
		if err != nil {
			t.Fatal(err)
		}
		l = append(l, tls13psk.Key{Identity: id, PSK: psk, Suite: suite})
	}
	return l
}

// secureDial opens a connection as far as ICResp, behind TLS.
func secureDial(t testing.TB, addr string, keys []tls13psk.Key) (*queue, error) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	c, err := tls13psk.Client(nc, tls13psk.ClientConfig{Keys: keys})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return begin(t, c), nil
}

// Both versions of the identity, both hashes, plain or with DH-HMAC-CHAP inside; commands,
// data both ways, and an orderly end.
func TestTLS(t *testing.T) {
	sum := crc32.ChecksumIEEE(bytes.Repeat([]byte{7}, 48))
	long := "NVMeTLSkey-1:02:" + base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint32(bytes.Repeat([]byte{7}, 48), sum)) + ":"
	for _, text := range []string{tlsKeyText, long} {
		for _, v := range []tlspsk.Version{tlspsk.Version0, tlspsk.Version1} {
			k := tlsKey(t, text)
			r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
				s.Hosts = []nvmf.HostRule{{NQN: hostNQN, TLSKey: k, Secret: secret(t, hostSecret), CtrlSecret: secret(t, ctrlSecret)}}
				s.SecureChannel = nvmf.SecureRequired
			})
			keys := names(t, k, hostNQN, subNQN, v)
			q, err := secureDial(t, r.addr, keys)
			if err != nil {
				t.Fatal(err)
			}
			h := &host{queue: q, r: r, data: admin(subNQN)}
			e, err := h.connect(0, h.data, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			h.data.CntlID = nvme.ConnectResult(e.DW0()).CntlID()
			if err := h.authenticate(chap(t, subNQN), 1); err != nil {
				t.Fatal(err)
			}
			h.enable()
			io, err := secureDial(t, r.addr, keys)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.connect(1, h.data, 0); err != nil {
				t.Fatal(err)
			}
			if err := io.authenticate(chap(t, subNQN), 2); err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{512, 8192, 1 << 20} {
				p := pattern(n, byte(n))
				if err := io.write(0, p); err != nil {
					t.Fatal(err)
				}
				if b, err := io.readBlocks(0, n); err != nil || !bytes.Equal(b, p) {
					t.Errorf("%d bytes: %v", n, err)
				}
			}
			if l := r.srv.Controllers(); len(l) != 1 || !l[0].TLS || !l[0].Proved || !strings.HasPrefix(l[0].TLSKey, fmt.Sprintf("NVMe%dR0", v)) || l[0].Proofs != 2 || l[0].FailedProofs != 0 {
				t.Errorf("%+v", l)
			}
			// A plain connection does not get in, whatever it could prove.
			if _, err := dial(t, r.addr).connect(0, admin(subNQN), 0); !errors.Is(err, nvme.ConnectInvalidHost|nvme.DoNotRetry) {
				t.Errorf("a plain Connect: %v", err)
			}
			h.shutdown()
			await.True(t, "the target notices that the host is gone", func() bool { return len(r.srv.Controllers()) == 0 })
		}
	}
}

// Who may come in how, and what the discovery service says of it.
func TestSecureChannel(t *testing.T) {
	k := tlsKey(t, tlsKeyText)
	for _, tt := range []struct {
		name     string
		channel  nvmf.SecureChannel
		rules    []nvmf.HostRule
		plain    bool // Connect without TLS
		tls      bool // the handshake
		need     uint8
		security uint8
	}{
		{"no key", nvmf.SecureAllowed, []nvmf.HostRule{{NQN: hostNQN}}, true, false, 0, nvme.SecurityNone},
		{"key alone", nvmf.SecureAllowed, []nvmf.HostRule{{NQN: hostNQN, TLSKey: k}, {NQN: "nqn.*"}}, false, true, nvme.ChannelRequired, nvme.SecurityTLS13},
		{"key and secret", nvmf.SecureAllowed, []nvmf.HostRule{{NQN: hostNQN, TLSKey: k, Secret: secret(t, hostSecret)}}, true, true, nvme.ChannelNotRequired, nvme.SecurityTLS13},
		{"required", nvmf.SecureRequired, []nvmf.HostRule{{NQN: "nqn.*"}}, false, false, nvme.ChannelRequired, nvme.SecurityTLS13},
		{"none", nvmf.SecureNone, []nvmf.HostRule{{NQN: hostNQN, TLSKey: k}}, true, false, 0, nvme.SecurityNone},
	} {
		r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Hosts, s.SecureChannel = tt.rules, tt.channel })
		_, err := dial(t, r.addr).connect(0, admin(subNQN), 0)
		if (err == nil) != tt.plain || err != nil && !errors.Is(err, nvme.ConnectInvalidHost|nvme.DoNotRetry) {
			t.Errorf("%s, plain: %v", tt.name, err)
		}
		q, err := secureDial(t, r.addr, names(t, k, hostNQN, subNQN, tlspsk.Version1, tlspsk.Version0))
		var e *tls13psk.Error
		if (err == nil) != tt.tls || err != nil && (!errors.As(err, &e) || e.Alert != tls13psk.UnknownPSKIdentity) {
			t.Errorf("%s, TLS: %v", tt.name, err)
		}
		if q != nil {
			if _, err := q.connect(0, admin(subNQN), 0); err != nil {
				t.Errorf("%s, inside TLS: %v", tt.name, err)
			}
		}
		// The discovery service: through TLS where there is a key.
		d, err := secureDial(t, r.addr, names(t, k, hostNQN, nvme.DiscoveryNQN, tlspsk.Version1))
		if err != nil {
			d = dial(t, r.addr)
		}
		h := &host{queue: d, r: r, data: admin(nvme.DiscoveryNQN)}
		res, err := h.connect(0, h.data, time.Minute)
		if err != nil {
			t.Errorf("%s, discovery: %v", tt.name, err)
			continue
		}
		if nvme.ConnectResult(res.DW0())&nvme.AuthRequired != 0 {
			c := chap(t, nvme.DiscoveryNQN)
			c.Controller = nil
			if err := h.authenticate(c, 1); err != nil {
				t.Fatal(err)
			}
		}
		h.enable()
		b := h.log(nvme.LogDiscovery, 1024*int(1+binary.LittleEndian.Uint64(h.log(nvme.LogDiscovery, 1024)[8:])))
		var entry []byte
		rdma := false
		for b = b[1024:]; len(b) > 0; b = b[1024:] {
			if !bytes.HasPrefix(b[256:], []byte(subNQN+"\x00")) {
				continue
			}
			if nvme.TransportType(b[0]) == nvme.TransportTCP {
				entry = b[:1024]
			}
			rdma = rdma || nvme.TransportType(b[0]) == nvme.TransportRDMA
		}
		if entry == nil || rdma == (tt.need == nvme.ChannelRequired) {
			t.Errorf("%s: the discovery log has an entry for RDMA: %t, for TCP: %t", tt.name, rdma, entry != nil)
		} else if entry[3]&3 != tt.need || entry[768] != tt.security {
			t.Errorf("%s: the discovery log has requirements %d, security %d; want %d, %d", tt.name, entry[3]&3, entry[768], tt.need, tt.security)
		}
	}
}

// A key opens the way to its own subsystem, for its own host.
func TestTLSIdentity(t *testing.T) {
	k := tlsKey(t, tlsKeyText)
	const other = "nqn.2026-11.softiser:other"
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Hosts = []nvmf.HostRule{{NQN: hostNQN, TLSKey: k}, {NQN: "nqn.second", TLSKey: k}}
	})
	if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: other}); err != nil {
		t.Fatal(err)
	}
	q, err := secureDial(t, r.addr, names(t, k, hostNQN, subNQN, tlspsk.Version1))
	if err != nil {
		t.Fatal(err)
	}
	d := admin(subNQN)
	d.Host = "nqn.second"
	if _, err := q.connect(0, d, 0); !errors.Is(err, nvme.ConnectInvalidHost|nvme.DoNotRetry) {
		t.Errorf("another host: %v", err)
	}
	if _, err := q.connect(0, admin(other), 0); !errors.Is(err, nvme.ConnectInvalidParameters|nvme.DoNotRetry) {
		t.Errorf("another subsystem: %v", err)
	}
	if _, err := q.connect(0, admin(subNQN), 0); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"", "NVMe1R01", "NVMe0R01 " + hostNQN + " nqn.none", "NVMe0R02 " + hostNQN + " " + subNQN, "NVMe2R01 " + hostNQN + " " + subNQN,
		"NVMe1R01 " + hostNQN + " " + subNQN + " AAAA", "NVMe0R01 nqn.third " + subNQN, "NVMe0G01 " + hostNQN + " " + subNQN} {
		_, err := secureDial(t, r.addr, []tls13psk.Key{{Identity: id, PSK: make([]byte, 32), Suite: tls13psk.AES128GCMSHA256}})
		var e *tls13psk.Error
		if !errors.As(err, &e) || e.Alert != tls13psk.UnknownPSKIdentity && e.Alert != tls13psk.DecryptError {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// A handshake that does not go on has the time of a Connect.
func TestTLSTimeout(t *testing.T) {
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Timeouts.Login = 300 * time.Millisecond })
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Write([]byte{0x16, 3, 1, 1}); err != nil {
		t.Fatal(err)
	}
	if err := nc.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var ne net.Error
	if _, err := io.ReadAll(nc); errors.As(err, &ne) && ne.Timeout() {
		t.Error(err)
	}
}

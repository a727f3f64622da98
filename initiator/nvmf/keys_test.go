package nvmf_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	. "softiser/initiator/nvmf"
	"softiser/internal/nvme/dhchap"
	"softiser/internal/nvme/tlspsk"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
)

const (
	hostSecret = "DHHC-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:"
	ctrlSecret = "DHHC-1:02:YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKDhIWGh4iJiouMjY6PbQqfxQ==:"
	tlsKey     = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
)

// serveKeys runs our target, whose host has keys.
func serveKeys(t testing.TB, k Keys) string {
	t.Helper()
	addr, _, _ := serve(t, func(_ *target.Config, s *targetnvmf.SubsystemConfig) {
		rule := targetnvmf.HostRule{NQN: hostNQN}
		var err error
		for _, p := range []struct {
			text string
			to   **dhchap.Secret
		}{{k.Secret, &rule.Secret}, {k.CtrlSecret, &rule.CtrlSecret}} {
			if p.text == "" {
				continue
			}
			if *p.to, err = dhchap.ParseSecret(p.text); err != nil {
				t.Fatal(err)
			}
		}
		if rule.Proof, err = dhchap.ParseAllowed(k.Hashes, k.DHGroups); err != nil {
			t.Fatal(err)
		}
		if k.TLSKey != "" {
			if rule.TLSKey, err = tlspsk.ParseKey(k.TLSKey); err != nil {
				t.Fatal(err)
			}
		}
		s.Hosts = []targetnvmf.HostRule{rule}
	})
	return addr
}

// Host and target with each combination of keys: data both ways over several queues, and
// the discovery service.
func TestKeys(t *testing.T) {
	for _, k := range []Keys{
		{Secret: hostSecret}, {Secret: hostSecret, CtrlSecret: ctrlSecret}, {TLSKey: tlsKey}, {Secret: hostSecret, CtrlSecret: ctrlSecret, TLSKey: tlsKey},
		{Secret: hostSecret, CtrlSecret: ctrlSecret, Hashes: []string{"sha512"}, DHGroups: []string{"ffdhe2048", "null"}},
	} {
		for _, digests := range []bool{false, true} {
			t.Run(fmt.Sprintf("secret=%t ctrl=%t hashes=%s tls=%t digests=%t", k.Secret != "", k.CtrlSecret != "", k.Hashes, k.TLSKey != "", digests), func(t *testing.T) {
				cfg := config(serveKeys(t, k))
				cfg.Keys, cfg.Queues, cfg.HeaderDigest, cfg.DataDigest = k, 2, digests, digests
				n := open(t, cfg)
				data := random(3 << 20)
				back := make([]byte, len(data))
				if _, err := n.WriteAt(data, 4096); err != nil {
					t.Fatal(err)
				}
				if _, err := n.ReadAt(back, 4096); err != nil || !bytes.Equal(back, data) {
					t.Errorf("what was written is not read: %v", err)
				}
				if err := n.Flush(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Keys that are wrong on one side, and what the host says of them.
func TestWrongKeys(t *testing.T) {
	other := dhchap.NewSecret().Reveal()
	for _, tt := range []struct {
		name         string
		target, host Keys
		want         string
	}{
		{"no key", Keys{Secret: hostSecret}, Keys{}, "asks for authentication"},
		{"another secret", Keys{Secret: hostSecret}, Keys{Secret: other}, "authentication failed"},
		{"the target has no secret of its own", Keys{Secret: hostSecret}, Keys{Secret: hostSecret, CtrlSecret: ctrlSecret}, "authentication failed"},
		{"the target has another", Keys{Secret: hostSecret, CtrlSecret: other}, Keys{Secret: hostSecret, CtrlSecret: ctrlSecret}, "does not know its secret"},
		{"the target asks for nothing", Keys{}, Keys{Secret: hostSecret, CtrlSecret: ctrlSecret}, "does not ask for authentication"},
		{"plain where TLS is wanted", Keys{TLSKey: tlsKey}, Keys{}, "invalid host"},
		{"TLS where there is no key", Keys{}, Keys{TLSKey: tlsKey}, "unknown PSK identity; it has no key for this host's NQN (--hostnqn)"},
		{"no secret", Keys{}, Keys{Secret: "DHHC-1:00:secret"}, "is not of the form"},
		{"no secret of the controller", Keys{}, Keys{Secret: hostSecret, CtrlSecret: "x"}, "the controller's key"},
		{"another hash", Keys{Secret: hostSecret, Hashes: []string{"sha384"}}, Keys{Secret: hostSecret, Hashes: []string{"sha256", "sha512"}}, "hash function not usable"},
		{"another group", Keys{Secret: hostSecret, DHGroups: []string{"null"}}, Keys{Secret: hostSecret, DHGroups: []string{"ffdhe2048"}}, "group not usable"},
		{"an unknown hash", Keys{}, Keys{Secret: hostSecret, Hashes: []string{"md5"}}, `"md5" is no hash`},
		{"a hash and no secret", Keys{}, Keys{Hashes: []string{"sha256"}}, "go with a secret"},
		{"no TLS key", Keys{}, Keys{TLSKey: "x"}, "NVMeTLSkey-1"},
		{"the controller's alone", Keys{}, Keys{CtrlSecret: ctrlSecret}, "goes with one of the host"},
		{"the same", Keys{}, Keys{Secret: hostSecret, CtrlSecret: hostSecret}, "the same secret"},
	} {
		cfg := config(serveKeys(t, tt.target))
		cfg.Keys = tt.host
		n, err := Open(t.Context(), cfg)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		} else if strings.Contains(err.Error(), "ICEi") || strings.Contains(err.Error(), "secret\"") {
			t.Errorf("%s: the error repeats a secret: %v", tt.name, err)
		} else if strings.Contains(err.Error(), "use nvme+") {
			t.Errorf("%s: the port has answered, and another transport is advised: %v", tt.name, err)
		}
	}
	// A secret that nobody asks for is no obstacle, as with Linux.
	cfg := config(serveKeys(t, Keys{}))
	cfg.Keys = Keys{Secret: hostSecret}
	open(t, cfg)
}

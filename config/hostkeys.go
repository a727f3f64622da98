package config

import (
	"fmt"
	"os"
	"strings"

	"softiser/internal/nvme/dhchap"
	"softiser/internal/nvme/tlspsk"
)

// HostKey is what one NVMe host and the subsystem prove to each other. The secrets
// themselves are never part of a configuration, nor printed.
type HostKey struct {
	Host string `mapstructure:"host" json:"host"` // NQN
	// The secret that the host proves to know, in the form that nvme gen-dhchap-key prints.
	DHCHAPSecretFile string `mapstructure:"dhchap_secret_file" json:"dhchap_secret_file,omitempty"`
	DHCHAPSecretEnv  string `mapstructure:"dhchap_secret_env" json:"dhchap_secret_env,omitempty"` // the same, in an environment variable
	// The one that the subsystem proves to know when the host asks for it.
	DHCHAPCtrlSecretFile string `mapstructure:"dhchap_ctrl_secret_file" json:"dhchap_ctrl_secret_file,omitempty"`
	DHCHAPCtrlSecretEnv  string `mapstructure:"dhchap_ctrl_secret_env" json:"dhchap_ctrl_secret_env,omitempty"` // the same, in an environment variable
	// The hashes and Diffie-Hellman groups that proofs may be made with, the best first:
	// sha256, sha384, sha512; null, ffdhe2048 to ffdhe8192. Empty: every one.
	DHCHAPHashes []string `mapstructure:"dhchap_hashes" json:"dhchap_hashes,omitempty"`
	DHCHAPGroups []string `mapstructure:"dhchap_dhgroups" json:"dhchap_dhgroups,omitempty"`
	// The pre-shared key of TLS, in the form that nvme gen-tls-key prints. A host with no
	// other secret has to use TLS.
	TLSKeyFile string `mapstructure:"tls_key_file" json:"tls_key_file,omitempty"`
	TLSKeyEnv  string `mapstructure:"tls_key_env" json:"tls_key_env,omitempty"` // the same, in an environment variable

	secret, ctrl *HostSecret
	allowed      ProofAllowed
	tls          *TLSKey
}

// HostSecret is what one side of DH-HMAC-CHAP proves to know (TP 8006). It does not print
// itself.
type HostSecret = dhchap.Secret

// ProofAllowed are the hashes and groups that DH-HMAC-CHAP may use.
type ProofAllowed = dhchap.Allowed

// TLSKey is a configured pre-shared key of TLS (NVMe TCP Transport 1.1, 3.6.1.5). It does
// not print itself.
type TLSKey = tlspsk.Key

// SecureChannels are the values of Subsystem.SecureChannel.
var SecureChannels = []string{"allowed", "required", "none"}

// Secret returns what the host has to know, that Load has read.
func (h *HostKey) Secret() *HostSecret { return h.secret }

// CtrlSecret returns what the subsystem proves to know; nil: nothing.
func (h *HostKey) CtrlSecret() *HostSecret { return h.ctrl }

// Proof returns what proofs may be made with.
func (h *HostKey) Proof() ProofAllowed { return h.allowed }

// TLSKey returns the pre-shared key of TLS; nil: there is none.
func (h *HostKey) TLSKey() *TLSKey { return h.tls }

// keyPlace is where one key of a host comes from.
type keyPlace struct {
	key       string // its keys in the file begin with this
	file, env *string
	parse     func(string) error
}

func (h *HostKey) places() []keyPlace {
	return []keyPlace{
		{"dhchap_secret", &h.DHCHAPSecretFile, &h.DHCHAPSecretEnv, parser(&h.secret, dhchap.ParseSecret)},
		{"dhchap_ctrl_secret", &h.DHCHAPCtrlSecretFile, &h.DHCHAPCtrlSecretEnv, parser(&h.ctrl, dhchap.ParseSecret)},
		{"tls_key", &h.TLSKeyFile, &h.TLSKeyEnv, parser(&h.tls, tlspsk.ParseKey)},
	}
}

func parser[T any](to **T, parse func(string) (*T, error)) func(string) error {
	return func(s string) (err error) {
		*to, err = parse(s)
		return err
	}
}

// hostKeys calls f for every key of a host of every subsystem, with its key in the file.
func (c *Config) hostKeys(f func(key string, s *Subsystem, h *HostKey)) {
	for i := range c.Subsystems {
		s := &c.Subsystems[i]
		for j := range s.Keys {
			f(fmt.Sprintf("subsystems[%d].keys[%d]", i, j), s, &s.Keys[j])
		}
	}
}

// readHostKeys reads the files, and checks that the keys fit together.
func (c *Config) readHostKeys(r *report) {
	first := map[string]*HostKey{}
	c.hostKeys(func(key string, s *Subsystem, h *HostKey) {
		if !strings.HasPrefix(h.Host, "nqn.") || len(h.Host) > maxNQN || strings.ContainsAny(h.Host, "*?[\\ \t\n") {
			r.add(key+".host", "%q is not the NVMe name of one host", h.Host)
		}
		for i := range s.Keys {
			if o := &s.Keys[i]; o == h {
				break
			} else if o.Host == h.Host {
				r.add(key+".host", "%s has keys already; keep them together", h.Host)
			}
		}
		for _, p := range h.places() {
			p.read(r, key)
		}
		chap, tls := h.DHCHAPSecretFile+h.DHCHAPSecretEnv != "", h.TLSKeyFile+h.TLSKeyEnv != ""
		switch {
		case !chap && (!tls || h.DHCHAPCtrlSecretFile+h.DHCHAPCtrlSecretEnv != ""):
			r.add(key, "no secret; name a dhchap_secret_file or a dhchap_secret_env")
		case tls && s.SecureChannel == "none":
			r.add(key, "a TLS key has no effect with secure_channel: none")
		case !tls && s.SecureChannel == "required":
			r.add(key, "the host needs a TLS key, because secure_channel is required; name a tls_key_file or a tls_key_env")
		}
		var err error
		if h.allowed, err = dhchap.ParseAllowed(h.DHCHAPHashes, h.DHCHAPGroups); err != nil {
			r.add(key, "%v", err)
		} else if !chap && len(h.DHCHAPHashes)+len(h.DHCHAPGroups) > 0 {
			r.add(key, "dhchap_hashes and dhchap_dhgroups have no effect without a dhchap_secret_file or a dhchap_secret_env")
		}
		// One secret for both directions can be reflected.
		if h.ctrl != nil && h.secret.Equal(h.ctrl) {
			r.add(key, "both directions have the same secret; they need different ones")
		}
		// A host proves who it is to the discovery service too, which all subsystems share.
		if o := first[h.Host]; o != nil && (!o.secret.Equal(h.secret) || !o.ctrl.Equal(h.ctrl) || !o.tls.Equal(h.tls) || !o.allowed.Equal(h.allowed)) {
			r.add(key, "%s has other secrets in another subsystem, or other hashes or groups; a host has the same everywhere", h.Host)
		}
		if first[h.Host] == nil {
			first[h.Host] = h
		}
	})
}

// read reads one key of an NVMe host from the file or environment variable that is
// named, and checks its form.
func (p *keyPlace) read(r *report, key string) {
	var text string
	at := key + "." + p.key
	switch {
	case *p.file != "" && *p.env != "":
		r.add(key, "both %s_file and %s_env are set; keep one", p.key, p.key)
		return
	case *p.file != "":
		at += "_file"
		b, err := readSecret(*p.file)
		if err != nil {
			r.add(at, "%v", err)
			return
		}
		text = string(b)
	case *p.env != "":
		at += "_env"
		if text = os.Getenv(*p.env); text == "" {
			r.add(at, "the environment variable %s is empty or not set", *p.env)
			return
		}
	default:
		return
	}
	if err := p.parse(text); err != nil {
		r.add(at, "%v", err)
	}
}

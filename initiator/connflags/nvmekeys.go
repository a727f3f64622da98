package connflags

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator/nvmf"
)

// keyOptions are the keys of an NVMe host, under the names that nvme-cli gives them. A key
// stands there, or in a file, or in the environment, which other users do not see.
type keyOptions struct {
	secret, ctrlSecret string
	hashes, groups     []string
	tls                tlsOptions
	again              time.Duration
}

// Environment variables of keys: the key, or the name of a file with it.
const (
	envDHCHAP     = "NVME_DHCHAP_SECRET"
	envDHCHAPCtrl = "NVME_DHCHAP_CTRL_SECRET"
	envTLSKey     = "NVME_TLS_KEY"
)

func (o *keyOptions) register(fs *pflag.FlagSet) {
	fs.StringVar(&o.secret, "dhchap-secret", "", "NVMe: our key for DH-HMAC-CHAP, DHHC-1:…, or a file with it (default: $"+envDHCHAP+")")
	fs.StringVar(&o.ctrlSecret, "dhchap-ctrl-secret", "", "NVMe: the key that the controller has to prove, or a file with it (default: $"+envDHCHAPCtrl+")")
	fs.StringSliceVar(&o.hashes, "dhchap-hashes", nil, "NVMe: hashes that may be used, of sha256, sha384, sha512 (default: every one)")
	fs.StringSliceVar(&o.groups, "dhchap-dhgroups", nil, "NVMe: Diffie-Hellman groups that may be used, of null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192 (default: every one)")
	fs.DurationVar(&o.again, "dhchap-interval", 0, "NVMe: authenticate again at this interval, for example 1h; 0: only when connecting")
	o.tls.register(fs)
}

var errNoTLSKey = errors.New("--tls needs a key: give --tls-key, or set $" + envTLSKey)

func (o *keyOptions) apply(k *nvmf.Keys) (err error) {
	if k.Secret, err = nvmeKey("dhchap-secret", o.secret, envDHCHAP); err != nil {
		return err
	}
	if k.CtrlSecret, err = nvmeKey("dhchap-ctrl-secret", o.ctrlSecret, envDHCHAPCtrl); err != nil {
		return err
	}
	k.Hashes, k.DHGroups = o.hashes, o.groups
	if on, err := o.tls.psk(); !on || err != nil {
		return err
	}
	if k.TLSKey, err = nvmeKey("tls-key", o.tls.key, envTLSKey); err == nil && k.TLSKey == "" {
		err = errNoTLSKey
	}
	return err
}

// nvmeKey returns the key that v is or names.
func nvmeKey(name, v, env string) (string, error) {
	if v == "" {
		v = os.Getenv(env)
	}
	if v == "" || strings.HasPrefix(v, "DHHC-1:") || strings.HasPrefix(v, "NVMeTLSkey-1:") {
		return v, nil
	}
	key, err := firstLine(v)
	switch {
	case err == nil:
		return key, nil
	case strings.Contains(v, ":") && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG)): // a mistyped key, which is not to be seen
		return "", fmt.Errorf("--%s, or $%s: what it says is no file, nor a key, which begins with DHHC-1: or NVMeTLSkey-1:", name, env)
	}
	return "", fmt.Errorf("--%s, or $%s: neither a key nor a file with one: %w", name, env, err)
}

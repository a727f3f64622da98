package connflags

import (
	"fmt"
	"strings"
	"time"
)

// check refuses values that package initiator takes for "the default": who gives them means something else.
func (o *Options) check() error {
	for _, n := range []struct {
		name   string
		v      int64
		lo, hi int64 // of the two configurations
		want   string
	}{
		{"nr-sessions", int64(o.Sessions), 1, 64, "1 to 64"}, {"queue-depth", int64(o.QueueDepth), 1, 4096, "1 to 4096"},
		{"max-transfer", o.MaxTransfer, 4096, 1 << 30, "4KiB to 1GiB"}, {"first-burst", o.FirstBurst, 512, 1<<24 - 1, "512 to 16777215"},
		{"max-burst", o.MaxBurst, 512, 1<<24 - 1, "512 to 16777215"}, {"max-recv-data", o.MaxRecv, 512, 1<<24 - 1, "512 to 16777215"},
	} {
		if n.v < n.lo || n.v > n.hi {
			return fmt.Errorf("--%s %d: want %s", n.name, n.v, n.want)
		}
	}
	for _, d := range []struct {
		name  string
		v     time.Duration
		never bool // less than 0 says so
	}{
		{"login-timeout", o.LoginTimeout, false}, {"command-timeout", o.CommandTimeout, true},
		{"noop-interval", o.NopInterval, true}, {"noop-timeout", o.NopTimeout, false},
		{"silence-ping", o.SilencePing, false}, {"silence-probe", o.SilenceProbe, true},
	} {
		switch {
		case d.v == 0 && d.never:
			return fmt.Errorf("--%s 0: want a time above 0, or -1s for never", d.name)
		case d.v <= 0 && !d.never:
			return fmt.Errorf("--%s %v: want a time above 0", d.name, d.v)
		}
	}
	return nil
}

// CheckSecrets refuses options that prove who somebody is where they are without effect, as nothing that is
// reached over iSCSI, or over NVMe, has them: who gives them counts on the proof.
func (o *Options) CheckSecrets(iscsi, nvme bool) error {
	for _, name := range []string{"chap-user", "chap-secret-file", "chap-target-user", "chap-target-secret-file", "chap-algs",
		"dhchap-secret", "dhchap-ctrl-secret", "dhchap-hashes", "dhchap-dhgroups", "dhchap-interval"} {
		switch ofNVMe := strings.HasPrefix(name, "dhchap-"); {
		case !o.path.fs.Changed(name):
		case ofNVMe && !nvme:
			return fmt.Errorf("--%s is for NVMe; iSCSI has CHAP: --chap-user, --chap-secret-file", name)
		case !ofNVMe && !iscsi:
			return fmt.Errorf("--%s is for iSCSI; NVMe has DH-HMAC-CHAP: --dhchap-secret, --dhchap-ctrl-secret", name)
		}
	}
	return nil
}

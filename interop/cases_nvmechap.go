package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"softiser/initiator/nvmf"
	"softiser/interop/internal/guest"
)

// DH-HMAC-CHAP, with Linux as the host and as the target. Debian's kernel is built
// without it, so the guest loads modules that are built from Debian's source of it.

var chapCases = []Case{
	{Name: "nvme-tcp/chap", Expect: "Linux and our target prove who they are, one way and both, with every hash and every group; wrong secrets are refused", Fresh: true, Limit: 20 * time.Minute, Run: chapHost},
	{Name: "nvme-rdma/chap", Expect: "the same over siw, with every hash and three groups", Fresh: true, Limit: 20 * time.Minute, Run: chapHostRDMA},
	{Name: "nvme-host/chap", Expect: "our host and Linux' target prove who they are, one way and both, with every hash and every group; wrong secrets are refused", Fresh: true, Limit: 20 * time.Minute, Run: chapTarget},
	{Name: "nvme-host/chap-rdma", Expect: "the same over siw, with every hash and three groups", Fresh: true, Limit: 20 * time.Minute, Run: chapTargetRDMA},
}

// chapGroups are those of RFC 7919 and none, by the names of Linux and in the order of their
// identifiers; chapHashes are the hashes, whose identifiers begin at 1.
var (
	chapGroups = []string{"null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"}
	chapHashes = []string{"hmac(sha256)", "hmac(sha384)", "hmac(sha512)"}
)

// chapWay is one way of authentication.
type chapWay struct {
	hash, group int // indices of chapHashes and chapGroups
	both        bool
	pair        chapPair
}

// chapWays are every hash with no group and with the smallest one, one way and both, and
// each of the others once: they take an emulated processor long.
func chapWays(pairs []chapPair) []chapWay {
	var ways []chapWay
	add := func(hash, group int, both bool) {
		ways = append(ways, chapWay{hash, group, both, pairs[len(ways)%len(pairs)]})
	}
	for hash := range chapHashes {
		for group := range 2 {
			add(hash, group, false)
			add(hash, group, true)
		}
	}
	for group := 2; group < len(chapGroups); group++ {
		add(group%len(chapHashes), group, true)
	}
	return ways
}

// chapWaysRDMA are fewer: what is proved is the same, whatever carries it.
func chapWaysRDMA(p []chapPair) []chapWay {
	return []chapWay{{0, 0, false, p[0]}, {1, 0, true, p[1]}, {2, 1, true, p[2]}, {0, 2, true, p[3]}}
}

// chapPair is what a host and the subsystem prove to each other.
type chapPair struct{ host, secret, ctrlSecret string }

// hostID is the identifier in the host's name.
func (p chapPair) hostID() string { return p.host[strings.LastIndex(p.host, ":")+1:] }

// chapUp boots a guest with the modules in, and has its nvme-cli make the secrets of four
// hosts and a subsystem: as they are, and for each hash that a key can be transformed with.
func (e *Env) chapUp(subsystem string) ([]chapPair, error) {
	modules, err := e.h.images[e.w.kind].NVMeAuth(guest.CacheDir(), func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return nil, err
	}
	g, err := e.Guest()
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(filepath.Join(g.Dir(), "nvme-auth"), os.DirFS(modules)); err != nil {
		return nil, err
	}
	pairs := make([]chapPair, 4)
	script := "nvme_auth_up >&2 || die modules\n"
	for i := range pairs {
		pairs[i].host = fmt.Sprintf("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-0000000000c%d", i)
		script += fmt.Sprintf("nvme gen-dhchap-key -m %d -n %s || die key; nvme gen-dhchap-key -m %d -n %s || die key\n", i, pairs[i].host, (i+2)%4, subsystem)
	}
	out, err := g.Run(e.ctx, script)
	if err != nil {
		return nil, err
	}
	keys := strings.Fields(out)
	if len(keys) != 2*len(pairs) {
		return nil, fmt.Errorf("nvme gen-dhchap-key has printed %q", out)
	}
	for i := range pairs {
		pairs[i].secret, pairs[i].ctrlSecret = keys[2*i], keys[2*i+1]
	}
	return pairs, nil
}

// chapNamespace is ramNamespace with keys, which it writes into dir.
func chapNamespace(dir string, pairs []chapPair) (string, error) {
	text := ramNamespace + "    keys:\n"
	for i, p := range pairs {
		host, ctrl := fmt.Sprintf("host%d.key", i), fmt.Sprintf("ctrl%d.key", i)
		text += fmt.Sprintf("      - {host: %q, dhchap_secret_file: %s, dhchap_ctrl_secret_file: %s}\n", p.host, host, ctrl)
		for name, key := range map[string]string{host: p.secret, ctrl: p.ctrlSecret} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(key+"\n"), 0o600); err != nil {
				return "", err
			}
		}
	}
	return text, nil
}

// chapAttach connects as $host with identifier $id and the options of "$@", and wants it refused with refused.
const chapAttach = `
attach() { nvme_attach @TRANSPORT @PORT @NQN -q $host -I $id "$@"; }
refused() {
  attach "$@" >/tmp/out 2>&1 && { cat /tmp/out; die "accepted: $*"; }
  c=$(nvme_ctrl @NQN) && die "a controller is left: $c"; return 0
}
# discovery OPTION...: connects to the discovery service; the controller is in $c. nvme discover keeps secrets to itself.
discovery() {
  local d=nqn.2014-08.org.nvmexpress.discovery o="" a; for a; do o=$o,$a; done
  echo -n "transport=@TRANSPORT,traddr=$HOST,trsvcid=@PORT,nqn=$d,hostnqn=$host,hostid=$id$o" 2>/tmp/out >/dev/nvme-fabrics || return
  c=$(nvme_ctrl $d)
}
`

// chapDiscovery has Linux' host prove itself to the discovery service, one way and both; who
// does not is told nothing.
const chapDiscovery = `
! discovery || die discovery without a secret; ! discovery dhchap_secret=@WRONG || die discovery with another secret; ! discovery dhchap_secret=@SECRET,dhchap_ctrl_secret=@WRONG || die discovery of another controller
for o in dhchap_secret=@SECRET dhchap_secret=@SECRET,dhchap_ctrl_secret=@CTRL; do
  dmesg -C; discovery $o || { dmesg | tail -5; die discovery $o; }
  dmesg | grep -qF 'authenticated with hash' || die discovery asks for no proof
  nvme get-log /dev/$c -i 0x70 -l 4096 -b | grep -aqF @NQN || die not listed
  echo 1 >/sys/class/nvme/$c/delete_controller
done
`

func chapHost(_ context.Context, e *Env) (string, error) { return chapHostOver(e, "tcp", chapWays) }

func chapHostRDMA(_ context.Context, e *Env) (string, error) {
	return chapHostOver(e, "rdma", chapWaysRDMA)
}

// chapHostOver has Linux' host authenticate itself. It offers one hash and one group at a
// time, since our target would always choose the same.
func chapHostOver(e *Env, transport string, list func([]chapPair) []chapWay) (string, error) {
	pairs, err := e.chapUp(ramNQN)
	if err != nil {
		return "", err
	}
	config, err := chapNamespace(e.dir, pairs)
	if err != nil {
		return "", err
	}
	t, err := e.Target(config)
	if err != nil {
		return "", err
	}
	in := func(p chapPair, script string) error {
		r := strings.NewReplacer("@TRANSPORT", transport, "@PORT", fmt.Sprint(t.Port), "@NQN", ramNQN, "@SECRET", p.secret, "@CTRL", p.ctrlSecret, "@WRONG", pairs[0].secret)
		_, err := e.In("%s", fmt.Sprintf("host=%s id=%s\n", p.host, p.hostID())+r.Replace(chapAttach+script))
		return err
	}
	const disconnect = "\nnvme disconnect -n @NQN >/dev/null || die disconnect"
	if transport == "rdma" {
		if _, err := e.In("siw_up || die siw"); err != nil {
			return "", err
		}
	}
	ways := list(pairs)
	for i, w := range ways {
		options, proofs := "-S @SECRET", 0
		if w.both {
			options, proofs = options+" -C @CTRL", 1
		}
		if err := in(w.pair, fmt.Sprintf(`dmesg -C; echo %d >/sys/module/nvme_core/parameters/dhchap_hash; echo %d >/sys/module/nvme_core/parameters/dhchap_group
d=$(attach %s) || die connect: $d
dmesg | grep -qF 'authenticated with hash %s dhgroup %s' || die how; [ "$(dmesg | grep -c 'controller authenticated')" = %d ] || die the proof of the controller
head -c 1M /dev/urandom >/tmp/a; dd if=/tmp/a of=$d bs=64k seek=%d oflag=direct status=none && dd if=$d bs=64k skip=%[7]d count=16 iflag=direct status=none | cmp /tmp/a - || die other data`,
			w.hash+1, w.group, options, chapHashes[w.hash], chapGroups[w.group], proofs, 16*i)+disconnect); err != nil {
			return "", fmt.Errorf("%s, %s, both %t: %w", chapHashes[w.hash], chapGroups[w.group], w.both, err)
		}
	}
	if err := in(pairs[1], `
echo 0 >/sys/module/nvme_core/parameters/dhchap_hash; echo -1 >/sys/module/nvme_core/parameters/dhchap_group
refused; refused -S @WRONG; refused -S @WRONG -C @CTRL; refused -S @SECRET -C @WRONG
`+chapDiscovery+`dmesg -C; d=$(attach -S @SECRET -C @CTRL) || die connect: $d
verify $d 8 2 16 || die fio; c=$(nvme_ctrl @NQN); echo 1 >/sys/class/nvme/$c/reset_controller || die reset; verify $d 8 2 16 || die fio after the reset
[ "$(dmesg | grep -c 'controller authenticated')" = 2 ] || die no proof at the reset`+disconnect+"\nquiet_kernel || die kernel"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d ways proved, wrong secrets refused; discovery, one way and both; again after a reset, verified", len(ways)), t.Stop()
}

func chapTarget(ctx context.Context, e *Env) (string, error) {
	return chapTargetOver(ctx, e, e.nvmet, chapWays)
}

func chapTargetRDMA(ctx context.Context, e *Env) (string, error) {
	return chapTargetOver(ctx, e, e.nvmetRDMA, chapWaysRDMA)
}

// chapTargetOver has our host authenticate itself to Linux' target, which chooses the hash
// and the group. Its port is open to the hosts with keys alone. Over each way the host may
// use that hash and that group alone, but for a second group where there is to be none.
func chapTargetOver(ctx context.Context, e *Env, serve func() (nvmf.Config, error), list func([]chapPair) []chapWay) (string, error) {
	pairs, err := e.chapUp(labNQN)
	if err != nil {
		return "", err
	}
	cfg, err := serve()
	if err != nil {
		return "", err
	}
	if _, err := e.In("echo 0 >/sys/kernel/config/nvmet/subsystems/%s/attr_allow_any_host || die attr_allow_any_host", labNQN); err != nil {
		return "", err
	}
	for _, p := range pairs {
		if _, err := e.In(`h=/sys/kernel/config/nvmet/hosts/%s; mkdir $h && printf %%s '%s' >$h/dhchap_key && printf %%s '%s' >$h/dhchap_ctrl_key && ln -s $h /sys/kernel/config/nvmet/subsystems/%s/allowed_hosts/ || die host`,
			p.host, p.secret, p.ctrlSecret, labNQN); err != nil {
			return "", err
		}
	}
	ways := list(pairs)
	for _, w := range ways {
		if _, err := e.In(`h=/sys/kernel/config/nvmet/hosts/%s; printf %%s '%s' >$h/dhchap_hash && printf %%s %s >$h/dhchap_dhgroup || die configfs
[ "$(cat $h/dhchap_hash $h/dhchap_dhgroup | tr '\n' ' ')" = '%[2]s %[3]s ' ] || die not taken`, w.pair.host, chapHashes[w.hash], chapGroups[w.group]); err != nil {
			return "", err
		}
		hash := strings.TrimSuffix(strings.TrimPrefix(chapHashes[w.hash], "hmac("), ")")
		cfg.Keys.Hashes, cfg.Keys.DHGroups = []string{hash}, []string{chapGroups[w.group]}
		if w.group == 0 { // Linux' target finds no group where "null" alone is offered
			cfg.Keys.DHGroups = append(cfg.Keys.DHGroups, chapGroups[1])
		}
		if err := proved(ctx, cfg, w.pair, w.both); err != nil {
			return "", fmt.Errorf("%s, %s, both %t: %w", chapHashes[w.hash], chapGroups[w.group], w.both, err)
		}
	}
	if err := chapRefused(ctx, cfg, pairs); err != nil {
		return "", err
	}
	_, err = e.In("quiet_kernel || die kernel")
	return fmt.Sprintf("%d ways proved, verified; wrong secrets refused", len(ways)), err
}

// proved does everySize as the host of p. With both the target has to prove itself too.
func proved(ctx context.Context, cfg nvmf.Config, p chapPair, both bool) error {
	cfg.HostNQN, cfg.Keys.Secret = p.host, p.secret
	if both {
		cfg.Keys.CtrlSecret = p.ctrlSecret
	}
	_, err := verified(ctx, cfg)
	return err
}

// chapRefused tries without a secret, with another host's, and with another one of the
// target than it has.
func chapRefused(ctx context.Context, cfg nvmf.Config, pairs []chapPair) error {
	p := pairs[1]
	cfg.HostNQN = p.host
	failed := "the peer says: authentication failed"
	if cfg.Transport == nvmf.TransportRDMA {
		// Linux' target queues the controller's end before it sends why (nvmet_execute_auth_receive in
		// fabrics-cmd-auth.c: nvmet_ctrl_fatal_error, then nvmet_req_complete). Over RDMA that end is
		// rdma_disconnect, which now and then is first and drops the answer.
		failed += "|the connection was lost"
	}
	for _, c := range []struct {
		name, want string // why it is refused, a pattern
		keys       nvmf.Keys
	}{
		{"no secret", "no key is given", nvmf.Keys{}},
		{"another secret", failed, nvmf.Keys{Secret: pairs[0].secret}},
		{"another secret of the target", "the controller does not know its secret", nvmf.Keys{Secret: p.secret, CtrlSecret: pairs[0].ctrlSecret}},
	} {
		cfg.Keys = c.keys
		n, err := nvmf.Open(ctx, cfg)
		if err == nil {
			return errors.Join(fmt.Errorf("accepted with %s", c.name), n.Close())
		}
		if !regexp.MustCompile(c.want).MatchString(err.Error()) {
			return fmt.Errorf("with %s: %w", c.name, err)
		}
	}
	return nil
}

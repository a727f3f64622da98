package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/certs/certtest"
	"softiser/internal/loopback"
)

const tlsConfig = `
portals:
  - {listen: "ADDR", tls: {cert: server.pem, key: server.key, client_ca: ca.pem}, advertise: "TUNNEL"}
  - {listen: "OPEN", group: 2, tls: {cert: server.pem, key: server.key, mode: allowed}}
volumes: [{name: d, type: memory, size: 8MiB}]
targets: [{iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: d}]}]
subsystems:
  - nqn: nqn.2026-11.test:a
    namespaces: [{nsid: 1, volume: d}]
    keys: [{host: "nqn.2026-11.test:host", tls_key_file: psk}]
admin: {socket: SOCK}
logging: {level: warn}
`

const tlsPSK = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"

// tlsBed is a target with a portal that requires TLS and certificates of initiators, and one
// that allows TLS.
type tlsBed struct {
	*reloadBed
	ca           *certtest.CA
	open, tunnel string // addresses
	issued       int    // certificates of initiators
}

func newTLSBed(t *testing.T) *tlsBed {
	dir := t.TempDir()
	b := &tlsBed{
		reloadBed: &reloadBed{t: t, dir: dir, addr: loopback.FreeAddr(t), sock: filepath.Join(dir, "s"), f: filepath.Join(dir, "c.yaml")},
		ca:        certtest.New(t, "ours"), open: loopback.FreeAddr(t), tunnel: loopback.FreeAddr(t),
	}
	b.server(b.ca)
	if err := os.WriteFile(filepath.Join(dir, "psk"), []byte(tlsPSK+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.write(strings.NewReplacer("OPEN", b.open, "TUNNEL", b.tunnel).Replace(tlsConfig))
	b.log, _ = start(t, "--config", b.f)
	return b
}

// server puts a new certificate of an authority in the place of the target's; initiators are
// to have theirs from it, too.
func (b *tlsBed) server(ca *certtest.CA) {
	b.t.Helper()
	cert, key := ca.Issue(b.t, "server", certtest.Leaf{})
	for from, to := range map[string]string{cert: "server.pem", key: "server.key", ca.File: "ca.pem"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(b.dir, to), text, 0o600)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *tlsBed) config(addr string, t *initiator.TLS) initiator.Config {
	return initiator.Config{Transport: initiator.TransportTCP, Address: addr, TargetName: "iqn.2026-11.test:a", TLS: t, LoginTimeout: 20 * time.Second, FailNow: true}
}

// client is the TLS of an initiator with a certificate of an authority.
func (b *tlsBed) client(ca *certtest.CA, l certtest.Leaf) *initiator.TLS {
	b.issued++
	cert, key := ca.Issue(b.t, fmt.Sprintf("client%d", b.issued), l)
	return &initiator.TLS{CA: b.ca.File, Cert: cert, Key: key}
}

func (b *tlsBed) roundTrip(v blockio.Volume, fill byte) {
	b.t.Helper()
	out, in := bytes.Repeat([]byte{fill}, 3<<20), make([]byte, 3<<20)
	if err := v.Do(b.t.Context(), &blockio.Request{Op: blockio.OpWrite, Off: 512, Segs: [][]byte{out[:7<<10], out[7<<10:]}}); err != nil {
		b.t.Fatal(err)
	}
	if err := v.Do(b.t.Context(), &blockio.Request{Op: blockio.OpRead, Off: 512, Segs: [][]byte{in[:1<<20], in[1<<20:]}}); err != nil || !bytes.Equal(in, out) {
		b.t.Fatalf("what was written is not read: %v", err)
	}
}

// Data goes through TLS, whoever has no certificate of the authority does not get in, nothing
// goes in clear where TLS is required, and NVMe's own TLS is beside it.
func TestTLS(t *testing.T) {
	b := newTLSBed(t)
	lun, err := initiator.Open(t.Context(), b.config(b.addr, b.client(b.ca, certtest.Leaf{Name: "host 7"})))
	if err != nil {
		t.Fatal(err)
	}
	b.roundTrip(lun, 1)
	st := b.status()
	if len(st.Sessions) != 1 || st.Sessions[0].Transport != "iSCSI/TCP with TLS" || st.Sessions[0].Connections[0].Certificate != "CN=host 7" {
		t.Errorf("%+v", st.Sessions)
	}
	lun.Close()

	theirs := certtest.New(t, "theirs")
	past := certtest.Leaf{From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Hour)}
	good := b.client(b.ca, certtest.Leaf{})
	with := func(change func(*initiator.TLS)) *initiator.TLS { x := *good; change(&x); return &x }
	for i, c := range []struct {
		name, addr string
		tls        *initiator.TLS
		want       string // in the error; empty: there is none
	}{
		{"no certificate", b.addr, &initiator.TLS{CA: b.ca.File}, "asks for a certificate, and we have none"},
		{"a certificate of another authority", b.addr, b.client(theirs, certtest.Leaf{}), "the peer does not"},
		{"an expired certificate", b.addr, b.client(b.ca, past), "our certificate has expired"},
		{"no TLS", b.addr, nil, "connection lost during login"},
		{"another authority for the target", b.addr, with(func(x *initiator.TLS) { x.CA = theirs.File }), theirs.File},
		{"no authority for the target", b.addr, with(func(x *initiator.TLS) { x.CA = "" }), "--tls-ca"},
		{"another name of the target", b.addr, with(func(x *initiator.TLS) { x.ServerName = "elsewhere" }), "elsewhere"},
		{"its name", b.addr, with(func(x *initiator.TLS) { x.ServerName = "localhost" }), ""},
		{"allowed: none", b.open, nil, ""},
		{"allowed: no certificate", b.open, &initiator.TLS{CA: b.ca.File}, ""},
		{"allowed: one that nobody asks for", b.open, good, ""},
	} {
		l, err := initiator.Open(t.Context(), b.config(c.addr, c.tls))
		if err == nil {
			l.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if i == 0 { // others of that second have no line
			await.True(t, "the target says why", func() bool { return strings.Contains(b.log.String(), "client didn't provide a certificate") })
		}
	}
	cfg := b.config(b.addr, nil)
	cfg.Transport = initiator.TransportISER
	if l, err := initiator.Open(t.Context(), cfg); err == nil {
		l.Close()
		t.Error("iSER gets in without encryption")
	}
	cfg.TLS = good
	if _, err := initiator.Open(t.Context(), cfg); !isConfigError(err) || !strings.Contains(err.Error(), "WireGuard") {
		t.Errorf("iSER in TLS: %v", err)
	}
	if found, err := initiator.Discover(t.Context(), b.config(b.addr, good)); err != nil || len(found) != 1 {
		t.Errorf("discovery: %v, %v", found, err)
	}
	for _, key := range []string{tlsPSK, ""} {
		ns, err := nvmf.Open(t.Context(), nvmf.Config{
			Address: b.addr, Subsystem: "nqn.2026-11.test:a", NSID: 1, HostNQN: "nqn.2026-11.test:host", Keys: nvmf.Keys{TLSKey: key}, CtrlLossTimeout: 1,
		})
		if (err == nil) != (key != "") {
			t.Errorf("NVMe/TCP with the key %q: %v", key, err)
		}
		if err == nil {
			b.roundTrip(ns, 2)
			ns.Close()
		}
	}
}

// A name is its certificate's: where the portal has "names: certificate" one that is in the
// certificate, and where acl.bind says whose it is, theirs, whatever else the certificate says.
// Who has another one is told so, finds no target in a discovery, and takes no session over.
func TestCertificateNames(t *testing.T) {
	b := newTLSBed(t)
	text, err := os.ReadFile(b.f)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(string(text), "client_ca: ca.pem}", "client_ca: ca.pem, names: certificate}", 1)
	config = strings.Replace(config, `luns: [{lun: 0, volume: d}]}`, `luns: [{lun: 0, volume: d}], acl: {initiators: ["*"], bind: [{initiator: "iqn.2026-11.x:mapped", certificates: [Host9, "urn:storage:host8"]}]}}`, 1)
	if err := os.WriteFile(b.f, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := b.reload(); code != 0 {
		t.Fatalf("exit %d, %s", code, out)
	}
	names := func(l certtest.Leaf) *initiator.TLS { return b.client(b.ca, l) }
	seven := names(certtest.Leaf{Name: "host7", URIs: []string{"iqn.2026-11.x:host7", "eui.0123456789abcdef"}})
	eight := names(certtest.Leaf{Name: "iqn.2026-11.x:host8", URIs: []string{"urn:storage:host8"}})
	nine := names(certtest.Leaf{Name: "host9", URIs: []string{"iqn.2026-11.x:host9"}})
	login := func(addr, name string, c *initiator.TLS) (*initiator.LUN, error) {
		cfg := b.config(addr, c)
		cfg.InitiatorName = name
		return initiator.Open(t.Context(), cfg)
	}
	held, err := login(b.addr, "iqn.2026-11.x:host7", seven)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, c := range []struct {
		addr, name string
		tls        *initiator.TLS
		ok         bool
		want       string // in the target's log
	}{
		{b.addr, "eui.0123456789abcdef", seven, true, ""},
		{b.addr, "iqn.2026-11.x:host8", eight, true, ""}, // its common name
		{b.addr, "iqn.2026-11.x:mapped", eight, true, ""},
		{b.addr, "iqn.2026-11.x:mapped", nine, true, ""},
		{b.addr, "iqn.2026-11.x:host7", eight, false, `iqn.2026-11.x:host7 is no name of the initiator's certificate, which has ["iqn.2026-11.x:host8" "urn:storage:host8"`},
		{b.addr, "iqn.2026-11.x:host70", seven, false, "iqn.2026-11.x:host70 is no name of"},
		{b.addr, "iqn.2026-11.x:mapped", seven, false, `binds the name iqn.2026-11.x:mapped to other certificates than that of ["host7"`},
		{b.open, "iqn.2026-11.x:mapped", nil, false, "binds the name iqn.2026-11.x:mapped to certificates, and the initiator has shown none"},
		{b.open, "iqn.2026-11.x:mapped", nine, false, "the initiator has shown none"}, // the portal has not asked
		{b.open, "iqn.2026-11.x:other", nil, true, ""},
	} {
		lun, err := login(c.addr, c.name, c.tls)
		if err == nil {
			lun.Close()
		}
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "0202") {
			t.Errorf("%s: %v", c.name, err)
		}
		await.True(t, "the log has "+c.want, func() bool { return strings.Contains(strings.ReplaceAll(b.log.String(), `\"`, `"`), c.want) })
	}
	b.roundTrip(held, 5)
	for name, c := range map[string]*initiator.TLS{"iqn.2026-11.x:host7": eight, "iqn.2026-11.x:host9": nine, "iqn.2026-11.x:mapped": nil} {
		cfg := b.config(b.addr, c)
		if cfg.InitiatorName = name; c == nil {
			cfg.Address = b.open
		}
		if found, err := initiator.Discover(t.Context(), cfg); (err == nil) != (c != eight) || len(found) > 0 != (c == nine) {
			t.Errorf("discovery as %s: %v, %v", name, found, err)
		}
	}
	for _, c := range []struct{ from, to, want string }{
		{"mode: allowed}", "mode: allowed, names: certificate}", "portals[1].tls.names"},
		{"names: certificate}", "names: subject}", "portals[0].tls.names"},
		{"Host9,", `"*",`, "targets[0].acl.bind[0].certificates[0]"},
		{"client_ca: ca.pem, names: certificate", "mode: required", "no portal asks for certificates"},
	} {
		if err := os.WriteFile(b.f, []byte(strings.Replace(config, c.from, c.to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out := command(t, "check", "--config", b.f); code == 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit %d, %s", c.to, code, out)
		}
	}
}

func isConfigError(err error) bool {
	_, ok := errors.AsType[*initiator.ConfigError](err)
	return ok
}

// A reload takes new certificates into use, for connections that come then; files that cannot
// be used change nothing, and are named.
func TestTLSReload(t *testing.T) {
	b := newTLSBed(t)
	old := b.client(b.ca, certtest.Leaf{})
	lun, err := initiator.Open(t.Context(), b.config(b.addr, old))
	if err != nil {
		t.Fatal(err)
	}
	defer lun.Close()
	if code, out := b.reload(); code != 0 || strings.Contains(out, "TLS of portal") {
		t.Fatalf("nothing has changed: exit %d, %s", code, out)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "server.pem"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := b.reload(); code == 0 || !strings.Contains(out, "server.pem has no certificate") || !strings.Contains(out, "portals[0].tls.cert") {
		t.Errorf("rubbish: exit %d, %s", code, out)
	}
	second := certtest.New(t, "second")
	b.server(second)
	if code, out := b.reload(); code != 0 || strings.Count(out, "TLS of portal") != 2 {
		t.Fatalf("exit %d, %s", code, out)
	}
	b.roundTrip(lun, 3)
	if l, err := initiator.Open(t.Context(), b.config(b.addr, old)); err == nil {
		l.Close()
		t.Error("the old certificates are still in use")
	}
	b.ca = second
	l, err := initiator.Open(t.Context(), b.config(b.addr, b.client(second, certtest.Leaf{})))
	if err != nil {
		t.Fatal(err)
	}
	b.roundTrip(l, 4)
	l.Close()
	if err := os.Chmod(filepath.Join(b.dir, "server.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out := command(t, "check", "--config", b.f); code == 0 || !strings.Contains(out, "chmod o=") {
		t.Errorf("a key for everybody: exit %d, %s", code, out)
	}
	if code, out := command(t, "serve", "--config", b.f, "--listen", b.open); code != exitUsage {
		t.Errorf("--listen instead of TLS: exit %d, %s", code, out)
	}
}

// Initiators that have no TLS go through stunnel, as docs/ENCRYPTION.md says.
func TestTLSThroughStunnel(t *testing.T) {
	tools := map[string]string{"stunnel": "", "iscsi-ls": "", "qemu-io": ""}
	for name := range tools {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%s is not installed", name)
		}
		tools[name] = path
	}
	b := newTLSBed(t)
	cert, key := b.ca.Issue(t, "tunnel", certtest.Leaf{})
	conf := filepath.Join(b.dir, "stunnel.conf")
	text := fmt.Sprintf(`foreground = yes
pid =
[iscsi]
client = yes
accept = %s
connect = %s
cert = %s
key = %s
CAfile = %s
verifyChain = yes
checkHost = localhost
sslVersionMin = TLSv1.3
`, b.tunnel, b.addr, cert, key, b.ca.File)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log output
	c := exec.Command(tools["stunnel"], conf)
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Process.Kill()
		c.Wait()
	}()
	await.True(t, "stunnel is there", func() bool { return strings.Contains(log.String(), "Configuration successful") })
	run := func(want, name string, args ...string) {
		t.Helper()
		out, err := exec.Command(tools[name], args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, log.String())
		}
	}
	run("iqn.2026-11.test:a", "iscsi-ls", "-s", "iscsi://"+b.tunnel)
	url := "iscsi://" + b.tunnel + "/iqn.2026-11.test:a/0"
	run("wrote 2097152", "qemu-io", "-f", "raw", "-c", "write -P 0x5a 65536 2097152", "-c", "read -P 0x5a 65536 2097152", url)
	if out, _ := exec.Command(tools["qemu-io"], "-f", "raw", "-c", "read 0 512", "iscsi://"+b.addr+"/iqn.2026-11.test:a/0").CombinedOutput(); strings.Contains(string(out), "read 512") {
		t.Errorf("the portal was read without the tunnel: %s", out)
	}
}

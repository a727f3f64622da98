package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/target"
	"softiser/target/admin"
)

// reloadBed is a target with a configuration file that can be rewritten.
type reloadBed struct {
	t                  *testing.T
	dir, addr, sock, f string
	log                *output
}

const reloadBase = `
portals: [{listen: "ADDR"}]
volumes:
  - {name: keep, type: memory, size: 1MiB}
  - {name: file, type: file, path: file.img, size: 1MiB, create: true}
  - {name: late, type: file, path: late.img}
  - {name: pub, type: memory, size: 1MiB}
targets:
  - iqn: iqn.2026-11.test:a
    luns: [{lun: 0, volume: keep}, {lun: 1, volume: file}, {lun: 2, volume: late}]
  - iqn: iqn.2026-11.test:b
    luns: [{lun: 0, volume: pub, read_only: true}]
admin: {socket: SOCK}
logging: {level: error}
`

func newReloadBed(t *testing.T) *reloadBed { return serveReload(t, reloadBase) }

// serveReload is a reloadBed that begins with another file.
func serveReload(t *testing.T, text string) *reloadBed {
	dir := t.TempDir()
	b := &reloadBed{t: t, dir: dir, addr: loopback.FreeAddr(t), sock: filepath.Join(dir, "s"), f: filepath.Join(dir, "c.yaml")}
	b.write(text)
	b.log, _ = start(t, "--config", b.f)
	return b
}

func (b *reloadBed) write(text string) {
	b.t.Helper()
	text = strings.NewReplacer("ADDR", b.addr, "SOCK", b.sock).Replace(text)
	if err := os.WriteFile(b.f, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *reloadBed) status() (st target.Status) {
	b.t.Helper()
	code, out := command(b.t, "status", "--socket", b.sock, "--json")
	if err := json.Unmarshal([]byte(out), &st); code != 0 || err != nil {
		b.t.Fatal(code, err, out)
	}
	return st
}

// luns lists what is served, not what should be, as "a0=keep a1=file(1048576)".
func (b *reloadBed) luns() string {
	var all []string
	for _, t := range b.status().Targets {
		for _, l := range t.LUNs {
			if l.Error != "" {
				continue
			}
			ro := ""
			if l.ReadOnly {
				ro = " ro"
			}
			all = append(all, fmt.Sprintf("%s%d=%s(%d%s)", strings.TrimPrefix(t.Name, "iqn.2026-11.test:"), l.LUN, l.Volume, l.Size, ro))
		}
	}
	return strings.Join(all, " ")
}

func (b *reloadBed) reload(flags ...string) (int, string) {
	return command(b.t, append([]string{"reload", "--socket", b.sock}, flags...)...)
}

func TestReload(t *testing.T) {
	b := newReloadBed(t)
	const before = "a0=keep(1048576) a1=file(1048576) b0=pub(1048576 ro)"
	if got := b.luns(); got != before {
		t.Fatalf("serves %s", got)
	}
	// An initiator that is there all the time.
	lun, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:a"})
	if err != nil {
		t.Fatal(err)
	}
	defer lun.Close()
	if code, out := command(t, "lun", "add", "--socket", b.sock, "iqn.2026-11.test:a", "9", "extra=memory,size=1MiB"); code != 0 {
		t.Fatal(code, out)
	}

	// LUN 2 has no file yet.
	if code, out := b.reload(); code != exitDegraded || !strings.Contains(out, "late.img") {
		t.Errorf("reload with the same file: exit %d\n%s", code, out)
	}
	b.write("portals: 7\n")
	if code, out := b.reload(); code != exitUsage || !strings.Contains(out, "c.yaml:1") || !strings.Contains(out, "nothing is changed") {
		t.Errorf("a broken file: exit %d\n%s", code, out)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "late.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	next := strings.NewReplacer(
		"path: file.img, size: 1MiB", "path: file.img, size: 3MiB",
		"iqn: iqn.2026-11.test:b", "iqn: iqn.2026-11.test:c",
		"{lun: 0, volume: keep}", "{lun: 0, volume: keep, alua: standby}",
		"level: error", "level: warn",
		"admin:", "iscsi: {queue_depth: 64}\nadmin:",
	).Replace(reloadBase)
	b.write(next)
	if code, out := b.reload("--dry-run"); code != exitDegraded || !strings.Contains(b.luns(), "a1=file(1048576) a9=extra(1048576) b0=pub") {
		t.Errorf("dry run: exit %d, serves %s\n%s", code, b.luns(), out)
	}
	code, out := b.reload("--json")
	doc, _, _ := strings.Cut(out, "\niser-target:") // the errors of the command
	var changes []admin.Change
	if err := json.NewDecoder(strings.NewReader(doc)).Decode(&changes); code != exitDegraded || err != nil {
		t.Fatalf("exit %d, %v\n%s", code, err, out)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.Action+" "+c.Object)
		if (c.Error != "") != (c.Object == "iscsi.queue_depth") {
			t.Errorf("%s %s: %s", c.Action, c.Object, c.Error)
		}
	}
	want := []string{
		"remove iqn.2026-11.test:b", "resize volume file to 3MiB", "update iqn.2026-11.test:a LUN 0 = keep alua", "add iqn.2026-11.test:a LUN 2 = late",
		"add iqn.2026-11.test:c", "add iqn.2026-11.test:c LUN 0 = pub", "update iscsi.queue_depth", "update logging.level to warn",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("changes:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got, want := b.luns(), "a0=keep(1048576) a1=file(3145728) a2=late(1048576) a9=extra(1048576) c0=pub(1048576 ro)"; got != want {
		t.Errorf("serves %s\nwant   %s", got, want)
	}
	if s := b.status().Sessions; len(s) != 1 || s[0].TSIH != 1 {
		t.Errorf("the session of before is gone: %+v", s)
	}
	if code, out := b.reload(); code != exitDegraded || strings.Count(out, "\n") != 3 || !strings.Contains(out, "iscsi.queue_depth") {
		t.Errorf("once more: exit %d\n%s", code, out)
	}

	// LUNs go and become other volumes; what was added by hand stays.
	b.write(strings.NewReplacer(", {lun: 2, volume: late}", "", "{lun: 1, volume: file}", "{lun: 1, volume: late}", "iscsi: {queue_depth: 64}\n", "").Replace(next))
	if code, out := b.reload(); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
	if got, want := b.luns(), "a0=keep(1048576) a1=late(1048576) a9=extra(1048576) c0=pub(1048576 ro)"; got != want {
		t.Errorf("serves %s\nwant   %s", got, want)
	}
}

// A volume that can be written has one LUN in a target, however the second one is asked for;
// and LUNs may exchange their volumes, and a volume its target, in one reload.
func TestReloadOneLUNPerVolume(t *testing.T) {
	b := newReloadBed(t)
	if code, out := command(t, "lun", "add", "--socket", b.sock, "iqn.2026-11.test:b", "5", "again="+filepath.Join(b.dir, "file.img")); code == 0 {
		t.Errorf("the file behind LUN 1 was added once more:\n%s", out)
	}
	b.write(strings.Replace(reloadBase, "{lun: 2, volume: late}", "{lun: 2, volume: file, read_only: true}", 1))
	if code, out := b.reload(); code != exitUsage || !strings.Contains(out, "is served as targets[0].luns[1] already") || !strings.Contains(out, "nothing is changed") {
		t.Errorf("exit %d\n%s", code, out)
	}
	b.write(strings.NewReplacer("volume: keep}", "volume: file}", "volume: file}", "volume: keep}", ", {lun: 2, volume: late}", "").Replace(reloadBase))
	if code, out := b.reload(); code != 0 {
		t.Errorf("two LUNs exchange their volumes: exit %d\n%s", code, out)
	}
	if got, want := b.luns(), "a0=file(1048576) a1=keep(1048576) b0=pub(1048576 ro)"; got != want {
		t.Errorf("serves %s\nwant   %s", got, want)
	}
	// Read-only everywhere, in two targets.
	b.write(strings.NewReplacer("volume: file}", "volume: file, read_only: true}", "read_only: true}]", "read_only: true}, {lun: 1, volume: file, read_only: true}]", ", {lun: 2, volume: late}", "").Replace(reloadBase))
	if code, out := b.reload(); code != 0 {
		t.Errorf("read-only twice: exit %d\n%s", code, out)
	}
	if got, want := b.luns(), "a0=keep(1048576) a1=file(1048576 ro) b0=pub(1048576 ro) b1=file(1048576 ro)"; got != want {
		t.Errorf("serves %s\nwant   %s", got, want)
	}
}

// A volume that loses all its places and comes back elsewhere is opened as the file has it now: that its path cannot
// change would not be true.
func TestReloadOpensAnew(t *testing.T) {
	const text = `
portals: [{listen: "ADDR"}]
volumes:
  - {name: a, type: file, path: OLD.img, size: SIZE, create: true}
  - {name: m, type: memory, size: SIZE}
  - {name: stays, type: memory, size: 1MiB}
targets:
  - iqn: iqn.2026-11.test:a
    luns: [{lun: FIRST, volume: a}, {lun: SECOND, volume: m}, {lun: 9, volume: stays}]
admin: {socket: SOCK}
logging: {level: error}
`
	b := serveReload(t, strings.NewReplacer("OLD", "old", "SIZE", "1MiB", "FIRST", "0", "SECOND", "1").Replace(text))
	b.write(strings.NewReplacer("OLD", "new", "SIZE", "2MiB", "FIRST", "2", "SECOND", "3").Replace(text))
	for _, flags := range [][]string{{"--dry-run"}, nil} {
		if code, out := b.reload(flags...); code != 0 || strings.Contains(out, "not done") {
			t.Errorf("reload %v: exit %d\n%s", flags, code, out)
		}
	}
	if got, want := b.luns(), "a2=a(2097152) a3=m(2097152) a9=stays(1048576)"; got != want {
		t.Errorf("serves %s, want %s", got, want)
	}
	if code, out := b.reload(); code != 0 || out != "nothing differs\n" {
		t.Errorf("once more: exit %d, %s", code, out)
	}
}

// A removal that commands outlast has not happened: the next reload goes on with it,
// whether the file still wants it or not.
func TestReloadTriesAgain(t *testing.T) {
	const slow = "  - {name: slow, type: memory, size: 1MiB, fault: {read_delay: 8s}}\ntargets:\n" // for all that is done meanwhile
	base := strings.Replace(reloadBase, "level: error", "level: warn", 1)
	lun := strings.Replace(strings.Replace(base, "targets:\n", slow, 1), ", {lun: 2, volume: late}", ", {lun: 3, volume: slow}", 1)
	node := strings.NewReplacer("targets:\n", slow, ", {lun: 2, volume: late}", "", "admin:", "  - iqn: iqn.2026-11.test:c\n    luns: [{lun: 3, volume: slow}]\nadmin:").Replace(base)
	without := strings.Replace(base, ", {lun: 2, volume: late}", "", 1)
	for _, c := range []struct {
		name, iqn, with, then, want string // want: changes of the second reload
	}{
		{"a LUN", "a", lun, without, "remove iqn.2026-11.test:a LUN 3"},
		{"a LUN that is wanted again", "a", lun, lun, "replace iqn.2026-11.test:a LUN 3 = slow"},
		{"a target", "c", node, without, "remove iqn.2026-11.test:c"},
		{"a target that is wanted again", "c", node, node, "remove iqn.2026-11.test:c\nadd iqn.2026-11.test:c\nadd iqn.2026-11.test:c LUN 3 = slow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newReloadBed(t)
			b.write(c.with)
			if code, out := b.reload(); code != 0 {
				t.Fatalf("exit %d\n%s", code, out)
			}
			before := b.luns()
			l, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:" + c.iqn, LUN: 3})
			if err != nil {
				t.Fatal(err)
			}
			read := make(chan struct{})
			go func() {
				defer close(read)
				l.ReadAt(make([]byte, 4096), 0) //nolint:errcheck // its target may go
			}()
			defer func() {
				l.Close()
				<-read
			}()
			await.True(t, "the read runs", func() bool { s := b.status().Sessions; return len(s) == 1 && s[0].Outstanding == 1 })

			b.write(without)
			ctx, cancel := context.WithCancel(t.Context())
			first := make(chan int, 1)
			go func() { first <- runWith(ctx, &output{}, "reload", "--socket", b.sock) }()
			await.True(t, "the removal has begun", func() bool {
				if len(first) > 0 {
					t.Skip("the read was over already: this machine is too slow for the test")
				}
				ts := b.status().Targets
				i := slices.IndexFunc(ts, func(t target.TargetStatus) bool { return strings.HasSuffix(t.Name, ":"+c.iqn) })
				return i < 0 || slices.ContainsFunc(ts[i].LUNs, func(l target.LUNStatus) bool { return l.Leaving })
			})
			cancel()
			if <-first == 0 {
				t.Skip("the read was over already: this machine is too slow for the test")
			}
			b.write(c.then)
			code, out := b.reload("--json")
			var changes []admin.Change
			if err := json.Unmarshal([]byte(out), &changes); code != 0 || err != nil {
				t.Fatalf("exit %d, %v\n%s", code, err, out)
			}
			var got []string
			for _, c := range changes {
				got = append(got, c.Action+" "+c.Object)
			}
			if strings.Join(got, "\n") != c.want {
				t.Errorf("changes of the second reload:\n%s\nwant\n%s", strings.Join(got, "\n"), c.want)
			}
			want := before
			if c.then != c.with {
				want = "a0=keep(1048576) a1=file(1048576) b0=pub(1048576 ro)"
			}
			if got := b.luns(); got != want {
				t.Errorf("serves %s\nwant   %s", got, want)
			}
			if code, out := b.reload(); code != 0 || strings.Contains(out, "slow") {
				t.Errorf("nothing is left to do: exit %d\n%s", code, out)
			}
		})
	}
}

// A target is offered on the portals that it names, and not on others of their portal group;
// one that names a portal that is not there yet is offered nowhere.
func TestPortalsOfTarget(t *testing.T) {
	other := loopback.FreeAddr(t)
	base := strings.NewReplacer(`[{listen: "ADDR"}]`, `[{listen: "ADDR"}, {listen: "`+other+`"}]`,
		"iqn.2026-11.test:b\n", "iqn.2026-11.test:b\n    portals: [\""+other+"\"]\n", ", {lun: 2, volume: late}", "").Replace(reloadBase)
	b := serveReload(t, base)
	discover := func() string {
		found, err := initiator.Discover(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr})
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(found)
	}
	want := fmt.Sprintf("[{iqn.2026-11.test:a  [{%s 1} {%s 1}]} {iqn.2026-11.test:b  [{%s 1}]}]", b.addr, other, other)
	if got := discover(); got != want {
		t.Errorf("found %s", got)
	}
	for _, addr := range []string{b.addr, other} {
		lun, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: addr, TargetName: "iqn.2026-11.test:b"})
		if err == nil {
			lun.Close()
		}
		if (err == nil) != (addr == other) {
			t.Errorf("login at %s: %v", addr, err)
		}
	}
	b.write(strings.Replace(strings.Replace(base, "[{listen", `[{listen: "127.0.0.1:1"}, {listen`, 1), "admin:",
		"  - {iqn: \"iqn.2026-11.test:c\", portals: [\"127.0.0.1:1\"]}\nadmin:", 1))
	if code, out := b.reload(); code != exitDegraded || !strings.Contains(out, "portal 127.0.0.1:1 is not there yet") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if got := discover(); got != want {
		t.Errorf("after the reload found %s", got)
	}
}

// A LUN has access states through the portals of its target, and through no others.
func TestReloadStatesOfSomePortals(t *testing.T) {
	base := strings.NewReplacer(
		`[{listen: "ADDR"}]`, `[{listen: "ADDR"}, {listen: "`+loopback.FreeAddr(t)+`", group: 2}]`,
		"iqn.2026-11.test:a\n", "iqn.2026-11.test:a\n    portals: [\"ADDR\"]\n", ", {lun: 2, volume: late}", "").Replace(reloadBase)
	b := serveReload(t, base)
	b.write(strings.Replace(base, "{lun: 0, volume: keep}", "{lun: 0, volume: keep, alua: standby}", 1))
	if code, out := b.reload(); code != 0 || !strings.Contains(out, "alua") {
		t.Errorf("exit %d\n%s", code, out)
	}
	// Other portals in the same breath are for the next start.
	b.write(strings.Replace(base, "    portals: [\"ADDR\"]\n", "", 1))
	if code, out := b.reload(); code != exitDegraded || strings.Contains(out, "port group") || !strings.Contains(out, "portals") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// Rules and secrets count for the next login, and leave sessions alone.
func TestReloadAccess(t *testing.T) {
	b := newReloadBed(t)
	cfg := initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:a", LoginTimeout: 10 * time.Second}
	old, err := initiator.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	secret := filepath.Join(b.dir, "secret")
	if err := os.WriteFile(secret, []byte("a-secret-of-joe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.write(strings.Replace(reloadBase, "{lun: 2, volume: late}]", "{lun: 2, volume: late}]\n    auth: {method: chap, users: [{name: joe, secret_file: secret}]}", 1))
	if code, out := b.reload(); !strings.Contains(out, "auth, acl") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if _, err := initiator.Open(t.Context(), cfg); err == nil {
		t.Error("a login without a secret is let in")
	}
	cfg.Auth = initiator.Auth{User: "joe", Secret: "a-secret-of-joe"}
	with, err := initiator.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	with.Close()
	if err := os.WriteFile(secret, []byte("another-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := b.reload(); !strings.Contains(out, "auth, acl") {
		t.Errorf("a new secret: exit %d\n%s", code, out)
	}
	if _, err := initiator.Open(t.Context(), cfg); err == nil {
		t.Error("the old secret is still good")
	}
	if err := old.Do(t.Context(), &initiator.Request{Op: initiator.OpRead, Buf: make([]byte, 4096)}); err != nil {
		t.Errorf("the session of before: %v", err)
	}
}

// SIGHUP reloads, and a broken file neither ends nor changes anything.
func TestHangup(t *testing.T) {
	b := newReloadBed(t)
	hup := func(text string, done func() bool) {
		t.Helper()
		b.write(text)
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		await.True(t, "SIGHUP takes effect", done)
	}
	hup(strings.Replace(reloadBase, "{lun: 1, volume: file}, ", "", 1), func() bool { return !strings.Contains(b.luns(), "a1=file") })
	hup("volumes: {}\n", func() bool { return true })
	b.write("")
	if code, out := b.reload(); code != exitUsage || !strings.Contains(out, "names no target") || !strings.Contains(b.luns(), "a0=keep") {
		t.Errorf("an empty file: exit %d, serves %s\n%s", code, b.luns(), out)
	}
	hup(reloadBase, func() bool { return strings.Contains(b.luns(), "a1=file") })

	b.write(strings.NewReplacer("{lun: 0, volume: keep}, {lun: 1, volume: file}, {lun: 2, volume: late}", "", "{lun: 0, volume: pub, read_only: true}", "").Replace(reloadBase))
	for _, flags := range [][]string{{"--dry-run"}, {}, {"--json"}} {
		if code, out := b.reload(flags...); code != 0 || strings.Count(out, "warning: no volume is served") != 1 {
			t.Errorf("reload %v of a file without a LUN: exit %d\n%s", flags, code, out)
		}
	}
}

// Without a file SIGHUP means that the terminal is gone.
func TestHangupWithoutFile(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended, hup, stop := hangups(ctx, false)
	defer stop()
	if hup != nil {
		t.Fatal("there is nothing to reload")
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("still running")
	}
}

// What peers call themselves cannot do anything to a terminal.
func TestTablesEscapeNames(t *testing.T) {
	const hostile = "iqn.\x1b[2J\u202e\r\nx"
	st := target.Status{
		Sessions:    []target.SessionStatus{{TSIH: 1, Initiator: hostile, Target: hostile}},
		Controllers: []target.ControllerStatus{{Subsystem: "nqn.s", ID: 1, Host: hostile}},
		Subsystems:  []target.SubsystemStatus{{NQN: "nqn.s"}},
		Volumes:     []target.VolumeStatus{{Name: "v", Reservation: &target.ReservationStatus{Registrants: []target.RegistrantStatus{{Initiator: hostile}}}}},
	}
	var out strings.Builder
	if err := errors.Join(printStatus(&out, &st), printSessions(&out, st.Sessions), printSession(&out, &st.Sessions[0])); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), `iqn.\x1b[2J\u202e\r\nx`); n < 4 || strings.ContainsAny(out.String(), "\x1b\u202e\r") {
		t.Errorf("escaped %d times: %q", n, out.String())
	}
}

func TestTablesFit(t *testing.T) {
	name := "iqn.2026-11.softiser:initiator:d4436a742ea8"
	st := target.Status{State: "listening",
		Portals: []target.PortalStatus{{Bound: "[2001:db8:1234:5678::9abc]:3260", Accepted: 123456}},
		Targets: []target.TargetStatus{{Name: "iqn.2026-11.softiser:disk0", LUNs: []target.LUNStatus{{LUN: 16383, Volume: "database-1", Backend: "file", ReadOnly: true, Size: 1023 << 30}}}},
		Sessions: []target.SessionStatus{{TSIH: 65535, Transport: "iSCSI/TCP", Remote: "255.255.255.255:65535", Initiator: name, Target: "iqn.2026-11.softiser:disk0",
			State: "active", Age: 99 * time.Hour, Window: 128, Outstanding: 128}},
	}
	host := "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef"
	st.Subsystems = []target.SubsystemStatus{{NQN: "nqn.2026-11.softiser:disk0", Namespaces: []target.NamespaceStatus{{NSID: 1024, Volume: "database-1", Backend: "file", ReadOnly: true, Size: 1023 << 30}}}}
	st.Controllers = []target.ControllerStatus{{Subsystem: "nqn.2026-11.softiser:disk0", ID: 65519, Host: host, HostID: "01234567-89ab-cdef-0123-456789abcdef",
		Transport: "NVMe/TCP", Address: "[2001:db8:1234:5678::9abc]:65535", Ready: true, Proved: true, TLS: true, TLSKey: "NVMe1R02", Proofs: 129, FailedProofs: 1,
		Connection: "NVMe/TCP, digests: header and data", ProvedBy: "SHA-512, ffdhe8192, the host", Queues: 128, KeepAlive: 2 * time.Minute, Since: time.Now().Add(-99 * time.Hour)}}
	st.Volumes = []target.VolumeStatus{{Name: "database-1", Size: 1023 << 30, Served: []string{"LUN 0 of a", "namespace 1 of b"}, Reservation: &target.ReservationStatus{Type: "exclusive access, all registrants",
		Registrants: []target.RegistrantStatus{{Wire: "NVMe", Initiator: host, Key: "0x0123456789abcdef", Holder: true}, {Wire: "iSCSI", Initiator: name + ",i,0x00023d000001", Key: "0x0123456789abcdef"}}}}}
	st.Volumes[0].Stats.Reads, st.Volumes[0].Stats.ReadBytes, st.Volumes[0].Stats.Writes, st.Volumes[0].Stats.WriteBytes = 123456789, 1023<<30, 123456789, 1023<<30
	l := &st.Targets[0].LUNs[0]
	l.ReadLatency.Count, l.ReadLatency.P99 = 123456789, 98300*time.Nanosecond
	var out bytes.Buffer
	if err := printStatus(&out, &st); err != nil {
		t.Fatal(err)
	}
	if err := printSessions(&out, st.Sessions); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"98.3µs", "file, ro", name, "128/128", "digests: header and data", "129 with SHA-512, ffdhe8192, the host, 1 failed", "authenticated, TLS NVMe1R02"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

func TestAbsoluteSpec(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"./a.img,size=1MiB": here + "/a.img,size=1MiB",
		"file:a.img":        "file:" + here + "/a.img",
		"raw:/dev/sdb,ro":   "raw:/dev/sdb,ro",
		"memory,size=1MiB":  "memory,size=1MiB",

		"./a.img,placement=verified,size=1MiB": here + "/a.img,placement=verified,size=1MiB",
	} {
		if got, err := absoluteSpec(in); err != nil || got != want {
			t.Errorf("%s becomes %s, %v; want %s", in, got, err, want)
		}
	}
}

// Rate limits change under load, and what waited for the old ones goes on.
func TestQoSChangesOnLine(t *testing.T) {
	b := newReloadBed(t)
	slow := strings.Replace(reloadBase, "name: keep, type: memory, size: 1MiB", "name: keep, type: memory, size: 1MiB, qos: {iops: 1}", 1)
	b.write(slow)
	if code, out := b.reload("--dry-run"); !strings.Contains(out, "volume keep qos\n") || strings.Contains(out, "keep qos\n         not done") {
		t.Errorf("dry run: exit %d\n%s", code, out)
	}
	if code, out := b.reload(); code != exitDegraded || strings.Count(out, "not done") != 1 || !strings.Contains(out, "late") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	lun, err := initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:a"})
	if err != nil {
		t.Fatal(err)
	}
	defer lun.Close()
	// An hour's worth of reads. They end at once when the limit goes.
	const n = 100
	done := make(chan error, n)
	for range n {
		go func() { _, err := lun.ReadAt(make([]byte, 512), 0); done <- err }()
	}
	await.True(t, "reads wait for the limit", func() bool { s := b.status().Sessions; return len(s) == 1 && s[0].Outstanding > n/2 })
	b.write(reloadBase)
	if code, out := b.reload(); code != exitDegraded || strings.Count(out, "not done") != 1 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	for range n {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(await.Deadline):
			t.Fatal("a read still waits for a limit that has gone")
		}
	}
	if code, out := b.reload(); strings.Contains(out, "qos") {
		t.Errorf("nothing is left to do: exit %d\n%s", code, out)
	}
}

// Limits of the process hold from the reload on; who is there stays.
func TestLimitsChangeOnLine(t *testing.T) {
	b := newReloadBed(t)
	login := func() (*initiator.LUN, error) {
		return initiator.Open(t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:a",
			LoginTimeout: 10 * time.Second, InitiatorName: fmt.Sprintf("iqn.2026-11.test:i%d", time.Now().UnixNano())})
	}
	set := func(limits string) {
		t.Helper()
		b.write(strings.Replace(reloadBase, "admin:", "limits: "+limits+"\nadmin:", 1))
		if code, out := b.reload(); code != exitDegraded || strings.Count(out, "not done") != 1 || !strings.Contains(out, "limits\n") {
			t.Fatalf("%s: exit %d\n%s", limits, code, out)
		}
	}
	first, err := login()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	set("{sessions: 1, pending_logins: 4, workers: 2}")
	if l, err := login(); err == nil {
		l.Close()
		t.Error("a second session is let in")
	} else if !strings.Contains(err.Error(), "out of resources") {
		t.Error(err)
	}
	if _, err := first.ReadAt(make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
	set("{sessions: 2}")
	second, err := login()
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	b.write(strings.Replace(reloadBase, "admin:", "limits: {sessions: 2, staging_memory: 64MiB}\nadmin:", 1))
	if code, out := b.reload(); code != exitDegraded || !strings.Contains(out, "limits.staging_memory\n         not done") {
		t.Errorf("staging_memory: exit %d\n%s", code, out)
	}
}

// TestExportsOfMistypedKinds: a slip in "memory" or "null" makes no file of that name, unless that is what is asked for.
func TestExportsOfMistypedKinds(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("memori", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		"memry,size=1MiB": "did you mean memory?", "nul": "did you mean null?", "mem,size=1MiB": "./mem",
		"memory,size=1MiB": "", "null,size=1MiB": "", "./memry,size=1MiB": "", "disk0,size=1MiB": "", "nul.img,size=1MiB": "", "memori": "", "/memry": "", "file:memry,size=1MiB": "",
	} {
		_, _, err := splitExport("a=" + spec)
		_, _, added := volumeArgument("a=" + spec)
		for _, err := range []error{err, added} {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", spec, err, want)
			}
		}
	}
}

func TestExportPlacement(t *testing.T) {
	for in, want := range map[string]string{
		"memory,size=1MiB":                       "",
		"memory,size=1MiB,placement=direct":      "direct",
		"memory,placement=verified,size=1MiB,ro": "verified",
	} {
		v, err := exportVolume("a", in)
		if err != nil || v.Placement != want || v.Size != 1<<20 {
			t.Errorf("%s: placement %q of %d bytes, %v; want %q", in, v.Placement, v.Size, err, want)
		}
	}
	for _, in := range []string{"memory,size=1MiB,placement=", "memory,size=1MiB,placement=fast", "memory,size=1MiB,placement"} {
		if _, err := exportVolume("a", in); err == nil {
			t.Errorf("%s is accepted", in)
		}
	}
}

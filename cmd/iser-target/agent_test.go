package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/internal/race"
)

// What the agent takes of the library that clusters have.
const shellFuncs = `
OCF_SUCCESS=0 OCF_ERR_GENERIC=1 OCF_ERR_ARGS=2 OCF_ERR_UNIMPLEMENTED=3 OCF_ERR_INSTALLED=5 OCF_ERR_CONFIGURED=6 OCF_NOT_RUNNING=7
ocf_log() { echo "log: $*" >&2; }
ocf_exit_reason() { echo "reason: $*" >&2; }
ocf_local_nodename() { echo here; }
ocf_promotion_score() { echo "$*" > "$HA_RSCTMP/score"; }
`

// Exit codes of agents (OCF Resource Agent API 1.1).
const (
	ocfSuccess     = 0
	ocfGeneric     = 1
	ocfInstalled   = 5
	ocfConfigured  = 6
	ocfNotRunning  = 7
	ocfPromoted    = 8
	ocfUnsupported = 3
)

// agentBed is the OCF agent as a cluster has it, with a library of its own.
type agentBed struct {
	t        *testing.T
	dir      string
	env      []string
	disk     string
	agent    string
	settings map[string]string
}

func newAgentBed(t *testing.T) *agentBed {
	t.Helper()
	if race.Enabled {
		t.Skip("the agent is a script: of what it starts the race detector sees nothing that other tests do not show it")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent, err := filepath.Abs("../../packaging/ocf/softiser/target")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := &agentBed{t: t, dir: dir, disk: filepath.Join(dir, "disk0.img"), agent: agent, settings: map[string]string{
		"config": filepath.Join(dir, "c.yaml"), "binary": exe, "log": filepath.Join(dir, "log"), "drain": "10ms", "CRM_meta_timeout": "20000",
	}}
	b.file("lib/heartbeat/ocf-shellfuncs", shellFuncs)
	// Not the cluster's own, where this machine is in one.
	b.file("bin/crm_resource", "#!/bin/sh\necho \"$*\" >>\"$HA_RSCTMP/told\"\n")
	if err := os.Chmod(filepath.Join(dir, "bin/crm_resource"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.file("disk0.img", string(make([]byte, 1<<20)))
	b.file("store/none", "")
	b.file("c.yaml", `
portals: [{listen: "`+loopback.FreeAddr(t)+`"}]
volumes: [{name: disk0, type: file, path: disk0.img, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1}]
targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}]}]
ha: {node: a, store: store, groups: [{name: g1, volumes: [disk0], fencing: node}]}
`)
	b.env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0", "OCF_ROOT="+dir, "HA_RSCTMP="+dir, "OCF_RESOURCE_INSTANCE=t1",
		"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		if p := b.process(); p > 0 {
			syscall.Kill(p, syscall.SIGKILL) //nolint:errcheck // it may have ended
		}
	})
	return b
}

func (b *agentBed) file(name, text string) {
	b.t.Helper()
	name = filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
		b.t.Fatal(err)
	}
}

// process is the target that the agent has started, 0 if none.
func (b *agentBed) process() int {
	p, _ := os.ReadFile(filepath.Join(b.dir, "softiser-t1.pid"))
	n, _ := strconv.Atoi(strings.TrimSpace(string(p)))
	return n
}

// unreachable has f find a target that lives, and does not answer.
func (b *agentBed) unreachable(f func()) {
	b.t.Helper()
	socket := filepath.Join(b.dir, "softiser-t1.sock")
	if err := os.Rename(socket, socket+".away"); err != nil {
		b.t.Fatal(err)
	}
	f()
	if err := os.Rename(socket+".away", socket); err != nil {
		b.t.Fatal(err)
	}
}

// do runs an action, and checks its exit code and what it says.
func (b *agentBed) do(action string, code int, want string) string {
	b.t.Helper()
	c := exec.Command("sh", b.agent, action)
	c.Env = b.env
	for k, v := range b.settings {
		c.Env = append(c.Env, "OCF_RESKEY_"+k+"="+v)
	}
	// A file, not a pipe: the target keeps what it inherits.
	out, err := os.Create(filepath.Join(b.dir, "out"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	text, _ := os.ReadFile(out.Name())
	if got := c.ProcessState.ExitCode(); got != code || !strings.Contains(string(text), want) {
		log, _ := os.ReadFile(b.settings["log"])
		b.t.Fatalf("%s: exit %d, want %d, %q\n%s\n%s", action, got, code, want, text, log)
	}
	return string(text)
}

func (b *agentBed) score() string {
	s, _ := os.ReadFile(filepath.Join(b.dir, "score"))
	return strings.TrimSpace(string(s))
}

// A process that ends by itself is told of at once; one that is stopped is not.
func TestAgentTellsOfAnEnd(t *testing.T) {
	b := newAgentBed(t)
	told := func() string {
		s, _ := os.ReadFile(filepath.Join(b.dir, "told"))
		return string(s)
	}
	b.do("start", ocfSuccess, "")
	b.do("stop", ocfSuccess, "")
	b.do("start", ocfSuccess, "")
	if err := syscall.Kill(b.process(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the cluster is told", func() bool { return strings.HasSuffix(told(), "\n") })
	if got := told(); got != "--fail --resource t1 --node here\n" {
		t.Errorf("the cluster was told %q", got)
	}
	b.do("stop", ocfSuccess, "")
}

// Where nobody can be told of that (a remote node may be without the tool), the target runs all the same.
func TestAgentWithoutCRMResource(t *testing.T) {
	b := newAgentBed(t)
	if err := os.Remove(filepath.Join(b.dir, "bin/crm_resource")); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"cat", "grep", "mkfifo", "rm", "sh", "sleep", "tr"} {
		path, err := exec.LookPath(tool)
		if err == nil {
			err = os.Symlink(path, filepath.Join(b.dir, "bin", tool))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.env = append(b.env, "PATH="+filepath.Join(b.dir, "bin"))
	b.do("start", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	b.do("stop", ocfSuccess, "")
	b.do("monitor", ocfNotRunning, "")
}

// The plain form: what a cluster asks of every resource.
func TestAgentPlain(t *testing.T) {
	b := newAgentBed(t)
	if x := b.do("meta-data", ocfSuccess, `<parameter name="config" required="1"`); !strings.HasPrefix(x, "<?xml") {
		t.Errorf("meta-data begin with %.40q", x)
	}
	b.do("nothing", ocfUnsupported, "")
	b.do("monitor", ocfNotRunning, "")
	b.do("stop", ocfSuccess, "")
	b.do("reload", ocfGeneric, "")
	b.do("validate-all", ocfSuccess, "")
	b.do("start", ocfSuccess, "")
	b.do("start", ocfSuccess, "") // again: nothing happens
	b.do("monitor", ocfSuccess, "")
	b.unreachable(func() { b.do("monitor", ocfGeneric, "does not answer") })
	b.do("reload", ocfSuccess, "")
	b.do("promote", ocfConfigured, "group is not set")
	first := b.process()

	// Killed: it is not running, and can be started again.
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the process has ended", func() bool {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first))
		return len(cmdline) == 0
	})
	if x := b.do("monitor", ocfNotRunning, ""); x != "" {
		t.Errorf("monitor of a process that was killed says %q", x)
	}
	b.do("stop", ocfSuccess, "")
	b.do("monitor", ocfNotRunning, "")
	b.do("start", ocfSuccess, "")
	if b.process() == first {
		t.Error("the process is the same")
	}

	// One of which the process is not known: neither running nor stopped.
	name := filepath.Join(b.dir, "softiser-t1.pid")
	kept, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b.file("softiser-t1.pid", strconv.Itoa(os.Getpid())) // a number that is another's by now
	b.do("monitor", ocfGeneric, "has not started")
	b.do("stop", ocfGeneric, "is not known")
	b.file("softiser-t1.pid", string(kept))
	b.do("stop", ocfSuccess, "")
	b.do("monitor", ocfNotRunning, "")
}

// A group that could not be given up is a failure of the plain form, too: the cluster ends the process.
func TestAgentPlainStuckGroup(t *testing.T) {
	dir, freeze, thaw := frozen(t)
	b := newAgentBed(t)
	b.file("c.yaml", `
portals: [{listen: "`+loopback.FreeAddr(t)+`"}]
volumes: [{name: disk0, type: file, path: `+filepath.Join(dir, "disk0.img")+`, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1}]
targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}]}]
ha: {node: a, store: `+filepath.Join(dir, "store")+`, groups: [{name: g1, volumes: [disk0], fencing: node, start: active}]}
`)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "store"), 0o700), os.WriteFile(filepath.Join(dir, "disk0.img"), make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.do("start", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	freeze() // the end of the ownership cannot be written down
	if code, out := command(t, "demote", "g1", "--socket", filepath.Join(b.dir, "softiser-t1.sock"), "--timeout", "10ms"); code == 0 {
		t.Errorf("it was given up: %s", out)
	}
	b.do("monitor", ocfGeneric, "is stuck")
	thaw()
	b.do("stop", ocfSuccess, "")
}

// A node on which no group could be promoted is a failure of the plain form: another node may have the storage. One
// that serves a group stays.
func TestAgentPlainNotPromoted(t *testing.T) {
	b := newAgentBed(t)
	b.file("disk1.img", string(make([]byte, 1<<20)))
	b.file("c.yaml", `
portals: [{listen: "`+loopback.FreeAddr(t)+`"}]
volumes:
  - {name: disk0, type: file, path: disk0.img, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1}
  - {name: disk1, type: file, path: disk1.img, size: 1MiB, wwid: 6000000000000000000000000000da7b, serial: S2}
targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}, {lun: 1, volume: disk1}]}]
ha:
  node: a
  store: store
  groups:
    - {name: g1, volumes: [disk0], fencing: node, start: active}
    - {name: g2, volumes: [disk1], fencing: node, start: active}
`)
	lose := func(disk string) {
		if err := os.Remove(filepath.Join(b.dir, disk)); err != nil {
			t.Fatal(err)
		}
	}
	lose("disk0.img")
	b.do("start", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	b.do("stop", ocfSuccess, "")
	lose("disk1.img")
	b.do("start", ocfGeneric, "could be promoted")
	b.do("monitor", ocfGeneric, "could be promoted")
	b.do("stop", ocfSuccess, "")
	b.file("disk0.img", string(make([]byte, 1<<20)))
	b.do("start", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	b.do("stop", ocfSuccess, "")
	// Given up by hand nothing has failed.
	b.file("disk1.img", string(make([]byte, 1<<20)))
	b.do("start", ocfSuccess, "")
	for _, g := range []string{"g1", "g2"} {
		if code, out := command(t, "demote", g, "--socket", filepath.Join(b.dir, "softiser-t1.sock")); code != 0 {
			t.Errorf("demote: %s", out)
		}
	}
	b.do("monitor", ocfSuccess, "")
	b.do("stop", ocfSuccess, "")
}

// Without a parameter that names it the program is looked for, as a package or an installation by hand leaves it.
func TestAgentFindsTheProgram(t *testing.T) {
	b := newAgentBed(t)
	exe := b.settings["binary"]
	delete(b.settings, "binary")
	if err := os.Symlink(exe, filepath.Join(b.dir, "bin", "iser-target")); err != nil {
		t.Fatal(err)
	}
	b.do("validate-all", ocfSuccess, "")
	b.do("start", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	b.do("stop", ocfSuccess, "")
}

// What is wrong is said before anything is started, and a probe needs neither the file nor
// the storage.
func TestAgentValidates(t *testing.T) {
	b := newAgentBed(t)
	for _, c := range []struct {
		key, value, want string
		code             int
	}{
		{"binary", "/none", "/none is not there", ocfInstalled},
		{"binary", "no-such-iser-target", "no-such-iser-target is not there", ocfInstalled},
		{"config", "", "config is not set", ocfConfigured},
		{"config", "/none.yaml", "/none.yaml", ocfConfigured},
	} {
		was := b.settings[c.key]
		b.settings[c.key] = c.value
		b.do("validate-all", c.code, c.want)
		b.do("start", c.code, c.want)
		if c.key == "config" {
			b.do("monitor", ocfNotRunning, "")
			b.do("stop", ocfSuccess, "")
		}
		b.settings[c.key] = was
	}
	b.file("c.yaml", "portals: [{listen: \"203.0.113.7:3260\"}]\nvolumes: [{name: m, type: memory, size: 1MiB}]\ntargets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: m}]}]\n")
	b.do("start", ocfGeneric, "ended at once") // an address that is not here
	b.do("stop", ocfSuccess, "")
}

// The promotable form: Unpromoted is a warm standby, Promoted has the volumes open.
func TestAgentPromotable(t *testing.T) {
	b := newAgentBed(t)
	b.settings["group"] = "g1"
	b.do("start", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	if s := b.score(); s != "-v 10" {
		t.Errorf("score on standby %q", s)
	}
	b.settings["backend_check"] = "false"
	b.do("monitor", ocfSuccess, "")
	if s := b.score(); s != "-D" {
		t.Errorf("score without storage %q", s)
	}
	b.settings["backend_check"] = "true"
	b.unreachable(func() { b.do("monitor", ocfGeneric, "does not answer") })
	b.do("promote", ocfSuccess, "")
	b.do("monitor", ocfPromoted, "")
	if s := b.score(); s != "-v 100" {
		t.Errorf("score when promoted %q", s)
	}
	b.do("demote", ocfSuccess, "")
	b.do("demote", ocfSuccess, "")
	b.do("monitor", ocfSuccess, "")
	if err := os.Remove(b.disk); err != nil {
		t.Fatal(err)
	}
	b.do("promote", ocfGeneric, "volume disk0")
	b.do("monitor", ocfSuccess, "") // it is still a standby
	b.do("stop", ocfSuccess, "")
	b.do("monitor", ocfNotRunning, "")
}

// The agent under the tool that its interface's authors test agents with, and their library.
func TestAgentUnderOCFTester(t *testing.T) {
	for _, tool := range []string{"ocf-tester", "xmllint", "/usr/lib/ocf/lib/heartbeat/ocf-shellfuncs", "/usr/share/resource-agents/ra-api-1.dtd"} {
		_, err := exec.LookPath(tool)
		if filepath.IsAbs(tool) {
			_, err = os.Stat(tool)
		}
		if err != nil {
			t.Skip(tool, "is not here (make tools)")
		}
	}
	b := newAgentBed(t)
	b.settings["group"] = "g1" // ocf-tester promotes; without a group that is refused
	delete(b.settings, "CRM_meta_timeout")
	args := []string{"-n", "t1"}
	for k, v := range b.settings {
		args = append(args, "-o", k+"="+v)
	}
	c := exec.Command("ocf-tester", append(args, b.agent)...)
	c.Env = append(b.env, "OCF_ROOT=/usr/lib/ocf")
	out, err := os.Create(filepath.Join(b.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	if text, _ := os.ReadFile(out.Name()); err != nil || !strings.Contains(string(text), "passed all tests") {
		t.Errorf("%v\n%s", err, text)
	}
}

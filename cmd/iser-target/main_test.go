package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/leaktest"
	"softiser/internal/loopback"
	"softiser/target"
)

func TestMain(m *testing.M) {
	// The system's own folder is not for tests.
	dir, err := os.MkdirTemp("", "iser-target-test")
	if err != nil {
		panic(err)
	}
	os.Setenv("RUNTIME_DIRECTORY", dir)
	leaktest.Main(m, leaktest.Processes(), leaktest.After(func() { os.RemoveAll(dir) }))
}

// output collects what a command prints while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// command runs one command line to its end.
func command(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var o output
	return runWith(t.Context(), &o, args...), o.String()
}

func runWith(ctx context.Context, o *output, args ...string) int {
	return run(ctx, args, o, o)
}

// start runs serve in the background until the test ends.
func start(t *testing.T, args ...string) (*output, func() int) {
	t.Helper()
	o := &output{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() { done <- runWith(ctx, o, append([]string{"serve"}, args...)...) }()
	stop := sync.OnceValue(func() int { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	await.True(t, "serve says what it serves", func() bool {
		if len(done) > 0 {
			t.Fatalf("serve has ended:\n%s", o)
		}
		return strings.Contains(o.String(), "serves on")
	})
	return o, stop
}

// Who interrupts a command is told that, not that there is no target.
func TestInterruptedCommand(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "mute.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, args := range [][]string{{"status"}, {"top"}, {"resize", "d", "1GiB"}, {"capture", "--next", ":3260", "-w", socket + ".pcap"}, {"lvm", "lvs"}} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if nc, err := ln.Accept(); err == nil {
				defer nc.Close()
				cancel()
				<-t.Context().Done()
			}
		}()
		var o output
		if code := runWith(ctx, &o, append(args, "--socket", socket)...); code == exitNoTarget || o.String() != "iser-target: interrupted\n" {
			t.Errorf("%v: exit %d, %s", args, code, o.String())
		}
	}
}

func TestServeExports(t *testing.T) {
	dir := t.TempDir()
	addr, socket, metrics := loopback.FreeAddr(t), filepath.Join(dir, "s"), loopback.FreeAddr(t)
	disk := filepath.Join(dir, "disk0.img")
	o, stop := start(t, "--listen", addr, "--socket", socket, "--metrics", metrics, "--log-level", "error",
		"--export", "disk0="+disk+",size=8MiB", "--export", "ram0=memory,size=1GiB", "--export", "null0=null,size=1TiB")
	for _, want := range []string{
		"iser://" + addr + "/iqn.2026-11.softiser:disk0/0", "iqn.2026-11.softiser:ram0  LUN 0  1GiB", "iqn.2026-11.softiser:null0  LUN 0  1TiB",
		"iscsiadm -m discovery -t st -I iser -p " + addr,
	} {
		await.True(t, fmt.Sprintf("the banner says %q", want), func() bool { return strings.Contains(o.String(), want) })
	}

	code, out := command(t, "status", "--socket", socket, "--json")
	var st target.Status
	if err := json.Unmarshal([]byte(out), &st); code != 0 || err != nil || len(st.Targets) != 3 || st.State != "listening" {
		t.Fatalf("status --json: exit %d, %v, %s", code, err, out)
	}
	if code, out := command(t, "status", "--socket", socket); code != 0 || !strings.Contains(out, "disk0") || !strings.Contains(out, addr) {
		t.Errorf("status: exit %d\n%s", code, out)
	}
	if code, out := command(t, "resize", "--socket", socket, "disk0", "16MiB"); code != 0 {
		t.Errorf("resize: exit %d\n%s", code, out)
	}
	if fi, err := os.Stat(disk); err != nil || fi.Size() != 16<<20 {
		t.Errorf("after resize: %v, %v", fi.Size(), err)
	}
	if code, out := command(t, "lun", "access", "--socket", socket, "iqn.2026-11.softiser:disk0", "0", "1", "standby"); code != 0 {
		t.Errorf("lun access: exit %d\n%s", code, out)
	}
	if code, out := command(t, "status", "--json", "--socket", socket); code != 0 || !strings.Contains(out, `"standby"`) {
		t.Errorf("status after lun access: exit %d\n%s", code, out)
	}
	if code, out := command(t, "status", "--socket", socket); code != 0 || !strings.Contains(out, "LUN 0 is standby through portal group 1") {
		t.Errorf("status for people after lun access: exit %d\n%s", code, out)
	}
	if code, _ := command(t, "lun", "access", "--socket", socket, "iqn.2026-11.softiser:disk0", "0", "7", "standby"); code != exitFailure {
		t.Errorf("lun access of a group that is not there: exit %d", code)
	}
	if code, _ := command(t, "lun", "access", "--socket", socket, "iqn.2026-11.softiser:disk0", "0", "1", "asleep"); code != exitUsage {
		t.Errorf("lun access with a state that is none: exit %d", code)
	}
	if code, out := command(t, "resize", "--socket", socket, "disk0", "8MiB"); code != exitUsage || !strings.Contains(out, "--shrink") {
		t.Errorf("shrinking unasked: exit %d\n%s", code, out)
	}
	if code, out := command(t, "lun", "add", "--socket", socket, "iqn.2026-11.softiser:ram0", "1", "disk0=memory,size=1MiB"); code != exitFailure || !strings.Contains(out, "open already") {
		t.Errorf("another volume under the same name: exit %d\n%s", code, out)
	}
	if code, out := command(t, "reload", "--socket", socket); code != exitFailure || !strings.Contains(out, "--config") {
		t.Errorf("reload without a file: exit %d\n%s", code, out)
	}
	if code, _ := command(t, "resize", "--socket", socket, "nothing", "16MiB"); code != exitFailure {
		t.Errorf("resize of an unknown volume: exit %d", code)
	}
	iqn := "iqn.2026-11.softiser:disk0"
	if code, out := command(t, "lun", "add", "--socket", socket, iqn, "5", "extra=memory,size=1MiB"); code != 0 {
		t.Errorf("lun add: exit %d\n%s", code, out)
	}
	if code, out := command(t, "lun", "add", "--socket", socket, iqn, "5", "again=memory,size=1MiB"); code != exitFailure || !strings.Contains(out, "5") {
		t.Errorf("lun add twice: exit %d\n%s", code, out)
	}
	if code, out := command(t, "lun", "remove", "--socket", socket, iqn, "5"); code != 0 {
		t.Errorf("lun remove: exit %d\n%s", code, out)
	}
	if code, _ := command(t, "session", "kill", "--socket", socket, "77"); code != exitFailure {
		t.Errorf("killing a session that is not there: exit %d", code)
	}
	if code, out := command(t, "session", "list", "--socket", socket); code != 0 || out != "no session is open\n" {
		t.Errorf("session list: exit %d, %q", code, out)
	}
	if code, out := command(t, "session", "list", "--json", "--socket", socket); code != 0 || out != "[]\n" {
		t.Errorf("session list --json: exit %d, %q", code, out)
	}

	resp, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`iser_target_volume_size_bytes{volume="disk0"} 1.6777216e+07`, `iser_target_lun_latency_seconds_count{kind="read",lun="0",target="iqn.2026-11.softiser:disk0",volume="disk0"} 0`, `iser_target_sessions{transport="iSER"} 0`, "go_goroutines"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if code := stop(); code != 0 {
		t.Errorf("serve ended with %d:\n%s", code, o)
	}
	if code, _ := command(t, "status", "--socket", socket); code != exitNoTarget {
		t.Errorf("status of nobody: exit %d", code)
	}
}

// TestServeSocketOfTheEnvironment: the variable that tells commands which target to ask has another target make the
// same socket; the error tells where the path comes from.
func TestServeSocketOfTheEnvironment(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	start(t, "--listen", loopback.FreeAddr(t), "--socket", socket, "--export", "a=memory,size=1MiB")
	second := []string{"serve", "--listen", loopback.FreeAddr(t), "--export", "b=memory,size=1MiB"}
	const says = "; the environment variable SOFTISER_ADMIN_SOCKET names it"
	if code, out := command(t, append(second, "--socket", socket)...); code != exitFailure || !strings.Contains(out, "another process serves it") || strings.Contains(out, says) {
		t.Errorf("--socket: exit %d\n%s", code, out)
	}
	t.Setenv("SOFTISER_ADMIN_SOCKET", socket)
	if code, out := command(t, second...); code != exitFailure || !strings.Contains(out, "another process serves it"+says) {
		t.Errorf("the variable: exit %d\n%s", code, out)
	}
}

// A volume that is missing keeps its LUN away, and nothing else.
func TestServeWithoutAVolume(t *testing.T) {
	dir := t.TempDir()
	addr := loopback.FreeAddr(t)
	file := filepath.Join(dir, "c.yaml")
	text := `
portals: [{listen: "` + addr + `"}]
volumes:
  - {name: gone, type: file, path: gone.img}
  - {name: here, type: memory, size: 1MiB}
targets:
  - iqn: iqn.2026-11.test:a
    luns: [{lun: 0, volume: gone}, {lun: 1, volume: here}]
admin: {socket: ` + filepath.Join(dir, "s") + `}
logging: {level: error}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "--config", file)
	code, out := command(t, "status", "--socket", filepath.Join(dir, "s"), "--json")
	var st target.Status
	if err := json.Unmarshal([]byte(out), &st); code != 0 || err != nil {
		t.Fatal(code, err, out)
	}
	if luns := st.Targets[0].LUNs; len(luns) != 2 || luns[0].Error == "" || luns[1].Error != "" {
		t.Errorf("LUNs %+v, want only LUN 1 served", luns)
	}
	code, out = command(t, "check", "--config", file)
	if code != exitDegraded || !strings.Contains(out, "gone") {
		t.Errorf("check: exit %d\n%s", code, out)
	}
}

// Nothing to serve is an error, not a target without disks.
func TestServeNothing(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "d.img")
	start(t, "--listen", loopback.FreeAddr(t), "--log-level", "error", "--export", "d="+disk+",size=1MiB")
	code, out := command(t, "serve", "--listen", loopback.FreeAddr(t), "--log-level", "dpanic", "--export", "d="+disk+",size=1MiB")
	if code != exitFailure || !strings.Contains(out, "nothing to serve") {
		t.Errorf("a second server of one file: exit %d\n%s", code, out)
	}
}

// A shutdown has the times that it was given, or serve does not begin: with a negative one the
// process would end beside its flushes, and zero is the library's word for its default.
// A descriptor that has not been passed is refused before anything is opened: a volume might get its number, and the
// newline. In this process those that Go has opened stand for them.
func TestReadyDescriptorIsPassed(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "volume"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, fd := range []int{-1, 1 << 20, int(f.Fd())} {
		var o output
		if code := runWith(ended, &o, "serve", "--listen", loopback.FreeAddr(t), "--ready-fd", strconv.Itoa(fd)); code != exitUsage || !strings.Contains(o.String(), "no such descriptor has been passed") {
			t.Errorf("--ready-fd %d: code %d, %s", fd, code, &o)
		}
	}
}

func TestShutdownTimes(t *testing.T) {
	for _, c := range []struct {
		f     serveFlags
		drain time.Duration
		err   string
	}{
		{f: serveFlags{drain: time.Second, storage: time.Second}, drain: time.Second},
		{f: serveFlags{drain: 0, storage: time.Second}, drain: 1},
		{f: serveFlags{drain: -time.Second, storage: time.Second}, err: "--drain -1s"},
		{f: serveFlags{drain: time.Second, storage: 0}, err: "--storage-timeout 0s"},
		{f: serveFlags{drain: time.Second, storage: -1}, err: "--storage-timeout -1ns"},
	} {
		_, err := c.f.resolve()
		if c.err != "" {
			if e, ok := err.(*exitError); !ok || e.code != exitUsage || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %v: %v, want %s", c.f.drain, c.f.storage, err, c.err)
			}
			continue
		}
		var got target.Timeouts
		c.f.timeouts(&got)
		if err != nil || got.Drain != c.drain || got.Storage != c.f.storage {
			t.Errorf("%v, %v: %+v, %v", c.f.drain, c.f.storage, got, err)
		}
	}
}

// Whatever is wrong with the words of a command line ends with 2.
func TestUsageIsTwo(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--export", "nonsense"},
		{"serve", "--export", "a=memory"},
		{"serve", "--export", "a=memory,size=1MiB", "--export", "A=memory,size=1MiB"},
		{"serve", "--config", "/no/such/file.yaml"},
		{"serve", "--no-such-flag"},
		{"serve", "--export", "a=memory,size=1MiB", "--log-level", "loud"},
		{"check", "--config", "/no/such/file.yaml"},
		{"session", "kill", "many"},
		{"lun", "add", "iqn.x", "99999", "a=memory,size=1MiB"},
		{"resize", "a", "12 parsecs"},
		{"resize", "a"},
		{"serve", "extra"},
		{"serve", "--listen", "127.0.0.1:99999"},
		{"serve", "--listen", "127.0.0.1:0x10"},
		{"serve", "--listen", "127.0.0.1:3260", "--listen", "127.0.0.1"},
		{"serve", "--export", "a=memory,size=0"},
		{"nonsense"},
		{"session", "nonsense"},
		{"lvm", "lvlist"},
		{"serve", "--export", "my_disk=memory,size=1MiB"},
		{"check"},
		{"serve", "--config", "x.yaml", "--export", "a=memory,size=1MiB"},
		{"serve", "--drain", "soon"},
		{"serve", "--drain"},
		{"serve", "--export", "a=https://alice:pass-word@host/a"},
		{"status", "--json=maybe"},
		{"status", "extra"},
		{"status", "-x"},
		{"session", "kill"},
		{"session", "kill", "1", "2"},
		{"lun", "remove", "iqn.x", "-1"},
		{"lun", "access", "iqn.x", "0", "70000", "standby"},
		{"lun", "add", "iqn.x", "0", "=a"},
		{"lun", "add", "iqn.x", "0", "x\x1b[2J=memory,size=1MiB"},
		{"lun", "remove", "", "0"},
		{"namespace", "remove", "", "1"},
		{"session", "release", "", ""},
		{"promote", ""},
		{"reload", "now"},
		{"completion", "tcsh"},
		{"doctor", "--bundle", ""},
		{"doctor", "--log", "x"},
		{"capture", "-w", "x", "--next", ":3260", "--time", "-1s"},
		{"capture", "-w", "x", "--next", ":3260", "--bytes", "0"},
		{"capture", "-w", "x", "--next", ":3260", "--connections", "65"},
		{"help", "nothing"},
	} {
		if code, out := command(t, args...); code != exitUsage || out == "" {
			t.Errorf("%v: exit %d, want %d; %s", args, code, exitUsage, out)
		}
	}
	for _, args := range [][]string{{"serve", "--help"}, {"session"}, {"lun"}, {}, {"help"}, {"help", "serve"}} {
		if code, out := command(t, args...); code != 0 || !strings.Contains(out, "Usage:") {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
	if code, out := command(t, "serve", "--help"); code != 0 || !strings.Contains(out, "--export") || !strings.Contains(out, "Examples:") {
		t.Errorf("serve --help: exit %d\n%s", code, out)
	}
}

// A mistyped flag is named, and the one that was probably meant.
func TestWrongFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"serve --exprot a=memory", "did you mean --export?"},
		{"serve --log_level debug", "did you mean --log-level?"},
		{"status --jsn", "did you mean --json?"},
		{"check --conf x.yaml", "did you mean --config?"},
		{"lun add --sokcet /s iqn.x 0 a=memory,size=1MiB", "did you mean --socket?"},
		{"status --colour", "unknown flag: --colour; see iser-target status --help"},
		{"stauts", `unknown command "stauts"`},
		{"session lst", "did you mean list?"},
		{"serve --config= --ready-fd -1", "--config is empty"},
		{"serve --listen 127.0.0.1:0 --metrics nowhere", `"nowhere" is no address`},
		{"serve --listen 127.0.0.1:0 --metrics 127.0.0.1:65536", `"127.0.0.1:65536" is no address`},
		{"serve --listen 127.0.0.1:9326 --metrics 127.0.0.1:9326", "is already the address of portals[0]"},
		{"serve --listen 127.0.0.1:0 --socket /" + strings.Repeat("s", 108), "the path has 109 bytes"},
	} {
		if code, out := command(t, strings.Fields(c.args)...); code != exitUsage || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit %d, %swant %q", c.args, code, out, c.want)
		}
	}
}

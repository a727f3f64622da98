package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/internal/iscsi"
	"softiser/internal/leaktest"
	"softiser/rdma"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/targettest"
)

func TestMain(m *testing.M) { leaktest.Main(m, leaktest.Processes()) }

const testIQN = "iqn.2026-11.softiser:cli"

// serve runs a target with a volume of size bytes; secret, when set, is asked
// of user joe.
func serve(t *testing.T, size int64, secret string) (addr string, vol blockdev.Device) {
	t.Helper()
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	return serveVolume(t, vol, secret), vol
}

func serveVolume(t *testing.T, vol blockdev.Device, secret string) (addr string) {
	t.Helper()
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	tgt := target.Target{Name: testIQN, LUNs: []target.LUN{{Name: "disk0", LUConfig: scsi.LUConfig{Volume: vol}}}}
	if secret != "" {
		tgt.Auth.Users = []target.Credential{{Name: "joe", Secret: secret}}
	}
	if err := srv.AddTarget(tgt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vol.Close() })
	targettest.Serve(t, srv)
	return srv.Addrs()[0]
}

// run executes a command line and returns what it printed and its exit code.
func run(t *testing.T, line ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(context.Background(), line, &o, &e)
	return o.String(), e.String(), code
}

func must(t *testing.T, line ...string) string {
	t.Helper()
	out, errs, code := run(t, line...)
	if code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", strings.Join(line, " "), code, out, errs)
	}
	return out
}

func TestDiscoverCommand(t *testing.T) {
	addr, _ := serve(t, 1<<20, "")
	for _, scheme := range []string{"", "iser://", "iscsi://"} {
		if out := must(t, "discover", scheme+addr); out != addr+",1 "+testIQN+"\n" {
			t.Errorf("%q", out)
		}
	}
	if out := must(t, "discover", addr, "--urls", "--here"); out != "iser://"+addr+"/"+testIQN+"/0\n" {
		t.Errorf("%q", out)
	}
	var ts []initiator.Target
	if err := json.Unmarshal([]byte(must(t, "discover", "iscsi://"+addr, "--json")), &ts); err != nil || len(ts) != 1 || ts[0].Name != testIQN {
		t.Errorf("%v %+v", err, ts)
	}
}

func TestInfoCommand(t *testing.T) {
	addr, _ := serve(t, 1<<20, "")
	for scheme, transport := range map[string]string{"iser": "iSER", "iscsi": "iSCSI over TCP"} {
		url := scheme + "://" + addr + "/" + testIQN + "/0"
		var r report
		if err := json.Unmarshal([]byte(must(t, "info", url, "--json")), &r); err != nil {
			t.Fatal(err)
		}
		if r.Volume.Size != 1<<20 || r.Volume.BlockSize != 512 || !strings.HasPrefix(r.Session.Transport, transport) || r.Session.TargetName != testIQN || len(r.Identity.Designators) == 0 {
			t.Errorf("%+v", r)
		}
		text := must(t, "info", url)
		for _, want := range []string{"1.0 MiB (1048576 bytes)", transport, r.Identity.Designators[0], "CHAP"} {
			if found := strings.Contains(text, want); found == (want == "CHAP") {
				t.Errorf("%q is in the text: %v\n%s", want, found, text)
			}
		}
	}
}

// Several paths to one volume stand wherever a URL does.
func TestSeveralPaths(t *testing.T) {
	addr, vol := serve(t, 1<<20, "")
	other, _ := serve(t, 1<<20, "")
	one, two := "iser://"+addr+"/"+testIQN+"/0", "iscsi://"+addr+"/"+testIQN+"/0?header_digest=crc32c,none"
	url := one + "," + two
	names := one + "," + strings.TrimSuffix(two, "?header_digest=crc32c,none")
	var r report
	if err := json.Unmarshal([]byte(must(t, "info", url, "--json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.URL != names || len(r.Paths) != 2 || !r.Paths[0].Active || !r.Paths[1].Active || r.Volume.Size != 1<<20 || r.Session != nil || r.Limits.MaxTransfer == 0 {
		t.Errorf("%+v", r)
	}
	text := must(t, "info", one+",iser://"+other+"/"+testIQN+"/0")
	for _, want := range []string{one + " optimized, in use", "down: it is not the same volume"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	file := filepath.Join(t.TempDir(), "img")
	data := bytes.Repeat([]byte("several paths   "), 1<<16)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var o outcome
	if err := json.Unmarshal([]byte(must(t, "write", url, file, "--json", "--path-policy=queue-depth")), &o); err != nil || o.URL != names || !o.Flushed {
		t.Errorf("%v %+v", err, o)
	}
	got := make([]byte, len(data))
	if _, err := vol.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("what is on the volume is not what was written: %v", err)
	}
	must(t, "verify", url, file)
	must(t, "verify", one, file, "--all-portals")
	if out := must(t, "bench", url, "--rw=randrw", "--bs=4k", "--iodepth=8", "--size=1m", "--number_ios=500"); !strings.Contains(out, "err= 0") {
		t.Errorf("%s", out)
	}
	for _, line := range [][]string{
		{"info", url, "--path-policy=best"}, {"info", url, "--path-fence=maybe"}, {"info", url, "--no-path-retry=-3s"}, {"info", url, "--path-check=0s"},
		{"info", one + ",iscsi://"}, {"write", url + ",http://x/y/0", file},
	} {
		if _, errs, code := run(t, line...); code != exitUsage {
			t.Errorf("%q: exit code %d\n%s", line, code, errs)
		}
	}
}

func TestCopyCommands(t *testing.T) {
	const size = 4 << 20
	addr, vol := serve(t, size, "")
	dir := t.TempDir()
	in, back := filepath.Join(dir, "in"), filepath.Join(dir, "back")
	data := make([]byte, 3<<20+1000)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		if i>>18&1 == 0 { // every other 256 KiB stay zero
			data[i] = byte(rnd.Uint32())
		}
	}
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"iser", "iscsi"} {
		url := scheme + "://" + addr + "/" + testIQN + "/0"
		if _, errs, code := run(t, "write", url, in); code != exitUsage || !strings.Contains(errs, in) || !strings.Contains(errs, "--pad") {
			t.Errorf("a file that ends inside a block: %d %s", code, errs)
		}
		before := make([]byte, size)
		if _, err := vol.ReadAt(before, 0); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := run(t, "write", url, in, "--pad", "--offset", "2MiB"); code != exitError || !strings.Contains(errs, "longer") {
			t.Errorf("a file that does not fit: %d %s", code, errs)
		}
		if _, errs, code := run(t, "write", url, dir); code != exitError || !strings.Contains(errs, "is a folder; name a file") {
			t.Errorf("a folder: %d %s", code, errs)
		}
		after := make([]byte, size)
		if _, err := vol.ReadAt(after, 0); err != nil || !bytes.Equal(before, after) {
			t.Errorf("a refused write has changed the volume (%v)", err)
		}
		var o outcome
		if err := json.Unmarshal([]byte(must(t, "write", url, in, "--pad", "--sparse", "--chunk", "64KiB", "--json")), &o); err != nil {
			t.Fatal(err)
		}
		if o.Bytes != 3<<20+1024 || o.Zeroes < 1<<20 || !o.Flushed || strings.Contains(o.URL, "%") {
			t.Errorf("%+v", o)
		}
		got := make([]byte, len(data))
		if _, err := vol.ReadAt(got[:3<<20], 0); err != nil || !bytes.Equal(got[:3<<20], data[:3<<20]) {
			t.Errorf("the volume holds something else (%v)", err)
		}
		if out := must(t, "verify", url, in, "--pad", "--chunk", "128KiB", "--depth", "3"); !strings.HasPrefix(out, "verify: 3.0 MiB") {
			t.Errorf("%q", out)
		}
		os.Remove(back)
		must(t, "read", url, back, "--sparse", "--chunk", "64KiB")
		if got, err := os.ReadFile(back); err != nil || len(got) != size || !bytes.Equal(got[:len(data)], data) {
			t.Errorf("read back: %d bytes, %v", len(got), err)
		}
		if _, errs, code := run(t, "read", url, back); code != exitUsage || !strings.Contains(errs, "--force") {
			t.Errorf("an existing file: %d %s", code, errs)
		}
		must(t, "read", url, back, "--force", "--offset", "4KiB", "--length", "8KiB")
		if got, _ := os.ReadFile(back); !bytes.Equal(got, data[4096:12288]) {
			t.Error("a part of the volume was read wrong")
		}
		// A difference, far into the volume.
		if _, err := vol.WriteAt(bytes.Repeat([]byte{0xee}, 512), 2<<20); err != nil {
			t.Fatal(err)
		}
		_, errs, code := run(t, "verify", url, in, "--pad")
		if code != exitDiffer || !strings.Contains(errs, fmt.Sprintf("the volume differs from %s, first at byte %d", in, 2<<20)) {
			t.Errorf("a difference: %d %s", code, errs)
		}
		out, _, code := run(t, "verify", url, in, "--pad", "--json")
		if err := json.Unmarshal([]byte(out), &o); err != nil || code != exitDiffer || o.Equal == nil || *o.Equal || o.FirstDiff == nil || *o.FirstDiff != 2<<20 {
			t.Errorf("a difference as JSON: %d %v %s", code, err, out)
		}
	}
}

func TestStandardStreams(t *testing.T) {
	addr, vol := serve(t, 1<<20, "")
	url := "iser://" + addr + "/" + testIQN + "/0"
	swap := func(which **os.File, content string) *os.File {
		f, err := os.CreateTemp(t.TempDir(), "std")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		old := *which
		*which = f
		t.Cleanup(func() { *which = old; f.Close() })
		return f
	}
	text := strings.Repeat("0123456789abcdef", 64)
	swap(&os.Stdin, text)
	must(t, "write", url, "-", "--offset", "512")
	got := make([]byte, 1024)
	if _, err := vol.ReadAt(got, 512); err != nil || string(got) != text {
		t.Errorf("standard input was not written (%v)", err)
	}
	out := swap(&os.Stdout, "")
	must(t, "read", url, "--offset", "512", "--length", "1KiB")
	if b, err := os.ReadFile(out.Name()); err != nil || string(b) != text {
		t.Errorf("standard output: %d bytes, %v", len(b), err)
	}
	// More than fits.
	swap(&os.Stdin, strings.Repeat("x", 1<<20+512))
	if _, errs, code := run(t, "write", url); code != exitError || !strings.Contains(errs, "longer than") {
		t.Errorf("too much input: %d %s", code, errs)
	}
	// What is longer than the volume is not equal to it, whatever it begins with.
	whole := make([]byte, 1<<20)
	if _, err := vol.ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	swap(&os.Stdin, string(whole)+"x")
	if _, errs, code := run(t, "verify", url); code != exitDiffer || !strings.Contains(errs, "longer than") {
		t.Errorf("verify, too much input: %d %s", code, errs)
	}
	long := filepath.Join(t.TempDir(), "long")
	if err := os.WriteFile(long, append(whole, make([]byte, 512)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, moved := range map[string]int64{"-": 1 << 20, long: 0} {
		swap(&os.Stdin, string(whole)+"x")
		out, errs, code := run(t, "verify", url, name, "--json")
		var o outcome
		if err := json.Unmarshal([]byte(out), &o); err != nil || code != exitDiffer || o.Equal == nil || *o.Equal || o.FirstDiff != nil || o.Bytes != moved || !strings.Contains(errs, "longer") {
			t.Errorf("verify of %s, too much input, as JSON: %d %v %s%s", name, code, err, out, errs)
		}
	}
	swap(&os.Stdin, string(whole)+"x")
	must(t, "verify", url, "--length", "1MiB")
	swap(&os.Stdin, string(whole))
	must(t, "verify", url)
}

// A device without an end is not taken for an empty file.
func TestEndlessInput(t *testing.T) {
	addr, vol := serve(t, 1<<20, "")
	url := "iscsi://" + addr + "/" + testIQN + "/0"
	must(t, "verify", url, "/dev/zero", "--length", "1MiB")
	if _, err := vol.WriteAt(bytes.Repeat([]byte{1}, 512), 512<<10); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := run(t, "verify", url, "/dev/zero"); code != exitDiffer || !strings.Contains(errs, fmt.Sprintf("byte %d ", 512<<10)) {
		t.Errorf("a volume that is not zero: exit %d, %s", code, errs)
	}
}

// Wrong usage has its exit code in the commands of other packages, too.
func TestUsageEverywhere(t *testing.T) {
	const url = "iser://127.0.0.1:1/" + testIQN + "/0"
	for _, line := range [][]string{
		{"attach"}, {"attach", url, "--connections=0"}, {"attach", url, "--timeout=-1s"}, {"attach", "nonsense"}, {"attach", url, "--crc=maybe"},
		{"bench", url, "--output-format=xml"}, {"bench", url, "--runtime=abc"}, {"bench", url, "/no/such/file.fio"}, {"bench", url, "--no-such"},
		{"rdma", "rping"}, {"rdma", "rping", "-c", "-S", "1"}, {"rdma", "ucmatose", "-C", "-1"}, {"rdma", "write-bw", "-s", "-5", "127.0.0.1"},
		{"rdma", "write-bw", "--crc=maybe", "127.0.0.1"}, {"rdma", "write-lat", "--busy-poll=50", "127.0.0.1"}, {"rdma", "ibv_devinfo"},
		{"rdma", "devinfo", "-d", "mlx5_0"}, {"rdma", "udaddy"}, {"rdma", "mckey", "-m", "10.0.0.1"}, {"rdma", "ud-pingpong", "-n", "0"},
		{"rdma", "rping", "-s", "--provider", "roce"}, {"rdma", "rping", "-c", "--provider", "rxe"}, {"rdma", "write-bw", "-c", "UD", "--provider", "roce", "127.0.0.1"},
		{"bench", "--rw=read"}, {"info", url, "--chap-user=alice"}, {"info", url, "--initiator-name=bad name"}, {"info", url, "--queue-depth=-1"},
		{"info", url, "--max-burst=4k"},
	} {
		if _, errs, code := run(t, line...); code != exitUsage || errs == "" {
			t.Errorf("%v: exit %d, want %d; %s", line, code, exitUsage, errs)
		}
	}
	if _, errs, _ := run(t, "bench", url, "--rumtime=3"); !strings.Contains(errs, "did you mean --runtime?") {
		t.Errorf("a mistyped flag: %s", errs)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("s", 120))
	addr, _ := serve(t, 1<<20, "")
	for _, socket := range []string{long, "/no/such/dir/x.sock"} {
		_, errs, code := run(t, "attach", "iser://"+addr+"/"+testIQN+"/0", "--device=none", "--run-dir", t.TempDir(), "--socket", socket)
		if code != exitError || !strings.Contains(errs, "NBD socket") || socket == long && !strings.Contains(errs, "107") {
			t.Errorf("socket %s: exit %d, %s", socket, code, errs)
		}
	}
}

// A LUN or a namespace that is not there: every command says which, and what there is.
func TestMissingUnit(t *testing.T) {
	addr, _ := serveBoth(t)
	file := filepath.Join(t.TempDir(), "img")
	if err := os.WriteFile(file, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	for scheme, want := range map[string]string{
		"iser": "LUN 7: the target has no such logical unit; it has LUN 0\n", "iscsi": "LUN 7: the target has no such logical unit; it has LUN 0\n",
		"nvme+tcp": "namespace 7: the subsystem has no such namespace; it has namespace 1\n", "nvme+rdma": "namespace 7: the subsystem has no such namespace; it has namespace 1\n",
	} {
		url := scheme + "://" + addr + "/" + testIQN + "/7"
		if strings.HasPrefix(scheme, "nvme") {
			url = scheme + "://" + addr + "/" + testNQN + "/7"
		}
		for _, line := range [][]string{
			{"info", url}, {"read", url, file + ".new"}, {"write", url, file}, {"verify", url, file}, {"bench", url, "--rw=read", "--eta=never"},
			{"attach", url, "--device=none", "--run-dir", t.TempDir()}, {"reserve", "report", url},
		} {
			if _, errs, code := run(t, line...); code != exitNotFound || strings.Count(errs, want) != 1 {
				t.Errorf("%q: exit code %d, %s", line, code, errs)
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	addr, _ := serve(t, 1<<20, "a-long-secret-1")
	good := "iser://joe%a-long-secret-1@" + addr + "/" + testIQN + "/0"
	must(t, "info", good)
	for _, c := range []struct {
		code int
		line []string
	}{
		{exitUsage, []string{"nonsense"}},
		{exitUsage, []string{"attach", "--detach"}},
		{exitUsage, []string{"attach", "--list", good}},
		{exitUsage, []string{"attach", "--detach", "--upgrade", good}},
		{exitUsage, []string{"help", "nonsense"}},
		// A URL in the wrong place.
		{exitUsage, []string{good}},
		{exitUsage, []string{"doctor", good}},
		{exitUsage, []string{"reserve", good + "?target_password=wrong-secret-22"}},
		{exitUsage, []string{"write", "nofile", good}},
		{exitUsage, []string{"info", good, "--queue-depth", good}},
		{exitUsage, []string{"discover", "iscsi://" + addr, "--dhchap-secret=/nofile"}},
		{exitUsage, []string{"bench", good, "--rw=read", "--size=2m", "--eta=never"}},
		{exitUsage, []string{"bench", good, "--rw=read", "--bs=1000", "--eta=never"}},
		{exitUsage, []string{"attach", good, "--device=none", "--run-dir", t.TempDir(), "--tcp", "127.0.0.1"}},
		{exitUsage, []string{"attach", good, "--device=none", "--run-dir", t.TempDir(), "--tcp", "0.0.0.0:10809"}},
		{exitUsage, []string{"info"}},
		{exitUsage, []string{"info", "--nonsense"}},
		{exitUsage, []string{"info", "host/disk"}},
		{exitUsage, []string{"read", good, "--offset", "1k"}},
		{exitUsage, []string{"read", good, "x", "--offset", "100"}},
		{exitUsage, []string{"read", good, "x", "--offset", "1GiB"}},
		{exitUsage, []string{"read", good, "x", "--chunk", "100"}},
		{exitUsage, []string{"read", good, "x", "--length", "2MiB"}},
		{exitUsage, []string{"read", good, "x", "--depth", "0"}},
		{exitUsage, []string{"info", good, "--crc", "maybe"}},
		{exitUsage, []string{"info", good, "--isid", "xyz"}},
		{exitAuth, []string{"info", "iser://joe%wrong-secret-22@" + addr + "/" + testIQN + "/0"}},
		{exitAuth, []string{"info", "iscsi://" + addr + "/" + testIQN + "/0"}},
		{exitNotFound, []string{"info", "iscsi://" + addr + "/iqn.2026-11.softiser:other/0"}},
		{exitNotFound, []string{"info", strings.TrimSuffix(good, "0") + "7"}},
		{exitConnect, []string{"info", "iser://127.0.0.1:1/" + testIQN + "/0"}},
		{exitError, []string{"write", good, "/nonexistent"}},
	} {
		out, errs, code := run(t, c.line...)
		if code != c.code || errs == "" {
			t.Errorf("%q: exit code %d, want %d\n%s", c.line, code, c.code, errs)
		}
		for _, secret := range []string{"a-long-secret-1", "wrong-secret-22"} {
			if strings.Contains(out+errs, secret) {
				t.Errorf("%q prints the secret:\n%s%s", c.line, out, errs)
			}
		}
	}
	for err, want := range map[error]int{
		context.DeadlineExceeded: exitTimeout, blockio.ErrTimeout: exitTimeout, blockio.ErrSessionLost: exitConnect, errors.New("x"): exitError,
		&iscsi.LoginError{Status: iscsi.LoginTargetFailure}: exitLogin, rdma.ErrTimeout: exitTimeout, syscall.ECONNRESET: exitConnect,
		&rdma.RejectError{}: exitConnect, rdma.ErrRefused: exitConnect,
		&net.OpError{Op: "dial", Err: context.Canceled}: exitError, &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}: exitConnect, // interrupted, and not
	} {
		if got := exitCode(fmt.Errorf("wrapped: %w", err)); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// Secrets come from a file or the environment as well.
func TestCredentials(t *testing.T) {
	addr, _ := serve(t, 1<<20, "a-long-secret-1")
	url := "iscsi://" + addr + "/" + testIQN + "/0"
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("a-long-secret-1\r\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "info", url, "--chap-user", "joe", "--chap-secret-file", file)
	if _, errs, code := run(t, "info", url, "--chap-user", "joe", "--chap-secret-file", file+"x"); code != exitUsage || !strings.Contains(errs, "CHAP secret") {
		t.Errorf("%d %s", code, errs)
	}
	if _, errs, code := run(t, "info", url, "--chap-user", "joe"); code == 0 || !strings.Contains(errs, "no secret") {
		t.Errorf("%d %s", code, errs)
	}
	t.Setenv("ISER_CHAP_USER", "joe")
	t.Setenv("ISER_CHAP_SECRET", "a-long-secret-1")
	must(t, "info", url)
	t.Setenv("ISER_CHAP_SECRET", "")
	t.Setenv("ISER_CHAP_SECRET_FILE", file)
	must(t, "info", url)
	if _, _, code := run(t, "info", url+"?noauth"); code != exitAuth {
		t.Errorf("noauth: exit code %d", code)
	}
}

// A connection that is refused has the same code over every transport.
func TestRefusedExitCode(t *testing.T) {
	if c := exitCode(fmt.Errorf("rdma: 127.0.0.1:3260: %w", syscall.ECONNREFUSED)); c != exitConnect {
		t.Errorf("over RoCE: exit code %d", c)
	}
}

// A port that is somebody else's is a connection that could not be made, whatever was asked for.
func TestForeignServerExitCode(t *testing.T) {
	for what, says := range map[string]string{"SSH": "SSH-2.0-OpenSSH_9.2p1\r\n", "HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "nothing": ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				// It hears the client out as far as a line goes, and hangs up.
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, says)
				c.Close()
			}
		}()
		for _, url := range []string{"iscsi://%s/iqn.2026-11.x:y/0", "iser://%s/iqn.2026-11.x:y/0", "nvme+tcp://%s/nqn.2026-11.x:y/1", "nvme+rdma://%s/nqn.2026-11.x:y/1"} {
			if _, errs, code := run(t, "info", fmt.Sprintf(url, l.Addr())); code != exitConnect {
				t.Errorf("%s at a port of %s: exit %d, %s", url, what, code, errs)
			}
		}
		if _, errs, code := run(t, "discover", l.Addr().String()); code != exitConnect {
			t.Errorf("discover at a port of %s: exit %d, %s", what, code, errs)
		}
		l.Close()
		<-ended
	}
}

// Who has left the port of NVMe out is told which one was meant, and where ours is.
func TestRefusedAdvice(t *testing.T) {
	for port, want := range map[int]string{4420: "4420 is what NVMe has", 8009: "8009 is what NVMe has", 3260: ""} {
		err := fmt.Errorf("nvmf: %w", &net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: port}, Err: syscall.ECONNREFUSED})
		got := advice(err)
		if !strings.Contains(got, "nothing listens there") || want == "" && strings.Contains(got, "NVMe") || !strings.Contains(got, want) {
			t.Errorf("%d: %q", port, got)
		}
	}
}

// A connection that is reset before an answer, and an address without a way to it, get advice; one that
// was lost later does not.
func TestConnectionAdvice(t *testing.T) {
	op := func(err error) error { return &net.OpError{Op: "read", Err: err} }
	for _, c := range []struct {
		err  error
		want string
	}{
		{blockio.NoConnection(op(syscall.ECONNRESET)), "requires TLS"},
		{op(syscall.ECONNRESET), ""},
		{blockio.NoConnection(op(syscall.ENETUNREACH)), "no way to that address"},
		{blockio.NoConnection(op(syscall.EHOSTUNREACH)), "no way to that address"},
		{&initiator.WrongProtocolError{Address: "127.0.0.1:3260", Err: syscall.ECONNRESET}, ""},
		{&net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 3260}, Err: syscall.EINVAL}, "[fe80::1%eth0]"},
		{&net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.ParseIP("::1"), Port: 3260}, Err: syscall.EINVAL}, ""},
	} {
		if got := advice(c.err); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// Where something else answers at the port, that is what there is to say.
func TestNoAdviceAtWrongPort(t *testing.T) {
	for _, err := range []error{
		&initiator.WrongProtocolError{Address: "127.0.0.1:3260", RoCE: true, Err: syscall.ECONNREFUSED},
		&nvmf.WrongTransportError{Address: "127.0.0.1:3260", Asked: nvmf.TransportRoCE, Err: syscall.ECONNREFUSED},
	} {
		if got := advice(err); got != "" {
			t.Errorf("%v%s", err, got)
		}
	}
}

// FILE before the URL, a folder and a device get their own words.
func TestWrongFiles(t *testing.T) {
	addr, _ := serve(t, 1<<20, "")
	url, dir := "iser://"+addr+"/"+testIQN+"/0", t.TempDir()
	for _, c := range []struct {
		want string
		line []string
	}{
		{"the volume's URL comes first", []string{"write", "disk.img", url}},
		{dir + " is a folder", []string{"read", url, dir}},
		{dir + " is a folder", []string{"read", url, dir, "--force"}},
		{"--force writes to what is there", []string{"read", url, "/dev/null"}},
	} {
		if _, errs, code := run(t, c.line...); code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, %s", c.line, code, errs)
		}
	}
}

// A run that a signal ended early does not look like one that succeeded.
func TestBenchInterrupted(t *testing.T) {
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	addr := serveVolume(t, &readSignal{Device: vol, after: 100, seen: cancel}, "")
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"bench", "iser://" + addr + "/" + testIQN + "/0", "--rw=randread", "--runtime=600", "--time-based"})
	err = cmd.ExecuteContext(ctx)
	if exitCode(err) != 128 || !strings.Contains(fmt.Sprint(err), "interrupted") {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	if !strings.Contains(out.String(), "read: IOPS=") {
		t.Errorf("no report:\n%s", &out)
	}
}

// readSignal is a volume that calls seen when it has been read so often.
type readSignal struct {
	blockdev.Device
	after int64
	seen  func()
	reads atomic.Int64
}

func (v *readSignal) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if v.reads.Add(1) == v.after {
		v.seen()
	}
	return v.Device.LeaseRead(l, off, n, m)
}

package connflags

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator"
	"softiser/rdma"
)

func TestSecret(t *testing.T) {
	t.Setenv("VAR", "")
	t.Setenv("VAR_FILE", "")
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("the secret\r\nand a note\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := secret("", path, "VAR", "VAR_FILE"); err != nil || s != "the secret" {
		t.Errorf("a file: %q, %v", string(s), err)
	}
	if s, err := secret("given", path, "VAR", "VAR_FILE"); err != nil || s != "given" {
		t.Errorf("one that is given: %q, %v", string(s), err)
	}
	if s, err := secret("", "", "VAR", "VAR_FILE"); err != nil || s != "" {
		t.Errorf("none: %q, %v", string(s), err)
	}
	for file, want := range map[string]string{"/dev/zero": "longer than", "/dev/null": "empty", path + ".no": "no such file"} {
		if _, err := secret("", file, "VAR", "VAR_FILE"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Setenv("VAR_FILE", path)
	if s, err := secret("", "", "VAR", "VAR_FILE"); err != nil || s != "the secret" {
		t.Errorf("a variable that names a file: %q, %v", string(s), err)
	}
	t.Setenv("VAR", "from the environment")
	if s, err := secret("", "", "VAR", "VAR_FILE"); err != nil || s != "from the environment" {
		t.Errorf("a variable: %q, %v", string(s), err)
	}
}

// What would be taken for the default, or be without effect where it is to prove something, is refused.
func TestMeaninglessValues(t *testing.T) {
	const lun, ns = "iscsi://h/iqn.2026-11.softiser:a/0", "nvme+tcp://h/nqn.2026-11.softiser:a/1"
	for _, c := range []struct{ url, flag, want string }{
		{lun, "--nr-sessions=0", "want 1 to 64"}, {lun, "--queue-depth=0", "want 1 to"}, {ns, "--queue-depth=-1", "want 1 to"},
		{lun, "--nr-sessions=100000", "--nr-sessions 100000: want 1 to 64"}, {lun, "--queue-depth=4097", "--queue-depth 4097: want 1 to 4096"},
		{lun, "--max-transfer=2GiB", "--max-transfer"}, {lun, "--max-burst=16MiB", "--max-burst"}, {lun, "--max-burst=16777215", ""}, {ns, "--queue-depth=4096", ""},
		{lun, "--max-transfer=0", "4KiB"}, {lun, "--first-burst=0", "512"}, {lun, "--max-burst=0", "512"}, {lun, "--max-recv-data=0", "512"},
		{lun, "--login-timeout=-1s", "above 0"}, {ns, "--login-timeout=0", "above 0"}, {lun, "--noop-timeout=0", "above 0"}, {lun, "--silence-ping=0", "above 0"},
		{ns, "--command-timeout=0", "-1s for never"}, {lun, "--noop-interval=0", "-1s for never"}, {lun, "--silence-probe=0", "-1s for never"},
		{lun, "--command-timeout=-1s", ""}, {lun, "--noop-interval=-1s", ""}, {lun, "--silence-probe=-1s", ""},
		{lun, "--dhchap-ctrl-secret=/nofile", "is for NVMe"}, {lun, "--dhchap-hashes=sha256", "is for NVMe"},
		{ns, "--chap-user=joe", "is for iSCSI"}, {ns, "--chap-target-secret-file=/nofile", "is for iSCSI"},
		{lun, "--chap-algs=md5", ""}, {ns, "--dhchap-hashes=sha256", ""},
		{lun + "," + ns, "--chap-algs=md5", ""}, {lun + "," + ns, "--dhchap-hashes=sha256", ""},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o := Register(fs)
		if err := fs.Parse([]string{c.flag}); err != nil {
			t.Fatal(err)
		}
		switch err := o.Check(c.url); {
		case c.want == "" && err != nil:
			t.Errorf("%s %s: %v", c.flag, c.url, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %s: %v, want something about %q", c.flag, c.url, err, c.want)
		}
	}
}

func TestBusyPoll(t *testing.T) {
	for in, want := range map[string]time.Duration{"auto": rdma.BusyPollAuto, "0": rdma.BusyPollOff, "0s": rdma.BusyPollOff, "50us": 50 * time.Microsecond} {
		if got, err := busyPoll(in); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "always", "50", "-1us"} {
		if got, err := busyPoll(in); err == nil {
			t.Errorf("%q was taken for %v", in, got)
		}
	}
}

func TestPaths(t *testing.T) {
	const a, b = "iser://h/iqn.2026-11.softiser:a/0", "iscsi://[::1]:3260/iqn.2026-11.softiser:b/1"
	for in, want := range map[string][]string{
		a:           {a},
		a + "," + b: {a, b},
		a + "?header_digest=crc32c,none," + b + "?auth=md5,sha1": {a + "?header_digest=crc32c,none", b + "?auth=md5,sha1"},
		a + "," + b + "," + a: {a, b, a},
		"/dev/nbd0":           {"/dev/nbd0"},
		"":                    {""},
		a + ",":               {a + ","},
	} {
		if got := Paths(in); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"iser://joe%secret@h/iqn.2026-11.softiser:a/0," + b: "iser://joe@h:3260/iqn.2026-11.softiser:a/0," + b,
		"/run/x.sock": "/run/x.sock",
	} {
		if got := Names(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The times of silence reach both wires; a ping that would come after the probe is refused.
func TestSilence(t *testing.T) {
	for _, url := range []string{"iser://h/iqn.2026-11.softiser:a/0", "nvme+tcp://h/nqn.2026-11.softiser:a/1"} {
		for _, c := range []struct {
			args        []string
			ping, probe time.Duration
		}{
			{nil, 0, time.Second}, {[]string{"--silence-probe=300ms"}, 0, 300 * time.Millisecond}, {[]string{"--silence-probe=-1s"}, 0, -time.Second},
			{[]string{"--silence-ping=2s", "--silence-probe=9s"}, 2 * time.Second, 9 * time.Second},
		} {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			o := Register(fs)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			ws, err := o.ways(url)
			if err != nil {
				t.Fatal(err)
			}
			var ping, probe time.Duration
			if w := ws[0]; w.host != nil {
				ping, probe = w.host.SilencePing, w.host.SilenceProbe
			} else {
				ping, probe = w.lun.SilencePing, w.lun.SilenceProbe
			}
			if ping != c.ping || probe != c.probe {
				t.Errorf("%s %q: %v %v", url, c.args, ping, probe)
			}
		}
	}
}

// Two sessions of one name and one ISID would reinstate each other.
func TestPathsHaveSessionsOfTheirOwn(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := Register(fs)
	if err := fs.Parse([]string{"--isid=80a1b2c30000", "--nr-sessions=2", "--noop-timeout=9s"}); err != nil {
		t.Fatal(err)
	}
	cs, err := o.ways("iser://h/iqn.2026-11.softiser:a/0,iser://g/iqn.2026-11.softiser:a/0")
	if err != nil || len(cs) != 2 || cs[0].lun.ISID[5] != 0 || cs[1].lun.ISID[5] != 2 {
		t.Fatalf("%v %+v", err, cs)
	}
	if err := fs.Parse([]string{"--nr-sessions=64"}); err != nil {
		t.Fatal(err)
	}
	const u = "iser://h/iqn.2026-11.softiser:a/0"
	many, err := o.ways(u + strings.Repeat(","+u, 4))
	seen := map[[6]byte]bool{}
	for _, w := range many {
		for i := range w.lun.Sessions {
			seen[initiator.ISIDAfter(w.lun.ISID, i)] = true
		}
	}
	if err != nil || len(seen) != 5*64 {
		t.Errorf("%d names of %d sessions, %v", len(seen), 5*64, err)
	}
	if cs[0].lun.NopInterval != pathNopInterval || cs[0].lun.NopTimeout != 9*time.Second {
		t.Errorf("pings after %v, dead after %v", cs[0].lun.NopInterval, cs[0].lun.NopTimeout)
	}
}

// The sessions of a volume that are to be reinstated by its next user have names that follow
// from Tuning.ISID, or from --isid.
func TestReinstated(t *testing.T) {
	const one, two = "iser://h/iqn.2026-11.softiser:a/0", "iser://h/iqn.2026-11.softiser:a/0,iscsi://g/iqn.2026-11.softiser:a/0"
	tune := Tuning{ISID: [6]byte{0x80, 1, 2, 3, 4, 5}}
	for _, c := range []struct {
		args  []string
		url   string
		ok    bool
		names [][6]byte
	}{
		{nil, one, true, [][6]byte{{0x80, 1, 2, 3, 4, 5}}},
		{nil, two, true, [][6]byte{{0x80, 1, 2, 3, 4, 5}, {0x80, 1, 2, 3, 5, 5}}},
		{[]string{"--isid=80a1b2c30000"}, one, true, [][6]byte{{0x80, 0xa1, 0xb2, 0xc3}}},
		{[]string{"--all-portals"}, one, false, nil},
		{nil, "nvme+tcp://h/nqn.2026-11.softiser:a/1", false, nil},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o := Register(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if o.Reinstates(c.url) != c.ok {
			t.Errorf("%v %s: reinstates %v", c.args, c.url, !c.ok)
		}
		ws, err := o.ways(c.url)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range c.names {
			if tune.name(ws[i], i); ws[i].lun.ISID != want {
				t.Errorf("%v %s: path %d has %x, want %x", c.args, c.url, i, ws[i].lun.ISID, want)
			}
		}
	}
}

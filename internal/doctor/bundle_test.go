package doctor_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/internal/doctor"
)

// unpack returns the files of a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(text)
	}
}

func TestBundle(t *testing.T) {
	const secret = `ca"p+tain's daughter`
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	m := &doctor.Mask{}
	m.Add([]byte(secret + "\n"))
	long := strings.Repeat(secret+" and more of it\n", 2*doctor.PartBound/20)
	err := doctor.WriteBundle(path, time.Unix(1, 0), m, []doctor.Part{
		{Name: "log", Read: func() ([]byte, error) { return []byte(long), nil }},
		{Name: "gone", Read: func() ([]byte, error) { return nil, errors.New("no " + secret) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	all := unpack(t, path)
	if l := all["support/log"]; len(l) > doctor.PartBound || len(l) < doctor.PartBound/2 || !strings.HasPrefix(l, "*** and more") {
		t.Errorf("the log has %d bytes and begins with %.40q", len(l), l)
	}
	if all["support/gone.error"] != "no ***\n" {
		t.Errorf("%q", all["support/gone.error"])
	}
	if err := doctor.WriteBundle(path, time.Unix(1, 0), m, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	if len(unpack(t, path)) != 2 {
		t.Error("the file that was there has changed")
	}
}

func TestMask(t *testing.T) {
	t.Setenv("SOME_PASSWORD", "from the environment")
	m := doctor.NewMask()
	m.Add([]byte("short"))
	m.Add([]byte("sesame opens"))
	m.Add([]byte("sesame opens it"))
	m.Add([]byte("-----BEGIN X-----\nMIIBVQIBADANBgkqhkiG\nAAAABBBBCCCC\n-----END X-----\n"))
	for text, want := range map[string]string{
		"a sesame opens it b, sesame opens": "a *** b, ***",
		"sesame+opens sesame%20opens":       "*** ***",
		base64.StdEncoding.EncodeToString([]byte("sesame opens")) + " 736573616d65206f70656e73": "*** ***",
		"it is from the environment":                                          "it is ***",
		"short words stay":                                                    "short words stay",
		"key MIIBVQIBADANBgkqhkiG":                                            "key ***",
		"secret DHHC-1:01:abcd+/==: there":                                    "secret DHHC-1:*** there",
		"NVMeTLSkey-1:01:abcd: there":                                         "NVMeTLSkey-1:*** there",
		"iser://user%topsecret@host:3260/iqn/0":                               "iser://user%***@host:3260/iqn/0",
		"https://user:topsecret@host/x":                                       "https://user%***@host/x",
		"iser://host/iqn/0?target_user=a&target_password=b&noauth":            "iser://host/iqn/0?target_user=a&target_password=***&noauth",
		`{"password": "x y", "b": 1}`:                                         `{"password": "*** y", "b": 1}`,
		"secret_file: /etc/softiser/x":                                        "secret_file: /etc/softiser/x",
		"dhchap_secret_env: NAME":                                             "dhchap_secret_env: NAME",
		"a -----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY----- b": "a *** b",
		"a -----BEGIN PRIVATE KEY-----\nand then it ends":                     "a ***",
	} {
		if got := string(m.Apply([]byte(text))); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestReadEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]string{100: "one\ntwo\nthree\n", 14: "one\ntwo\nthree\n", 13: "two\nthree\n", 10: "two\nthree\n", 9: "three\n", 3: ""} {
		if b, err := doctor.ReadEnd(path, n); err != nil || string(b) != want {
			t.Errorf("the last %d bytes: %q, %v, want %q", n, b, err, want)
		}
	}
	pipe := path + ".pipe" // which nobody writes to
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path + ".none", filepath.Dir(path), pipe} {
		if _, err := doctor.ReadEnd(p, 10); err == nil {
			t.Errorf("%s can be read", p)
		}
	}
}

func TestFacts(t *testing.T) {
	seen := 0
	for _, p := range (&doctor.Host{}).Facts() {
		if b, err := p.Read(); err == nil && len(b) > 1 {
			seen++
		}
	}
	if seen < 10 {
		t.Errorf("only %d facts about this host", seen)
	}
	b, err := doctor.Reports([]doctor.Finding{{Check: "a", Found: "fine"}})[0].Read()
	if err != nil || !strings.Contains(string(b), "fine") {
		t.Errorf("%q, %v", b, err)
	}
}

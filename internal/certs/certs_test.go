package certs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/internal/certs/certtest"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// What cannot be used is refused with the file's name and what is wrong with it.
func TestRefused(t *testing.T) {
	ca := certtest.New(t, "ours")
	cert, key := ca.Issue(t, "a", certtest.Leaf{})
	_, other := ca.Issue(t, "b", certtest.Leaf{})
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	empty, long := file("empty", ""), file("long", strings.Repeat("x", maxFile+1))
	broken := file("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	locked := file("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
	for _, c := range []struct{ cert, key, want string }{
		{dir + "/none", key, dir + "/none: no such file"},
		{cert, dir + "/none", dir + "/none: no such file"},
		{empty, key, empty + " has no certificate"},
		{cert, empty, empty},
		{cert, "", cert},
		{cert, other, "does not match"},
		{broken, key, broken},
		{long, key, long + " is longer than"},
		{cert, locked, "openssl pkey -in " + locked},
		{dir, key, dir + ": "},
	} {
		if _, err := Pair(c.cert, c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: %v, want %q", c.cert, c.key, err, c.want)
		}
	}
	for f, want := range map[string]string{dir + "/none": "no such file", empty: "no certificate of an authority", key: "no certificate of an authority", broken: "certificate 1", long: "longer"} {
		if _, err := Authorities(f); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), f) {
			t.Errorf("authorities %s: %v, want %q", f, err, want)
		}
	}
}

// A key may be in the certificate's own file; when the certificate ends is told.
func TestPair(t *testing.T) {
	ca := certtest.New(t, "ours")
	cert, key := ca.Issue(t, "a", certtest.Leaf{To: time.Now().Add(40 * 24 * time.Hour)})
	var both []byte
	for _, f := range []string{cert, key} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, b...)
	}
	one := filepath.Join(t.TempDir(), "both.pem")
	if err := os.WriteFile(one, both, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Pair(one, ""); err != nil {
		t.Error(err)
	}
	if _, err := Authorities(ca.File); err != nil {
		t.Error(err)
	}
	p, err := Pair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]string{0: "", 30 * 24 * time.Hour: "expires on", 50 * 24 * time.Hour: "has expired on", -2 * time.Hour: "is not valid before"} {
		if got := Problem(p, time.Now().Add(after)); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%v later: %q, want %q", after, got, want)
		}
	}
}

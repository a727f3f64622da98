package tlspsk

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

const (
	written = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
	host    = "nqn.psk-test-host"
	sub     = "nqn.psk-test-subsys"
)

func key(t *testing.T, s string) *Key {
	t.Helper()
	k, err := ParseKey(s)
	if err != nil {
		t.Fatal(err)
	}
	if k.Reveal() != s {
		t.Errorf("%s is written again as %s", s, k.Reveal())
	}
	return k
}

// The vectors that libnvme and the Linux kernel test themselves with.
func TestVectors(t *testing.T) {
	k := key(t, written)
	if got := hex.EncodeToString(k.psk); got != "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03" {
		t.Errorf("key %s", got)
	}
	r, err := k.For(host)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(r.key); got != "073311dec37e219ff3acd43f130130c5bdd443c066e1cc3424e49030234ff7d5" {
		t.Errorf("retained key %s", got)
	}
	for v, want := range map[Version][2]string{
		Version0: {"NVMe0R01 " + host + " " + sub, "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68"},
		Version1: {"NVMe1R01 " + host + " " + sub + " iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=", "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca"},
	} {
		id, psk, err := r.Identity(v, host, sub)
		if err != nil || id != want[0] || hex.EncodeToString(psk) != want[1] {
			t.Errorf("version %d: %s, %x, %v", v, id, psk, err)
		}
	}
}

// The same with SHA-384, of which nobody publishes vectors: computed by another implementation of HKDF
// (RFC 5869, RFC 8446 §7.1) that gives the vectors above.
func TestVectorsSHA384(t *testing.T) {
	k := key(t, "NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:")
	r, err := k.For(host)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(r.key); got != "c2409ba226bc781b7e79c297ea1a68f02e3220dbf61ca8bf80feb82f3489ba932d3eea3c9629eb17cb54748492babc1f" {
		t.Errorf("retained key %s", got)
	}
	for v, want := range map[Version][2]string{
		Version0: {"NVMe0R02 " + host + " " + sub, "d957efa2549c0c6bab79575a05d9742bcdf65e3634d9b151a4ce39db9d4d3f7d19712e43763e2f4e08513224f42c0bb3"},
		Version1: {"NVMe1R02 " + host + " " + sub + " ORMrJUCF3FaAk9vw0sFM0k7i5naVtBT9UiaRzpHm+YJm961Rsvdf3b6UNWfDOeqq",
			"495b023edf69cabed473cc26ad102a0320e0e68343c3f17b494d5ca92b2efe75b9657c46f1726ca9da492eea93eba083"},
	} {
		id, psk, err := r.Identity(v, host, sub)
		if err != nil || id != want[0] || hex.EncodeToString(psk) != want[1] {
			t.Errorf("version %d: %s, %x, %v", v, id, psk, err)
		}
	}
}

// Keys are the same when all of them is: their bytes, and the hash that ties them to a host.
func TestEqual(t *testing.T) {
	a, b := &Key{bytes.Repeat([]byte{1}, 32), SHA256}, &Key{bytes.Repeat([]byte{1}, 32), SHA256}
	for name, tt := range map[string]struct {
		k, o *Key
		same bool
	}{
		"the same":      {a, b, true},
		"other bytes":   {a, &Key{bytes.Repeat([]byte{2}, 32), SHA256}, false},
		"another hash":  {a, &Key{bytes.Repeat([]byte{1}, 32), None}, false},
		"none to one":   {nil, a, false},
		"one to none":   {a, nil, false},
		"none and none": {nil, nil, true},
	} {
		if tt.k.Equal(tt.o) != tt.same {
			t.Errorf("%s: %v", name, !tt.same)
		}
	}
}

func TestForms(t *testing.T) {
	long := &Key{make([]byte, 48), SHA384}
	if k := key(t, long.Reveal()); k.Suite() != SHA384 {
		t.Error("a key of 48 bytes is not for SHA-384")
	}
	plain := &Key{make([]byte, 32), None}
	if r, err := key(t, plain.Reveal()).For(host); err != nil || string(r.key) != string(plain.psk) {
		t.Errorf("hash 00 changes the key: %v", err)
	}
	if s := fmt.Sprintf("%v %#v", long, long); strings.Contains(s, "AAAA") || strings.Contains(s, "0x0") {
		t.Errorf("a key prints as %s", s)
	}
	for name, s := range map[string]string{
		"empty": "", "prefix": "NVMeTLSkey-2" + written[12:], "hash 03": strings.Replace(written, ":01:", ":03:", 1), "length for its hash": strings.Replace(written, ":01:", ":02:", 1),
		"no end": written[:len(written)-1], "base64": strings.Replace(written, "VRLb", "V!Lb", 1), "check sum": strings.Replace(written, "VRLb", "VRLc", 1), "short": "NVMeTLSkey-1:01:AAAA:",
		"prefix alone": prefix, "hash alone": prefix + "01:", "hash 11": strings.Replace(written, ":01:", ":11:", 1), "hash of a letter": strings.Replace(written, ":01:", ":0/:", 1),
		"no colon behind the hash": strings.Replace(written, ":01:", ":01;", 1), "another end": written[:len(written)-1] + ";", "between the lengths": unhashed(40), "longer": unhashed(49),
	} {
		if _, err := ParseKey(s); err == nil {
			t.Errorf("%s: is read", name)
		} else if strings.Contains(err.Error(), "VRL") {
			t.Errorf("%s: the error repeats the key: %v", name, err)
		}
	}
}

// unhashed is a key of n bytes of hash 00, which may have 32 and 48.
func unhashed(n int) string { return (&Key{make([]byte, n), None}).Reveal() }

func TestLongNames(t *testing.T) {
	r := &Retained{make([]byte, 32), SHA256}
	if _, _, err := r.Identity(Version0, strings.Repeat("h", 223), strings.Repeat("s", 223)); err == nil {
		t.Error("an identity that no label holds is made")
	}
	label := len("NVMe0R01  ")
	for n, ok := range map[int]bool{255: true, 256: false} {
		if _, _, err := r.Identity(Version0, strings.Repeat("h", n-label-100), strings.Repeat("s", 100)); (err == nil) != ok {
			t.Errorf("a label's context of %d bytes: %v", n, err)
		}
	}
	if _, _, err := r.Identity(Version1, strings.Repeat("h", 223), strings.Repeat("s", 223)); err != nil {
		t.Error(err)
	}
}

// What nvme-cli makes is taken.
func TestKeysOfNVMeCLI(t *testing.T) {
	if _, err := exec.LookPath("nvme"); err != nil {
		t.Skip("nvme-cli is not installed")
	}
	for hmac, want := range map[string]Hash{"1": SHA256, "2": SHA384} {
		out, err := exec.Command("nvme", "gen-tls-key", "-m", hmac).CombinedOutput()
		if err != nil {
			t.Skipf("this nvme-cli makes no TLS keys: %v", err)
		}
		if k := key(t, strings.TrimSpace(string(out))); k.Suite() != want {
			t.Errorf("a key of -m %s is for suite %d", hmac, k.Suite())
		}
	}
}

// FuzzKey reads keys. What is taken is written as it was.
func FuzzKey(f *testing.F) {
	f.Add((&Key{make([]byte, 32), SHA256}).Reveal())
	f.Add((&Key{make([]byte, 48), SHA384}).Reveal())
	f.Add((&Key{make([]byte, 48), None}).Reveal())
	f.Add("NVMeTLSkey-1:01:AAAA:")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		if err != nil {
			return
		}
		again, err := ParseKey(k.Reveal())
		if err != nil || !k.Equal(again) || len(k.Reveal()) > len(text) {
			t.Errorf("%q became %q, %v", text, k.Reveal(), err)
		}
		if _, err := k.For("nqn.2026-11.softiser:h"); err != nil {
			t.Error(err)
		}
	})
}

package tlspsk

import (
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
	} {
		if _, err := ParseKey(s); err == nil {
			t.Errorf("%s: is read", name)
		} else if strings.Contains(err.Error(), "VRL") {
			t.Errorf("%s: the error repeats the key: %v", name, err)
		}
	}
}

func TestLongNames(t *testing.T) {
	r := &Retained{make([]byte, 32), SHA256}
	if _, _, err := r.Identity(Version0, strings.Repeat("h", 223), strings.Repeat("s", 223)); err == nil {
		t.Error("an identity that no label holds is made")
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

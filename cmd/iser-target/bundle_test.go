package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"softiser/config"
	"softiser/internal/doctor"
	"softiser/internal/loopback"
)

// unpacked returns the files of a bundle.
func unpacked(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	z, err := gzip.NewReader(f)
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
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(h.Name, "support/")] = string(b)
	}
}

// secretFields gives every field of the model that leads to a secret one, and returns them.
func secretFields(t *testing.T, dir string, v reflect.Value) (all []string) {
	t.Helper()
	word := regexp.MustCompile("secret|password|passwd|psk|key|token")
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		case reflect.Struct:
			for i := range v.NumField() {
				f, s := v.Type().Field(i), v.Field(i)
				if !f.IsExported() {
					continue
				}
				key := f.Tag.Get("mapstructure")
				secret := fmt.Sprintf("open/sesame+%d=%s", len(all), key)
				switch {
				case s.Kind() != reflect.String:
					fill(s)
				case strings.HasSuffix(key, "_file"), key == "cert", key == "key": // the last two are of TLS
					p := filepath.Join(dir, fmt.Sprint(len(all)))
					if err := os.WriteFile(p, []byte(secret+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
					s.SetString(p)
					all = append(all, secret)
				case strings.HasSuffix(key, "_env"):
					name := fmt.Sprint("SOFTISER_TEST_", len(all))
					t.Setenv(name, secret)
					s.SetString(name)
					all = append(all, secret)
				case word.MatchString(key):
					t.Errorf("%s holds a secret itself: the model is to name a file or a variable", key)
				}
			}
		}
	}
	fill(v)
	return all
}

// A secret is in no byte of a bundle, whatever part it might have got into, in whatever form.
func TestBundleHasNoSecrets(t *testing.T) {
	dir := t.TempDir()
	p := &patient{cfg: &config.Config{}}
	all := secretFields(t, t.TempDir(), reflect.ValueOf(p.cfg).Elem())
	if len(all) < 12 {
		t.Fatalf("only %d fields of the model lead to a secret", len(all))
	}
	var log bytes.Buffer
	for _, s := range all {
		fmt.Fprintf(&log, "login with %s, %q, %s, %x, %s\n", s, s, url.QueryEscape(s), s, base64.StdEncoding.EncodeToString([]byte(s)))
	}
	fmt.Fprintln(&log, "iser://user%in-a-url@192.0.2.1/iqn/0 DHHC-1:01:in-a-key: NVMeTLSkey-1:01:in-a-psk:")
	p.err = fmt.Errorf("wrong: %s", all[0])
	logFile := filepath.Join(dir, "log")
	if err := os.WriteFile(logFile, log.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	p.cfg.Admin.Metrics = ""
	p.noReply = fmt.Errorf("nobody: %s", all[1])
	out := filepath.Join(dir, "b.tar.gz")
	if err := p.bundle(t.Context(), out, logFile, []doctor.Finding{{Check: "x", Found: all[2]}}); err != nil {
		t.Fatal(err)
	}
	for name, text := range unpacked(t, out) {
		for i, s := range append(all, "in-a-url", "in-a-key", "in-a-psk") {
			for _, form := range []string{s, url.QueryEscape(s), fmt.Sprintf("%x", s), base64.StdEncoding.EncodeToString([]byte(s))} {
				if strings.Contains(text, form) {
					t.Errorf("secret %d, %s, is in %s", i, s, name)
				}
			}
		}
	}
}

// A bundle of a target that runs has what it says of itself.
func TestBundle(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("a secret of chap\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, socket := configFile(t, dir, `
portals: [{listen: "ADDR"}]
volumes: [{name: ram, type: memory, size: 1MiB}]
targets:
  - {iqn: "iqn.2026-11.test:a", luns: [{lun: 0, volume: ram}], auth: {method: chap, users: [{name: u, secret_file: secret}]}}
admin: {socket: SOCK, metrics: "`+loopback.FreeAddr(t)+`"}
`)
	o, _ := start(t, "--config", f)
	log, out := filepath.Join(dir, "log"), filepath.Join(dir, "b.tar.gz")
	if err := os.WriteFile(log, []byte(o.String()+"the secret is a secret of chap\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := command(t, "doctor", "-c", f, "--socket", socket, "--bundle", out, "--log", log); code != 0 {
		t.Fatalf("ends with %d\n%s", code, said)
	}
	all := unpacked(t, out)
	for name, want := range map[string]string{
		"version": "iser-target ", "configuration.yaml": "secret_file: " + secret, "status.json": `"state": "listening"`, "metrics": "iser_target_sessions",
		"log": "the secret is ***", "doctor.txt": "0 errors", "proc/meminfo": "MemTotal",
	} {
		if !strings.Contains(all[name], want) {
			t.Errorf("%s has no %q:\n%.300s", name, want, all[name])
		}
	}
	if code, said := command(t, "doctor", "-c", f, "--bundle", out, "--log", log); code != exitFailure || !strings.Contains(said, "file exists") {
		t.Errorf("over another: %d\n%s", code, said)
	}
}

// Without a file the journal is asked.
func TestBundleAsksTheJournal(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "journalctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	b, err := readLog(t.Context(), "")
	if err != nil || string(b) != "-u iser-target -n 5000 --no-pager -q\n" {
		t.Errorf("%q, %v", b, err)
	}
	t.Setenv("PATH", filepath.Join(dir, "none"))
	if _, err := readLog(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "--log names a file") {
		t.Error(err)
	}
}

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/doctor"
)

func TestDoctor(t *testing.T) {
	var out, errs bytes.Buffer
	if code := execute(t.Context(), []string{"doctor", "--json"}, &out, &errs); code != 0 {
		t.Fatalf("ends with %d: %s", code, &errs)
	}
	var all []doctor.Finding
	if err := json.Unmarshal(out.Bytes(), &all); err != nil || len(all) != len(hostChecks) {
		t.Fatalf("%v, %d findings of %d checks\n%s", err, len(all), len(hostChecks), &out)
	}
	for _, f := range all {
		if f.Check == "" || f.Found == "" || f.Level >= doctor.Warning && (f.Cost == "" || f.Mend == "") {
			t.Errorf("%+v", f)
		}
	}
	out.Reset()
	if code := execute(t.Context(), []string{"doctor"}, &out, &errs); code != 0 || !strings.Contains(out.String(), "0 errors") {
		t.Errorf("ends with %d\n%s%s", code, &out, &errs)
	}
}

// TestDoctorUsage: what is asked for with a variable that is not set, or without what it belongs to, is not left out silently.
func TestDoctorUsage(t *testing.T) {
	for _, args := range [][]string{{"--bundle", ""}, {"--log", "x"}} {
		var out, errs bytes.Buffer
		if code := execute(t.Context(), append([]string{"doctor"}, args...), &out, &errs); code != exitUsage || !strings.Contains(errs.String(), "--bundle") {
			t.Errorf("%q ends with %d: %s", args, code, &errs)
		}
	}
}

func TestBundle(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ISER_RUN_DIR", filepath.Join(dir, "run"))
	log, bundle := filepath.Join(dir, "log"), filepath.Join(dir, "b.tar.gz")
	if err := os.WriteFile(log, []byte("attached iser://user%topsecret@192.0.2.1/iqn/0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := execute(t.Context(), []string{"doctor", "--bundle", bundle, "--log", log}, &out, &errs); code != 0 {
		t.Fatalf("ends with %d: %s", code, &errs)
	}
	f, err := os.Open(bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil || bytes.Contains(b, []byte("topsecret")) {
		t.Errorf("%v, or the secret is there", err)
	}
	for _, want := range []string{"attached iser://user%***@", "iser-initiator ", "attachments.json", "MemTotal", "0 errors"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("there is no %q", want)
		}
	}
}

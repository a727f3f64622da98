package main

import (
	"bytes"
	"encoding/json"
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
